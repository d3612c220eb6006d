// Sixteen lanes in plain C++: the bit oracle of the vector versions and the only path on other processors.
#pragma once
#include <cmath>
#include <cstring>

#include "core/types.h"
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace headrace::HEADRACE_NS {

struct F16 {
  float v[16];
};
struct I16 {
  i32 v[16];
};
constexpr int kVectors = 32;  // registers of 16 lanes; here it only sizes blocks

inline float as_float(u32 bits) {
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}
inline u32 as_bits(float x) {
  u32 bits;
  std::memcpy(&bits, &x, 4);
  return bits;
}

#define HEADRACE_LANES(expression)         \
  {                                        \
    F16 out;                               \
    for (int i = 0; i < 16; i++) out.v[i] = (expression); \
    return out;                            \
  }
#define HEADRACE_WORDS(expression)         \
  {                                        \
    I16 out;                               \
    for (int i = 0; i < 16; i++) out.v[i] = static_cast<i32>(expression); \
    return out;                            \
  }

inline F16 load(const float* p) HEADRACE_LANES(p[i])
inline F16 load_bf16(const u16* p) HEADRACE_LANES(as_float(u32{p[i]} << 16))
inline F16 load_even(const u16* p) HEADRACE_LANES(as_float(u32{p[2 * i]} << 16))
inline F16 load_odd(const u16* p) HEADRACE_LANES(as_float(u32{p[2 * i + 1]} << 16))
inline F16 load_f16(const u16* p) HEADRACE_LANES(half_to_float(p[i]))
inline F16 nibble(I16 a, int shift) HEADRACE_LANES(static_cast<float>(static_cast<u32>(a.v[i]) >> shift & 15))
inline F16 octet(I16 a, int shift) HEADRACE_LANES(static_cast<float>(static_cast<signed char>(static_cast<u32>(a.v[i]) >> shift)))
inline I16 load_bytes(const i8* p) HEADRACE_WORDS(p[i])
inline F16 set(float x) HEADRACE_LANES(x)
inline void store(float* p, F16 a) { std::memcpy(p, a.v, 64); }
inline F16 add(F16 a, F16 b) HEADRACE_LANES(a.v[i] + b.v[i])
inline F16 sub(F16 a, F16 b) HEADRACE_LANES(a.v[i] - b.v[i])
inline F16 mul(F16 a, F16 b) HEADRACE_LANES(a.v[i] * b.v[i])
inline F16 div(F16 a, F16 b) HEADRACE_LANES(a.v[i] / b.v[i])
inline F16 fma(F16 a, F16 b, F16 c) HEADRACE_LANES(__builtin_fmaf(a.v[i], b.v[i], c.v[i]))
// The second operand where one is NaN, as the vector instructions do.
inline F16 max(F16 a, F16 b) HEADRACE_LANES(a.v[i] > b.v[i] ? a.v[i] : b.v[i])
inline F16 min(F16 a, F16 b) HEADRACE_LANES(a.v[i] < b.v[i] ? a.v[i] : b.v[i])
inline F16 rint(F16 a) HEADRACE_LANES(__builtin_nearbyintf(a.v[i]))
inline F16 if_greater(F16 a, F16 b, F16 yes, F16 no) HEADRACE_LANES(a.v[i] > b.v[i] ? yes.v[i] : no.v[i])
// Lanes [first, last) of a, `other` elsewhere.
inline F16 keep(F16 a, i64 first, i64 last, F16 other) HEADRACE_LANES(i >= first && i < last ? a.v[i] : other.v[i])
inline F16 as_floats(I16 a) HEADRACE_LANES(as_float(static_cast<u32>(a.v[i])))
inline F16 to_floats(I16 a) HEADRACE_LANES(static_cast<float>(a.v[i]))

inline void store_words(i32* p, I16 a) { std::memcpy(p, a.v, 64); }
inline I16 load_words(const i32* p) HEADRACE_WORDS(p[i])
inline I16 words(i32 x) HEADRACE_WORDS(x)
inline I16 as_words(F16 a) HEADRACE_WORDS(as_bits(a.v[i]))
inline I16 to_words(F16 a) HEADRACE_WORDS(a.v[i])
inline I16 add(I16 a, I16 b) HEADRACE_WORDS(static_cast<u32>(a.v[i]) + static_cast<u32>(b.v[i]))
inline I16 sub(I16 a, I16 b) HEADRACE_WORDS(static_cast<u32>(a.v[i]) - static_cast<u32>(b.v[i]))
inline I16 mul(I16 a, I16 b) HEADRACE_WORDS(static_cast<u32>(a.v[i]) * static_cast<u32>(b.v[i]))
inline I16 bit_xor(I16 a, I16 b) HEADRACE_WORDS(a.v[i] ^ b.v[i])
inline I16 bit_and(I16 a, I16 b) HEADRACE_WORDS(a.v[i] & b.v[i])
template <int N>
inline I16 shift_left(I16 a) HEADRACE_WORDS(static_cast<u32>(a.v[i]) << N)
template <int N>
inline I16 shift_right(I16 a) HEADRACE_WORDS(static_cast<u32>(a.v[i]) >> N)
template <int N>
inline I16 shift_signed(I16 a) HEADRACE_WORDS(a.v[i] >> N)
#undef HEADRACE_LANES
#undef HEADRACE_WORDS

// Bit i is set where a > b.
inline u32 greater_mask(F16 a, F16 b) {
  u32 mask = 0;
  for (int i = 0; i < 16; i++) mask |= static_cast<u32>(a.v[i] > b.v[i]) << i;
  return mask;
}
inline u32 equal_mask(F16 a, F16 b) {
  u32 mask = 0;
  for (int i = 0; i < 16; i++) mask |= static_cast<u32>(a.v[i] == b.v[i]) << i;
  return mask;
}

// Lanes i and i + 8, then i + 4, i + 2, i + 1.
inline float sum(F16 a) {
  for (int half = 8; half; half /= 2)
    for (int i = 0; i < half; i++) a.v[i] += a.v[i + half];
  return a.v[0];
}
inline float largest(F16 a) {
  float best = a.v[0];
  for (int i = 1; i < 16; i++) best = a.v[i] > best ? a.v[i] : best;
  return best;
}

// To nearest, ties to even; NaN stays NaN.
inline u16 round_bf16(float x) {
  const u32 bits = as_bits(x);
  if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<u16>((bits >> 16) | 0x40);
  return static_cast<u16>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}
inline void store_bf16(u16* p, F16 a) {
  for (int i = 0; i < 16; i++) p[i] = round_bf16(a.v[i]);
}
// bf16 at p[0], p[2], … p[30]; what lies between stays untouched.
inline void store_every_other(u16* p, F16 a) {
  u16 room[16];
  store_bf16(room, a);
  for (int i = 0; i < 16; i++) p[2 * i] = room[i];
}
HEADRACE_INLINE void prefetch_far(const void* p) { __builtin_prefetch(p, 0, 2); }  // no further than the second cache

// Denormals are zero, as inputs and as results, while one lives; afterwards the mode is what it was.
class FlushDenormals {
 public:
#if defined(__x86_64__)
  FlushDenormals() : before_(_mm_getcsr()) { _mm_setcsr(before_ | 0x8040); }
  ~FlushDenormals() { _mm_setcsr(before_); }

 private:
  unsigned before_;
#elif defined(__aarch64__)
  FlushDenormals() {
    asm volatile("mrs %0, fpcr" : "=r"(before_));
    asm volatile("msr fpcr, %0" ::"r"(before_ | (u64{1} << 24)));
  }
  ~FlushDenormals() { asm volatile("msr fpcr, %0" ::"r"(before_)); }

 private:
  u64 before_;
#else
  FlushDenormals() {}
#endif
};

}  // namespace headrace::HEADRACE_NS
