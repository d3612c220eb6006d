// Sixteen lanes in one AVX-512 register (F, BW, DQ, VL). The meaning of each function: simd_portable.h.
#pragma once
#include <immintrin.h>

#include "core/types.h"

namespace headrace::HEADRACE_NS {

struct F16 {
  __m512 v;
};
struct I16 {
  __m512i v;
};
constexpr int kVectors = 32;

inline F16 load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline F16 load_bf16(const u16* p) {
  const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16))};
}
inline F16 load_even(const u16* p) { return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(p), 16))}; }
inline F16 load_odd(const u16* p) {
  return {_mm512_castsi512_ps(_mm512_and_si512(_mm512_loadu_si512(p), _mm512_set1_epi32(static_cast<int>(0xffff0000))))};
}
inline F16 load_f16(const u16* p) { return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))}; }
// Bits [shift, shift + 4) of each word as a number.
inline F16 nibble(I16 words, int shift) {
  const __m512 numbers = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  return {_mm512_permutexvar_ps(_mm512_srli_epi32(words.v, static_cast<unsigned>(shift)), numbers)};
}
// Bits [shift, shift + 8) of each word as a signed number.
inline F16 octet(I16 words, int shift) {
  return {_mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(words.v, static_cast<unsigned>(24 - shift)), 24))};
}
inline F16 set(float x) { return {_mm512_set1_ps(x)}; }
inline void store(float* p, F16 a) { _mm512_storeu_ps(p, a.v); }
inline F16 add(F16 a, F16 b) { return {_mm512_add_ps(a.v, b.v)}; }
inline F16 sub(F16 a, F16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline F16 mul(F16 a, F16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline F16 div(F16 a, F16 b) { return {_mm512_div_ps(a.v, b.v)}; }
inline F16 fma(F16 a, F16 b, F16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline F16 max(F16 a, F16 b) { return {_mm512_max_ps(a.v, b.v)}; }
inline F16 min(F16 a, F16 b) { return {_mm512_min_ps(a.v, b.v)}; }
inline F16 rint(F16 a) { return {_mm512_roundscale_ps(a.v, 8)}; }
inline F16 if_greater(F16 a, F16 b, F16 yes, F16 no) {
  return {_mm512_mask_mov_ps(no.v, _mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ), yes.v)};
}
inline u32 lanes_below(i64 n) { return n <= 0 ? 0u : n >= 16 ? 0xffffu : (1u << n) - 1; }
inline F16 keep(F16 a, i64 first, i64 last, F16 other) {
  return {_mm512_mask_mov_ps(other.v, static_cast<__mmask16>(lanes_below(last) & ~lanes_below(first)), a.v)};
}
inline F16 as_floats(I16 a) { return {_mm512_castsi512_ps(a.v)}; }
inline F16 to_floats(I16 a) { return {_mm512_cvtepi32_ps(a.v)}; }

inline void store_words(i32* p, I16 a) { _mm512_storeu_si512(p, a.v); }
inline I16 load_bytes(const i8* p) {
  return {_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
inline I16 load_words(const i32* p) { return {_mm512_loadu_si512(p)}; }
inline I16 words(i32 x) { return {_mm512_set1_epi32(x)}; }
inline I16 as_words(F16 a) { return {_mm512_castps_si512(a.v)}; }
inline I16 to_words(F16 a) { return {_mm512_cvttps_epi32(a.v)}; }
inline I16 add(I16 a, I16 b) { return {_mm512_add_epi32(a.v, b.v)}; }
inline I16 sub(I16 a, I16 b) { return {_mm512_sub_epi32(a.v, b.v)}; }
inline I16 mul(I16 a, I16 b) { return {_mm512_mullo_epi32(a.v, b.v)}; }
inline I16 bit_xor(I16 a, I16 b) { return {_mm512_xor_si512(a.v, b.v)}; }
inline I16 bit_and(I16 a, I16 b) { return {_mm512_and_si512(a.v, b.v)}; }
template <int N>
inline I16 shift_left(I16 a) {
  return {_mm512_slli_epi32(a.v, N)};
}
template <int N>
inline I16 shift_right(I16 a) {
  return {_mm512_srli_epi32(a.v, N)};
}
template <int N>
inline I16 shift_signed(I16 a) {
  return {_mm512_srai_epi32(a.v, N)};
}
inline void transpose(I16 (&rows)[16]) {
  __m512i a[16], b[16];
  for (int i = 0; i < 16; i += 2) {
    a[i] = _mm512_unpacklo_epi32(rows[i].v, rows[i + 1].v);
    a[i + 1] = _mm512_unpackhi_epi32(rows[i].v, rows[i + 1].v);
  }
  for (int i = 0; i < 16; i += 4)
    for (int h = 0; h < 2; h++) {
      b[i + 2 * h] = _mm512_unpacklo_epi64(a[i + h], a[i + 2 + h]);
      b[i + 2 * h + 1] = _mm512_unpackhi_epi64(a[i + h], a[i + 2 + h]);
    }
  // b[4 q + w]: in each of four lanes l, column 4 l + w of rows 4 q to 4 q + 3
  for (int w = 0; w < 4; w++) {
    const __m512i low = _mm512_shuffle_i32x4(b[w], b[4 + w], 0x88), high = _mm512_shuffle_i32x4(b[8 + w], b[12 + w], 0x88);
    const __m512i low2 = _mm512_shuffle_i32x4(b[w], b[4 + w], 0xdd), high2 = _mm512_shuffle_i32x4(b[8 + w], b[12 + w], 0xdd);
    rows[w].v = _mm512_shuffle_i32x4(low, high, 0x88);
    rows[4 + w].v = _mm512_shuffle_i32x4(low2, high2, 0x88);
    rows[8 + w].v = _mm512_shuffle_i32x4(low, high, 0xdd);
    rows[12 + w].v = _mm512_shuffle_i32x4(low2, high2, 0xdd);
  }
}
inline u32 greater_mask(F16 a, F16 b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ); }
inline u32 equal_mask(F16 a, F16 b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_EQ_OQ); }

inline float sum(F16 a) {
  const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
inline float largest(F16 a) { return _mm512_reduce_max_ps(a.v); }

#if defined(__AVX512BF16__)
// Takes what is denormal for 0, as all arithmetic here does.
inline __m256i to_bf16(F16 a) { return reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(a.v)); }
#else
inline __m256i to_bf16(F16 a) {
  const __m512i bits = _mm512_castps_si512(a.v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
  const __mmask16 is_nan = _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q);
  const __m512i high = _mm512_srli_epi32(_mm512_mask_mov_epi32(rounded, is_nan, quiet), 16);
  return _mm512_cvtepi32_epi16(high);
}
#endif
inline void store_bf16(u16* p, F16 a) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), to_bf16(a)); }
// bf16 at p[0], p[2], … p[30]; what lies between stays untouched.
inline void store_every_other(u16* p, F16 a) {
  _mm512_mask_storeu_epi16(p, 0x55555555, _mm512_srli_epi32(_mm512_castps_si512(a.v), 16));
}
// In assembly, so that the compiler leaves prefetches spread among the products as they are written.
HEADRACE_INLINE void prefetch_far(const void* p) { asm volatile("prefetcht1 %0" : : "m"(*static_cast<const char*>(p))); }

class FlushDenormals {
 public:
  FlushDenormals() : before_(_mm_getcsr()) { _mm_setcsr(before_ | 0x8040); }
  ~FlushDenormals() { _mm_setcsr(before_); }

 private:
  unsigned before_;
};

}  // namespace headrace::HEADRACE_NS
