// Words of all native code: number types, views of rows, and the arguments of one step.
#pragma once
#include <cstddef>
#include <cstdint>

// GCC takes a function that only prefetches for one without effect: were it not inlined early, its calls are dropped.
#define HEADRACE_INLINE inline __attribute__((always_inline))
#define HEADRACE_INLINE_LAMBDA __attribute__((always_inline))
#define HEADRACE_NOINLINE __attribute__((noinline))

namespace headrace {

using i8 = std::int8_t;
using i32 = std::int32_t;
using i64 = std::int64_t;
using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;

inline float half_to_float(u16 half) {
  const u32 sign = u32{half} >> 15 << 31, exponent = half >> 10 & 31, fraction = half & 1023;
  if (exponent == 0) return (sign ? -1.0f : 1.0f) * static_cast<float>(fraction) * 5.9604644775390625e-8f;
  const u32 bits = sign | (exponent == 31 ? 255u : exponent + 112) << 23 | fraction << 13;
  float value;
  __builtin_memcpy(&value, &bits, sizeof value);
  return value;
}

// Rounded to nearest, ties to even; too large is infinite.
inline u16 float_to_half(float value) {
  u32 bits;
  __builtin_memcpy(&bits, &value, sizeof bits);
  const u32 sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return static_cast<u16>(sign | 0x7e00);
  if (magnitude >= 0x47800000) return static_cast<u16>(sign | 0x7c00);
  if (magnitude >= 0x38800000) return static_cast<u16>(sign | (magnitude + 0xfff + (magnitude >> 13 & 1) - 0x38000000) >> 13);
  float small;  // units of the smallest float16 join the last place of 2^23
  __builtin_memcpy(&small, &magnitude, sizeof small);
  small = small * 16777216.0f + 8388608.0f;
  __builtin_memcpy(&bits, &small, sizeof bits);
  return static_cast<u16>(sign | (bits - 0x4b000000));
}

// Where k lies within its group of four. Chained: 2, 0, 3, 1 behind one another, so that VDPBF16PS, which adds the
// product of a pair's second elements and then that of its first, runs through the even k of a tile in order with every
// other pair, and through the odd ones with the rest.
inline i64 place_of(i64 k, bool is_chained) { return is_chained ? (k & ~i64{3}) | (0x2031 >> (k & 3) * 4 & 3) : k; }

enum class Type : int { f32, bf16 };

inline i64 item_bytes(Type type) { return type == Type::f32 ? 4 : 2; }
inline i64 ceil_div(i64 a, i64 b) { return (a + b - 1) / b; }
inline i64 round_up(i64 a, i64 b) { return ceil_div(a, b) * b; }

// rows × cols values of `type`, a row behind another by `stride` values; within a row they are dense.
struct View {
  void* data = nullptr;
  i64 rows = 0, cols = 0, stride = 0;
  Type type = Type::bf16;

  template <class T>
  T* row(i64 r) const {
    return static_cast<T*>(data) + r * stride;
  }
  View part(i64 first, i64 count) const {
    return {static_cast<char*>(data) + first * stride * item_bytes(type), count, cols, stride, type};
  }
};

// StepInputs of headrace.ops.base: T tokens of S segments, block tables of B columns.
struct Step {
  i64 num_tokens = 0, num_segments = 0, table_width = 0;
  const i32* token_ids = nullptr;
  const i32* positions = nullptr;
  const i64* slots = nullptr;
  const i32* query_starts = nullptr;
  const i32* context_lens = nullptr;
  const i32* block_tables = nullptr;
  const i32* first_wanted = nullptr;  // [S] from which token of a segment on results are wanted; null: from its first
};

}  // namespace headrace
