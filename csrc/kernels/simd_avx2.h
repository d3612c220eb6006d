// Sixteen lanes in two AVX2 registers, with FMA. The meaning of each function: simd_portable.h.
#pragma once
#include <immintrin.h>

#include "core/types.h"

namespace headrace::HEADRACE_NS {

struct F16 {
  __m256 a, b;
};
struct I16 {
  __m256i a, b;
};
constexpr int kVectors = 8;

inline __m256i load_half(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
inline F16 cast(__m256i a, __m256i b) { return {_mm256_castsi256_ps(a), _mm256_castsi256_ps(b)}; }
inline F16 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline F16 load_bf16(const u16* p) {
  const __m256i low = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  const __m256i high = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)));
  return cast(_mm256_slli_epi32(low, 16), _mm256_slli_epi32(high, 16));
}
inline F16 load_even(const u16* p) {
  return cast(_mm256_slli_epi32(load_half(p), 16), _mm256_slli_epi32(load_half(p + 16), 16));
}
inline F16 load_odd(const u16* p) {
  const __m256i mask = _mm256_set1_epi32(static_cast<int>(0xffff0000));
  return cast(_mm256_and_si256(load_half(p), mask), _mm256_and_si256(load_half(p + 16), mask));
}
inline F16 load_f16(const u16* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
          _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
}
inline F16 nibble(I16 words, int shift) {
  const __m256i low = _mm256_set1_epi32(15);
  return {_mm256_cvtepi32_ps(_mm256_and_si256(_mm256_srli_epi32(words.a, shift), low)),
          _mm256_cvtepi32_ps(_mm256_and_si256(_mm256_srli_epi32(words.b, shift), low))};
}
inline F16 octet(I16 words, int shift) {
  return {_mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(words.a, 24 - shift), 24)),
          _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(words.b, 24 - shift), 24))};
}
inline F16 set(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline void store(float* p, F16 x) {
  _mm256_storeu_ps(p, x.a);
  _mm256_storeu_ps(p + 8, x.b);
}
inline F16 add(F16 x, F16 y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
inline F16 sub(F16 x, F16 y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
inline F16 mul(F16 x, F16 y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
inline F16 div(F16 x, F16 y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
inline F16 fma(F16 x, F16 y, F16 z) { return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)}; }
inline F16 max(F16 x, F16 y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
inline F16 min(F16 x, F16 y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
inline F16 rint(F16 x) { return {_mm256_round_ps(x.a, 8), _mm256_round_ps(x.b, 8)}; }
inline F16 if_greater(F16 x, F16 y, F16 yes, F16 no) {
  return {_mm256_blendv_ps(no.a, yes.a, _mm256_cmp_ps(x.a, y.a, _CMP_GT_OQ)),
          _mm256_blendv_ps(no.b, yes.b, _mm256_cmp_ps(x.b, y.b, _CMP_GT_OQ))};
}
inline __m256 lanes_within(i64 first, i64 last) {
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const int low = static_cast<int>(first < 0 ? 0 : first > 8 ? 8 : first);
  const int high = static_cast<int>(last < 0 ? 0 : last > 8 ? 8 : last);
  const __m256i inside = _mm256_andnot_si256(_mm256_cmpgt_epi32(_mm256_set1_epi32(low), lane),
                                             _mm256_cmpgt_epi32(_mm256_set1_epi32(high), lane));
  return _mm256_castsi256_ps(inside);
}
inline F16 keep(F16 x, i64 first, i64 last, F16 other) {
  return {_mm256_blendv_ps(other.a, x.a, lanes_within(first, last)),
          _mm256_blendv_ps(other.b, x.b, lanes_within(first - 8, last - 8))};
}
inline F16 as_floats(I16 x) { return cast(x.a, x.b); }
inline F16 to_floats(I16 x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }

inline void store_words(i32* p, I16 x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), x.a);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 8), x.b);
}
inline I16 load_bytes(const i8* p) {
  return {_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))),
          _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p + 8)))};
}
inline I16 load_words(const i32* p) { return {load_half(p), load_half(p + 8)}; }
inline I16 words(i32 x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
inline I16 as_words(F16 x) { return {_mm256_castps_si256(x.a), _mm256_castps_si256(x.b)}; }
inline I16 to_words(F16 x) { return {_mm256_cvttps_epi32(x.a), _mm256_cvttps_epi32(x.b)}; }
inline I16 add(I16 x, I16 y) { return {_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)}; }
inline I16 sub(I16 x, I16 y) { return {_mm256_sub_epi32(x.a, y.a), _mm256_sub_epi32(x.b, y.b)}; }
inline I16 mul(I16 x, I16 y) { return {_mm256_mullo_epi32(x.a, y.a), _mm256_mullo_epi32(x.b, y.b)}; }
inline I16 bit_xor(I16 x, I16 y) { return {_mm256_xor_si256(x.a, y.a), _mm256_xor_si256(x.b, y.b)}; }
inline I16 bit_and(I16 x, I16 y) { return {_mm256_and_si256(x.a, y.a), _mm256_and_si256(x.b, y.b)}; }
template <int N>
inline I16 shift_left(I16 x) {
  return {_mm256_slli_epi32(x.a, N), _mm256_slli_epi32(x.b, N)};
}
template <int N>
inline I16 shift_right(I16 x) {
  return {_mm256_srli_epi32(x.a, N), _mm256_srli_epi32(x.b, N)};
}
template <int N>
inline I16 shift_signed(I16 x) {
  return {_mm256_srai_epi32(x.a, N), _mm256_srai_epi32(x.b, N)};
}
inline u32 bits_of(__m256 low, __m256 high) {
  return static_cast<u32>(_mm256_movemask_ps(low)) | static_cast<u32>(_mm256_movemask_ps(high)) << 8;
}
inline u32 greater_mask(F16 x, F16 y) {
  return bits_of(_mm256_cmp_ps(x.a, y.a, _CMP_GT_OQ), _mm256_cmp_ps(x.b, y.b, _CMP_GT_OQ));
}
inline u32 equal_mask(F16 x, F16 y) {
  return bits_of(_mm256_cmp_ps(x.a, y.a, _CMP_EQ_OQ), _mm256_cmp_ps(x.b, y.b, _CMP_EQ_OQ));
}

inline float sum(F16 x) {
  const __m256 eight = _mm256_add_ps(x.a, x.b);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
inline float largest(F16 x) {
  const __m256 eight = _mm256_max_ps(x.a, x.b);
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

inline __m256i rounded_half(__m256 x) {
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  return _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, is_nan), 16);
}
inline void store_bf16(u16* p, F16 x) {
  const __m256i packed = _mm256_packus_epi32(rounded_half(x.a), rounded_half(x.b));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(packed, 0xd8));
}
// bf16 at p[0], p[2], … p[30]; what lies between stays untouched.
inline void store_every_other(u16* p, F16 a) {
  u16 room[16];
  store_bf16(room, a);
  for (int i = 0; i < 16; i++) p[2 * i] = room[i];
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
