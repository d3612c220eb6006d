// exp and log of headrace.ops.elementary, the same chain of single operations, so the same bits; and quicker
// powers of 2 for attention and activations.
#pragma once

namespace headrace::HEADRACE_NS {

// step(i) for each of N, unrolled.
template <int N, class Step>
HEADRACE_INLINE void each(Step step) {
#pragma GCC unroll 8
  for (int i = 0; i < N; i++) step(i);
}

inline float first_of(F16 x) {
  float lanes[16];
  store(lanes, x);
  return lanes[0];
}

// e^x in place, x first brought to [−87, 87]; NaN stays NaN. One vector's operations wait for each other, so several go
// abreast.
template <int N>
HEADRACE_INLINE void exp_each(F16 (&x)[N]) {
  F16 scale[N], total[N];
  auto horner = [&](float factor) { each<N>([&](int i) { total[i] = add(mul(total[i], x[i]), set(factor)); }); };
  each<N>([&](int i) { x[i] = min(set(87.0f), max(set(-87.0f), x[i])); });
  each<N>([&](int i) { scale[i] = rint(mul(x[i], set(1.4426950408889634f))); });
  each<N>([&](int i) { x[i] = sub(x[i], mul(scale[i], set(0.693115234375f))); });
  each<N>([&](int i) { x[i] = sub(x[i], mul(scale[i], set(3.194618329871446e-05f))); });
  each<N>([&](int i) { total[i] = set(0.001381446490995586f); });
  horner(0.008368780836462975f);
  horner(0.04166839271783829f);
  horner(0.1666651964187622f);
  horner(0.4999999403953552f);
  each<N>([&](int i) { total[i] = mul(mul(total[i], x[i]), x[i]); });
  each<N>([&](int i) { total[i] = add(add(total[i], x[i]), set(1.0f)); });
  each<N>([&](int i) {
    const I16 power = add(shift_left<23>(to_words(scale[i])), words(0x3F800000));
    x[i] = mul(total[i], as_floats(power));
  });
}

HEADRACE_INLINE F16 exp(F16 x) {
  F16 one[1] = {x};
  exp_each(one);
  return one[0];
}

inline float exp_of(float x) { return first_of(exp(set(x))); }

// 2^x in place for x of at most 126, from −126 on downwards 2^−126; NaN stays NaN. Relative error below 2^−22, and 2^0 is 1.
// Adding 1.5 · 2^23 rounds to a whole number, which then stands in the lowest bits.
template <int N>
HEADRACE_INLINE void exp2_each(F16 (&x)[N]) {
  F16 whole[N], total[N];
  auto horner = [&](float factor) { each<N>([&](int i) { total[i] = fma(total[i], x[i], set(factor)); }); };
  each<N>([&](int i) { x[i] = max(set(-126.0f), x[i]); });
  each<N>([&](int i) { whole[i] = add(x[i], set(12582912.0f)); });
  each<N>([&](int i) { x[i] = sub(x[i], sub(whole[i], set(12582912.0f))); });
  each<N>([&](int i) { total[i] = fma(x[i], set(0.001326472731307149f), set(0.009671512991189957f)); });
  horner(0.05550733581185341f);
  horner(0.24022242426872253f);
  horner(0.6931470036506653f);
  horner(1.0f);
  each<N>([&](int i) { x[i] = mul(total[i], as_floats(add(shift_left<23>(as_words(whole[i])), words(0x3F800000)))); });
}

inline float exp2_of(float x) {
  F16 one[1] = {set(x)};
  exp2_each(one);
  return first_of(one[0]);
}

// e^x as 2^(x · log2 e), quicker than exp; relative error below 2^−22 · (1 + |x|).
HEADRACE_INLINE F16 quick_exp(F16 x) {
  F16 one[1] = {min(set(126.0f), mul(x, set(1.44269504088896341f)))};
  exp2_each(one);
  return one[0];
}

// Natural logarithm of positive, normal, finite numbers.
inline F16 log(F16 x) {
  const I16 bits = as_words(x);
  const I16 exponent = shift_signed<23>(sub(bits, words(0x3F3504F3)));
  const F16 f = sub(as_floats(sub(bits, shift_left<23>(exponent))), set(1.0f));
  const F16 scale = to_floats(exponent);
  const F16 square = mul(f, f);
  F16 tail = add(mul(f, set(-0.07634429633617401f)), set(0.12761549651622772f));
  tail = add(mul(tail, f), set(-0.131601944565773f));
  tail = add(mul(tail, f), set(0.14201761782169342f));
  tail = add(mul(tail, f), set(-0.16623356938362122f));
  tail = add(mul(tail, f), set(0.20001226663589478f));
  tail = add(mul(tail, f), set(-0.250008225440979f));
  tail = add(mul(tail, f), set(0.3333333134651184f));
  tail = mul(mul(tail, f), square);
  tail = sub(tail, mul(square, set(0.5f)));
  tail = add(tail, mul(scale, set(3.194618329871446e-05f)));
  tail = add(tail, f);
  return add(tail, mul(scale, set(0.693115234375f)));
}

inline F16 negate(F16 x) { return sub(set(0.0f), x); }
inline F16 negate_bits(F16 x) { return as_floats(bit_xor(as_words(x), words(static_cast<i32>(0x80000000u)))); }
inline F16 absolute(F16 x) { return as_floats(bit_and(as_words(x), words(0x7fffffff))); }

// 1 − 2 / (e^2x + 1); near 0, where that cancels, the odd Taylor series up to x^7.
inline F16 tanh(F16 x) {
  const F16 far = sub(set(1.0f), div(set(2.0f), add(quick_exp(add(x, x)), set(1.0f))));
  const F16 square = mul(x, x);
  F16 tail = fma(square, set(-17.0f / 315.0f), set(2.0f / 15.0f));
  tail = fma(tail, square, set(-1.0f / 3.0f));
  const F16 near = fma(mul(tail, square), x, x);
  return if_greater(absolute(x), set(0.25f), far, if_greater(set(0.25f), absolute(x), near, far));
}

// erf by Abramowitz and Stegun 7.1.26, error below 1.5e-7.
inline F16 erf(F16 x) {
  const F16 a = absolute(x);
  const F16 t = div(set(1.0f), fma(a, set(0.3275911f), set(1.0f)));
  F16 p = fma(t, set(1.061405429f), set(-1.453152027f));
  p = fma(p, t, set(1.421413741f));
  p = fma(p, t, set(-0.284496736f));
  p = fma(p, t, set(0.254829592f));
  const F16 y = sub(set(1.0f), mul(mul(p, t), quick_exp(negate(mul(a, a)))));
  return if_greater(set(0.0f), x, negate(y), y);
}

HEADRACE_INLINE F16 silu(F16 x) { return div(x, add(set(1.0f), quick_exp(negate(x)))); }
inline F16 gelu(F16 x) {
  return mul(mul(x, set(0.5f)), add(set(1.0f), erf(mul(x, set(0.70710678118654752f)))));
}
inline F16 gelu_tanh(F16 x) {
  const F16 inner = mul(set(0.79788456080286536f), fma(mul(mul(x, x), x), set(0.044715f), x));
  return mul(mul(x, set(0.5f)), add(set(1.0f), tanh(inner)));
}
inline F16 relu(F16 x) { return max(set(0.0f), x); }

}  // namespace headrace::HEADRACE_NS
