// The dot product of TDPBF16PS by fp32 FMA: per 32 of K two chains from zero, over even and over odd k, then
// C + (even + odd). Rows of A are widened to fp32 beforehand; B is in the packed layout.
#pragma once

namespace headrace::HEADRACE_NS {

struct FmaDot {
  using Value = float;
  using Integers = FmaDot;  // who multiplies by integers
  template <class Tiles>
  static constexpr int kMaxRows = HEADRACE_ROWS;
  static constexpr int kHalves = HEADRACE_HALVES;  // column halves whose accumulators fit the registers
  static constexpr bool reads_integers = false;
  static constexpr bool fetches_one_pass = false;  // what is read once, line after line, the processor fetches by itself

  static void enter() {}
  static void leave() {}
  static void put(float* to, F16 x) {
    u16 rounded[16];
    store_bf16(rounded, x);
    store(to, load_bf16(rounded));
  }

  static F16 get(const float* from) { return load(from); }  // what `put` has left

  template <int R, int C, class Tiles, class Fetch>
  static void block(const float* a, i64 lda, const Tiles& b, i64 num_tiles, Fetch& ahead, int first_half, F16 (&sums)[R][2]) {
    F16 total[R][C], even[R][C], odd[R][C];
    for (int r = 0; r < R; r++)
      for (int c = 0; c < C; c++) total[r][c] = even[r][c] = odd[r][c] = set(0.0f);
    for (i64 k = 0; k < num_tiles; k++) {
      if (first_half == 0) ahead.fetch();
      for (int h = 0; h < 2; h++) {
        const float* ak = a + k * 32 + h * 16;
#pragma GCC unroll 8
        for (int p = 0; p < 8; p++) {
          F16 low[C], high[C];
          for (int c = 0; c < C; c++) pair_of(b, k, first_half + c, h, p, low[c], high[c]);
          for (int r = 0; r < R; r++) {
            const F16 x = set(ak[r * lda + 2 * p]), y = set(ak[r * lda + 2 * p + 1]);
            for (int c = 0; c < C; c++) even[r][c] = fma(x, low[c], even[r][c]);
            for (int c = 0; c < C; c++) odd[r][c] = fma(y, high[c], odd[r][c]);
          }
        }
        if (!ends_sum(b, h)) continue;
        for (int r = 0; r < R; r++)
          for (int c = 0; c < C; c++) {
            total[r][c] = join(b, total[r][c], add(even[r][c], odd[r][c]), k, h, first_half + c, r);
            even[r][c] = odd[r][c] = set(0.0f);
          }
      }
    }
    for (int r = 0; r < R; r++)
      for (int c = 0; c < C; c++) sums[r][first_half + c] = total[r][c];
  }

  template <int R, class Tiles, class Fetch, class Put>
  static void rows(const float* a, i64 lda, const Tiles& b, i64 num_tiles, Fetch& ahead, const Put& put) {
    F16 sums[R][2];
    for (int half = 0; half < 2; half += kHalves) block<R, kHalves>(a, lda, b, num_tiles, ahead, half, sums);
    const Put own = put;  // in registers
    for (int r = 0; r < R; r++) own(r, sums[r][0], sums[r][1]);
  }

  // A [num_rows][num_tiles × 32] · B, num_rows ≤ kMaxRows<Tiles>; put(r, left, right) takes the 32 columns of row r.
  template <class Tiles, class Fetch, class Put>
  static void panel(int num_rows, const float* a, i64 lda, const Tiles& b, i64 num_tiles, Fetch& ahead, const Put& put) {
    by_number_of_rows<FmaDot, kMaxRows<Tiles>>(num_rows, a, lda, b, num_tiles, ahead, put);
  }
};

}  // namespace headrace::HEADRACE_NS
