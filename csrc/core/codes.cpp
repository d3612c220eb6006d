#include "core/codes.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace headrace {
namespace {

u32 word_at(const Integers& from, i64 index) {
  u32 word = 0;
  std::memcpy(&word, from.words + index * from.word_bytes, from.word_bytes);
  return word;
}

void read_integers(const Integers& from, i64 row, i64 k, i32* codes) {
  const int per_word = from.per_word(), mask = from.bits == 4 ? 15 : 255, flip = from.is_signed ? 0 : 128;
  const i64 base = (from.holds_rows ? row / per_word : row) * from.row_stride;
  for (i64 c = 0; c < k; c++) {
    const i64 inside = (from.holds_rows ? row : c) % per_word, column = from.holds_rows ? c : c / per_word;
    const int stored = word_at(from, base + column * from.column_stride) >> from.places[inside] * from.bits & mask;
    codes[c] = from.bits == 4 ? stored : static_cast<signed char>(stored ^ flip);
  }
}

bool are_halves(const float* values, i64 count) {
  for (i64 i = 0; i < count; i++)
    if (std::isfinite(values[i]) && half_to_float(float_to_half(values[i])) != values[i]) return false;
  return true;
}

constexpr int kGroup = 32;
constexpr int kFits = 4;

float nearest(float value) {  // whole number, ties to even, of magnitudes up to 2^22
  constexpr float kShift = 12582912.0f;
  return (value + kShift) - kShift;
}

float as_half(float value) { return half_to_float(float_to_half(value)); }

// Halves are joined until one number is left.
template <class Join>
float folded(const float* values, Join join) {
  float left[16];
  for (int i = 0; i < 16; i++) left[i] = join(values[i], values[i + 16]);
  for (int i = 0; i < 8; i++) left[i] = join(left[i], left[i + 8]);
  for (int i = 0; i < 4; i++) left[i] = join(left[i], left[i + 4]);
  return join(join(left[0], left[2]), join(left[1], left[3]));
}

float folded_sum(const float* values) {
  return folded(values, [](float a, float b) { return a + b; });
}
float least_of(const float* values) {
  return folded(values, [](float a, float b) { return a < b ? a : b; });
}
float most_of(const float* values) {
  return folded(values, [](float a, float b) { return a > b ? a : b; });
}

// Rounded, between two numbers.
float nearest_within(float value, float low, float high) {
  value = value > low ? value : low;
  return nearest(value < high ? value : high);
}

struct Rounded {
  float scale, minimum;
  float codes[kGroup];
};

void round_to_4_bits(const float* x, Rounded& to) {
  const float inverse = to.scale > 0 ? 1.0f / to.scale : 0.0f;
  for (int i = 0; i < kGroup; i++)
    to.codes[i] = nearest_within((x[i] - to.minimum) * inverse, 0.0f, 15.0f);
}

float squared_error(const float* x, const Rounded& rounded) {
  float squares[kGroup];
  for (int i = 0; i < kGroup; i++) {
    const float difference = x[i] - (rounded.codes[i] * rounded.scale + rounded.minimum);
    squares[i] = difference * difference;
  }
  return folded_sum(squares);
}

// Scale and minimum with the least squared error for integers that are given.
void fit(const float* x, Rounded& to) {
  const float mean_code = folded_sum(to.codes) / kGroup, mean = folded_sum(x) / kGroup;
  float squares[kGroup], products[kGroup];
  for (int i = 0; i < kGroup; i++) {
    const float code = to.codes[i] - mean_code;
    squares[i] = code * code;
    products[i] = code * (x[i] - mean);
  }
  const float square = folded_sum(squares);
  if (!(square > 0)) return;
  to.scale = as_half(folded_sum(products) / square);
  to.minimum = as_half(mean - to.scale * mean_code);
}

Rounded best_4_bits(const float* x) {
  const float low = least_of(x);
  Rounded best{as_half((most_of(x) - low) / 15), as_half(low), {}};
  round_to_4_bits(x, best);
  float least = squared_error(x, best);
  Rounded next = best;
  for (int i = 0; i < kFits; i++) {
    float before[kGroup];
    std::memcpy(before, next.codes, sizeof before);
    fit(x, next);
    round_to_4_bits(x, next);
    const float error = squared_error(x, next);
    if (error < least) {
      least = error;
      best = next;
    }
    if (std::memcmp(before, next.codes, sizeof before) == 0) break;  // all fits from here on are this one
  }
  return best;
}

Rounded best_8_bits(const float* x) {
  const float most = most_of(x), low = least_of(x);
  Rounded rounded{as_half((most > -low ? most : -low) / 127), 0, {}};
  const float inverse = rounded.scale > 0 ? 1.0f / rounded.scale : 0.0f;
  for (int i = 0; i < kGroup; i++) rounded.codes[i] = nearest_within(x[i] * inverse, -127.0f, 127.0f);
  return rounded;
}

// Whether a float16 holds numbers as large; none is NaN.
bool are_moderate(const float* x) {
  bool all = true;
  for (int i = 0; i < kGroup; i++) all &= std::fabs(x[i]) <= 65504.0f;
  return all;
}

void read_numbers(const void* values, Number type, i64 first, i64 count, float* to) {
  if (type == Number::f32) {
    std::memcpy(to, static_cast<const float*>(values) + first, count * 4);
    return;
  }
  const u16* words = static_cast<const u16*>(values) + first;
  for (i64 i = 0; i < count; i++) {
    const u32 wide = u32{words[i]} << 16;
    if (type == Number::f16) to[i] = half_to_float(words[i]);
    else std::memcpy(to + i, &wide, 4);
  }
}

void round_group(const float* x, i64 count, int bits, i32* codes, float& scale, float& minimum) {
  Rounded rounded{std::nanf(""), 0, {}};
  if (are_moderate(x)) rounded = bits == 4 ? best_4_bits(x) : best_8_bits(x);
  for (i64 i = 0; i < count; i++) codes[i] = static_cast<i32>(rounded.codes[i]);
  scale = rounded.scale;
  minimum = rounded.minimum;
}

}  // namespace

RowSource rows_of_integers(const Integers& from, const float* scales, const float* minimums, i64 n, i64 k, i64 group,
                           bool may_be_half) {
  const i64 num_groups = ceil_div(k, group);
  const bool is_half = may_be_half && are_halves(scales, n * num_groups) && (!minimums || are_halves(minimums, n * num_groups));
  const Form form{from.bits, group % 32 == 0 || group >= k ? 32 : 16, minimums != nullptr, is_half};
  return {n, form, [=](i64 row, i64 length, IntegerRow& to) {
            read_integers(from, row, k, to.codes.data());
            for (i64 g = 0; g * length < k; g++) {
              const i64 at = row * num_groups + g * length / group;
              to.scales[g] = scales[at];
              to.minimums[g] = minimums ? minimums[at] : 0.0f;
            }
          }};
}

RowSource rows_to_round(const void* values, Number type, i64 n, i64 k, int bits) {
  return {n, {bits, kGroup, bits == 4, true}, [=](i64 row, i64 length, IntegerRow& to) {
            float x[kGroup];
            for (i64 start = 0; start < k; start += kGroup) {
              const i64 count = std::min<i64>(kGroup, k - start);
              read_numbers(values, type, row * k + start, count, x);
              for (i64 i = count; i < kGroup; i++) x[i] = x[count - 1];
              float scale, minimum;
              round_group(x, count, bits, to.codes.data() + start, scale, minimum);
              for (i64 g = start / length; g * length < start + count; g++) {
                to.scales[g] = scale;
                to.minimums[g] = minimum;
              }
            }
          }};
}

}  // namespace headrace
