// The dot product by VDPBF16PS: per 16 of K one pair of each lane at a time, twice as fast as FMA where there are no
// tiles. It sums in another order than TDPBF16PS, so it is chosen only by who asks for it; a row's bits still do not
// depend on how many rows are computed at once.
#pragma once

namespace headrace::HEADRACE_NS {

struct PairDot {
  using Value = u16;
  using Integers = PairDot;
  static constexpr int kMaxRows = 12;

  static void enter() {}
  static void leave() {}
  static void put(u16* to, F16 x) { store_bf16(to, x); }

  static __m512bh pair_of_row(const u16* a) {
    int pair;
    std::memcpy(&pair, a, sizeof pair);
    return reinterpret_cast<__m512bh>(_mm512_set1_epi32(pair));
  }

  // 0 to 15 as bf16, twice: a lookup takes five bits, of which the fifth is another integer's.
  static __m512i numbers() {
    const __m512i words = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m256i halves = _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_castps_si512(_mm512_cvtepi32_ps(words)), 16));
    return _mm512_broadcast_i64x4(halves);
  }

  template <class Tiles>
  static __m512bh pairs_of(const Tiles& b, i64 k, int c, int h, int p) {
    if constexpr (requires { b.at(k, c, h); }) {
      return reinterpret_cast<__m512bh>(_mm512_loadu_si512(b.at(k, c, h) + p * 32));
    } else if constexpr (std::is_same_v<Tiles, IntTiles<4>>) {
      const __m512i words = b.word(k, c, h * 2 + p / 4).v;
      return reinterpret_cast<__m512bh>(_mm512_permutexvar_epi16(_mm512_srli_epi16(words, p % 4 * 4), numbers()));
    } else {
      F16 low, high;
      pair_of(b, k, c, h, p, low, high);
      const __m512i upper = _mm512_castps_si512(high.v), lower = _mm512_srli_epi32(_mm512_castps_si512(low.v), 16);
      return reinterpret_cast<__m512bh>(_mm512_mask_blend_epi16(0x55555555, upper, lower));
    }
  }

  template <int R, class Tiles>
  static void rows(const u16* a, i64 lda, const Tiles& b, i64 num_tiles, float* out, i64 row) {
    __m512 total[R][2], sum[is_grouped<Tiles> ? R : 1][2];
    for (int r = 0; r < R; r++) total[r][0] = total[r][1] = _mm512_setzero_ps();
    for (auto& pair : sum) pair[0] = pair[1] = _mm512_setzero_ps();
    for (i64 k = 0; k < num_tiles; k++)
      for (int h = 0; h < 2; h++) {
        const u16* ak = a + k * 32 + h * 16;
#pragma GCC unroll 8
        for (int p = 0; p < 8; p++) {
          b.prefetch_lines(k, h * 8 + p);
          const __m512bh low = pairs_of(b, k, 0, h, p), high = pairs_of(b, k, 1, h, p);
#pragma GCC unroll 12
          for (int r = 0; r < R; r++) {
            const __m512bh x = pair_of_row(ak + r * lda + 2 * p);
            __m512(&to)[2] = is_grouped<Tiles> ? sum[is_grouped<Tiles> ? r : 0] : total[r];
            to[0] = _mm512_dpbf16_ps(to[0], x, low);
            to[1] = _mm512_dpbf16_ps(to[1], x, high);
          }
        }
        if constexpr (is_grouped<Tiles>) {
          if (!ends_sum(b, h)) continue;
          for (int r = 0; r < R; r++)
            for (int c = 0; c < 2; c++) {
              total[r][c] = join(b, F16{total[r][c]}, F16{sum[r][c]}, k, h, c, row + r).v;
              sum[r][c] = _mm512_setzero_ps();
            }
        }
      }
    for (int r = 0; r < R; r++) {
      _mm512_storeu_ps(out + r * 32, total[r][0]);
      _mm512_storeu_ps(out + r * 32 + 16, total[r][1]);
    }
  }

  template <int R, class Tiles>
  static void up_to(int num_rows, const u16* a, i64 lda, const Tiles& b, i64 num_tiles, float* out, i64 row) {
    if (num_rows == R) return rows<R>(a, lda, b, num_tiles, out, row);
    if constexpr (R > 1) up_to<R - 1>(num_rows, a, lda, b, num_tiles, out, row);
  }

  // out [num_rows][32] = A [num_rows][num_tiles × 32] · B, num_rows ≤ kMaxRows. Sums of groups take registers, too.
  template <class Tiles>
  static void panel(int num_rows, const u16* a, i64 lda, const Tiles& b, i64 num_tiles, float* out) {
    constexpr int kAtOnce = is_grouped<Tiles> ? 6 : kMaxRows;
    for (int r = 0; r < num_rows; r += kAtOnce) {
      const int count = num_rows - r < kAtOnce ? num_rows - r : kAtOnce;
      up_to<kAtOnce>(count, a + r * lda, lda, b, num_tiles, out + r * 32, r);
    }
  }
};

}  // namespace headrace::HEADRACE_NS
