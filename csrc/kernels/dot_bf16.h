// The same dot product by VDPBF16PS, twice as fast as by FMA. The instruction adds the product of a pair's second
// elements, then that of its first, each rounded as an FMA rounds: a chain of two. Where four neighbours of K lie in the
// order 2, 0, 3, 1 (place_of), every other pair goes on with the chain over even k, the rest with that over odd k, which
// is what TDPBF16PS computes. `pairs_are_chained` tries the instruction before anybody relies on this.
#pragma once

namespace headrace::HEADRACE_NS {

struct ChainDot {
  using Value = u16;
  using Integers = ChainDot;
  static constexpr bool fetches_one_pass = false;
  static constexpr bool reads_integers = true;  // as quickly as bf16: there is nothing to write out first
  static constexpr int kRows = 4;  // by 32 columns: as many sums as there are registers for
  // What must be made bf16 first serves twice as many rows, sixteen columns at a time.
  template <class Tiles>
  static constexpr int kMaxRows = is_ready<Tiles> ? kRows : 2 * kRows;

  static void enter() {}
  static void leave() {}
  template <int Order>
  static __m256i shuffled(__m256i words) {
    return _mm256_shufflehi_epi16(_mm256_shufflelo_epi16(words, Order), Order);
  }
  static void put(u16* to, F16 x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), shuffled<_MM_SHUFFLE(1, 3, 0, 2)>(to_bf16(x)));
  }
  static F16 get(const u16* from) {
    const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(shuffled<_MM_SHUFFLE(2, 0, 3, 1)>(words)), 16))};
  }

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
    if constexpr (is_ready<Tiles>) {
      return reinterpret_cast<__m512bh>(_mm512_loadu_si512(b.at(k, c, h) + p * Tiles::kPair));
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

  // Of half c, to sums [R][32].
  template <int R, class Tiles, class Fetch>
  HEADRACE_INLINE static void half_columns(const u16* a, i64 lda, const Tiles& b, i64 num_tiles, int c, Fetch& ahead, float* sums) {
    F16 total[R];
    __m512 chain[2][R];
    const __m512 zero = _mm512_setzero_ps();
    for (int r = 0; r < R; r++) {
      total[r] = F16{zero};
      chain[0][r] = chain[1][r] = zero;
    }
    for (i64 k = 0; k < num_tiles; k++) {
      if (c == 0) ahead.fetch();
      for (int h = 0; h < 2; h++) {
        const u16* ak = a + k * 32 + h * 16;
#pragma GCC unroll 8
        for (int p = 0; p < 8; p++) {
          const __m512bh pairs = pairs_of(b, k, c, h, p);
#pragma GCC unroll 8
          for (int r = 0; r < R; r++) chain[p % 2][r] = _mm512_dpbf16_ps(chain[p % 2][r], pair_of_row(ak + r * lda + 2 * p), pairs);
        }
        if (!ends_sum(b, h)) continue;
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
          total[r] = join(b, total[r], add(F16{chain[0][r]}, F16{chain[1][r]}), k, h, c, r);
          chain[0][r] = chain[1][r] = zero;
        }
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; r++) store(sums + r * kColumns + c * 16, total[r]);
  }

  // Never inlined: among other things the accumulators would not stay in registers.
  template <int R, class Tiles, class Fetch, class Put>
  HEADRACE_NOINLINE static void rows(const u16* a, i64 lda, const Tiles& b, i64 num_tiles, Fetch& ahead, const Put& put) {
    if constexpr (R <= kRows) {
      all_columns<R>(a, lda, b, num_tiles, ahead, put);
    } else {
      alignas(64) float sums[R * kColumns];
      for (int c = 0; c < 2; c++) half_columns<R>(a, lda, b, num_tiles, c, ahead, sums);
      for (int r = 0; r < R; r++) put(r, load(sums + r * kColumns), load(sums + r * kColumns + 16));
    }
  }

  template <int R, class Tiles, class Fetch, class Put>
  HEADRACE_INLINE static void all_columns(const u16* a, i64 lda, const Tiles& b, i64 num_tiles, Fetch& ahead, const Put& put) {
    F16 total[R][2];
    __m512 chain[2][R][2];  // over the even k of a tile, and over the odd ones
    const __m512 zero = _mm512_setzero_ps();
    for (int r = 0; r < R; r++)
      for (int c = 0; c < 2; c++) {
        total[r][c] = F16{zero};
        chain[0][r][c] = chain[1][r][c] = zero;
      }
    for (i64 k = 0; k < num_tiles; k++) {
      ahead.fetch();
      auto half = [&](int h) HEADRACE_INLINE_LAMBDA {
        const u16* ak = a + k * 32 + h * 16;
#pragma GCC unroll 8
        for (int p = 0; p < 8; p++) {
          const __m512bh low = pairs_of(b, k, 0, h, p), high = pairs_of(b, k, 1, h, p);
#pragma GCC unroll 4
          for (int r = 0; r < R; r++) {
            const __m512bh x = pair_of_row(ak + r * lda + 2 * p);
            chain[p % 2][r][0] = _mm512_dpbf16_ps(chain[p % 2][r][0], x, low);
            chain[p % 2][r][1] = _mm512_dpbf16_ps(chain[p % 2][r][1], x, high);
          }
        }
        if (!ends_sum(b, h)) return;
#pragma GCC unroll 4
        for (int r = 0; r < R; r++)
#pragma GCC unroll 2
          for (int c = 0; c < 2; c++) {
            total[r][c] = join(b, total[r][c], add(F16{chain[0][r][c]}, F16{chain[1][r][c]}), k, h, c, r);
            chain[0][r][c] = chain[1][r][c] = zero;
          }
      };
      if constexpr (is_ready<Tiles>) {
        half(0);
        half(1);
      } else {
        for (int h = 0; h < 2; h++) half(h);  // written twice it would not fit the registers
      }
    }
    const Put own = put;  // in registers
#pragma GCC unroll 4
    for (int r = 0; r < R; r++) own(r, total[r][0], total[r][1]);
  }

  // A [num_rows][num_tiles × 32] · B, num_rows ≤ kMaxRows<Tiles>; put(r, left, right) takes the 32 columns of row r.
  template <class Tiles, class Fetch, class Put>
  static void panel(int num_rows, const u16* a, i64 lda, const Tiles& b, i64 num_tiles, Fetch& ahead, const Put& put) {
    by_number_of_rows<ChainDot, kMaxRows<Tiles>>(num_rows, a, lda, b, num_tiles, ahead, put);
  }
};

}  // namespace headrace::HEADRACE_NS
