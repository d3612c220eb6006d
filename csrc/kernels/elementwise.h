// Norms, gates, sums, rotation, rows by index: each row by itself, in chunks of 16 from its start.
#pragma once

namespace headrace::HEADRACE_NS {

// Lane j is the FMA chain over values ≡ j mod 16, lanes summed pairwise.
template <class T>
float sum_of_squares(const T* x, i64 size) {
  F16 total = set(0.0f);
  by_sixteen(size, [&](i64 i, i64 n) {
    const F16 v = load_up_to(x + i, n);
    total = fma(v, v, total);
  });
  return sum(total);
}

template <class In, class Out>
void norm_row(const In* x, const float* weight, Out* y, i64 dim, float eps, float offset) {
  const float mean = sum_of_squares(x, dim) / static_cast<float>(dim);
  const F16 scale = set(1.0f / __builtin_sqrtf(mean + eps)), added = set(offset);
  by_sixteen(dim, [&](i64 i, i64 n) {
    const F16 factor = add(load_up_to(weight + i, n), added);
    store_up_to(y + i, mul(mul(load_up_to(x + i, n), scale), factor), n);
  });
}

// x less `mean`, zeros behind the end.
template <class T>
F16 centered(const T* x, F16 mean, i64 n) {
  return keep(sub(load_up_to(x, n), mean), 0, n, set(0.0f));
}

template <class In, class Out>
void layer_norm_row(const In* x, const float* weight, const float* bias, Out* y, i64 dim, float eps) {
  F16 total = set(0.0f), squares = set(0.0f);
  by_sixteen(dim, [&](i64 i, i64 n) { total = add(total, load_up_to(x + i, n)); });
  const F16 mean = set(sum(total) / static_cast<float>(dim));
  by_sixteen(dim, [&](i64 i, i64 n) {
    const F16 d = centered(x + i, mean, n);
    squares = fma(d, d, squares);
  });
  const F16 scale = set(1.0f / __builtin_sqrtf(sum(squares) / static_cast<float>(dim) + eps));
  by_sixteen(dim, [&](i64 i, i64 n) {
    const F16 normed = mul(centered(x + i, mean, n), scale);
    store_up_to(y + i, add(mul(normed, load_up_to(weight + i, n)), load_up_to(bias + i, n)), n);
  });
}

template <class In, class Out>
void layer_norm_as(const LayerNorm& op, Team& team) {
  for_rows(team, op.x.rows, op.x.cols, [&](i64 r) {
    layer_norm_row(op.x.row<In>(r), op.weight, op.bias, op.y.row<Out>(r), op.x.cols, op.eps);
  });
}

template <class T, class Other>
void add_row(const T* x, const Other* y, T* out, i64 size) {
  by_sixteen(size, [&](i64 i, i64 n) { store_up_to(out + i, add(load_up_to(x + i, n), load_up_to(y + i, n)), n); });
}

template <class In, class Out>
void rms_norm_as(const RmsNorm& op, Team& team) {
  for_rows(team, op.x.rows, op.x.cols, [&](i64 r) {
    const In* x = op.x.row<In>(r);
    for (i64 i = 0; i < op.x.cols; i += op.dim)
      norm_row(x + i, op.weight, op.y.row<Out>(r) + i, op.dim, op.eps, op.offset);
  });
}

// body.operator()<gate>() with the function of an activation.
template <class Body>
void with_gate(Activation activation, Body&& body) {
  switch (activation) {
    case Activation::silu: return body.template operator()<silu>();
    case Activation::gelu: return body.template operator()<gelu>();
    case Activation::gelu_tanh: return body.template operator()<gelu_tanh>();
    case Activation::relu: return body.template operator()<relu>();
  }
}

template <class T>
void glu_as(const Glu& op, Team& team) {
  const i64 inner = op.y.cols;
  with_gate(op.activation, [&]<F16 (*Gate)(F16)>() {
    for_rows(team, op.y.rows, 4 * inner, [&](i64 r) {
      const T *gate = op.gate_up.row<T>(r), *up = gate + inner;
      T* y = op.y.row<T>(r);
      by_sixteen(inner, [&](i64 i, i64 n) {
        store_up_to(y + i, mul(Gate(load_up_to(gate + i, n)), load_up_to(up + i, n)), n);
      });
    });
  });
}

template <class T>
void activate_as(const Activate& op, Team& team) {
  with_gate(op.activation, [&]<F16 (*Gate)(F16)>() {
    for_rows(team, op.y.rows, 4 * op.y.cols, [&](i64 r) {
      const T* x = op.x.row<T>(r);
      T* y = op.y.row<T>(r);
      by_sixteen(op.y.cols, [&](i64 i, i64 n) { store_up_to(y + i, Gate(load_up_to(x + i, n)), n); });
    });
  });
}

inline void cap(const Cap& op, Team& team) {
  FlushDenormals flush;
  const F16 factor = set(op.factor), limit = set(op.soft_cap);
  for_rows(team, op.x.rows, 4 * op.x.cols, [&](i64 r) {
    float* x = op.x.row<float>(r);
    by_sixteen(op.x.cols, [&](i64 i, i64 n) {
      const F16 scaled = mul(load_up_to(x + i, n), factor);
      store_up_to(x + i, op.soft_cap > 0 ? mul(tanh(div(scaled, limit)), limit) : scaled, n);
    });
  });
}

template <class T, class Other>
void add_as(const Add& op, Team& team) {
  for_rows(team, op.out.rows, op.out.cols,
           [&](i64 r) { add_row(op.x.row<T>(r), op.y.row<Other>(r), op.out.row<T>(r), op.out.cols); });
}

template <class T>
void scale_as(const Scale& op, Team& team) {
  const F16 factor = set(op.factor);
  for_rows(team, op.out.rows, op.out.cols, [&](i64 r) {
    by_sixteen(op.out.cols, [&](i64 i, i64 n) {
      store_up_to(op.out.row<T>(r) + i, mul(load_up_to(op.x.row<T>(r) + i, n), factor), n);
    });
  });
}

template <class T>
void rotate_head(const T* x, T* out, const float* cosines, const float* sines, i64 half) {
  by_sixteen(half, [&](i64 i, i64 n) {
    const F16 a = load_up_to(x + i, n), b = load_up_to(x + half + i, n);
    const F16 c = load_up_to(cosines + i, n), s = load_up_to(sines + i, n);
    store_up_to(out + i, sub(mul(a, c), mul(b, s)), n);
    store_up_to(out + half + i, add(mul(b, c), mul(a, s)), n);
  });
}

template <class T>
void rotate_as(const Rotate& op, Team& team) {
  const i64 half = op.turned / 2, rest = op.dim - 2 * half;
  for_rows(team, op.x.rows, op.num_heads * op.dim, [&](i64 r) {
    const float* angles = op.angles + r * op.turned;
    for (i64 h = 0; h < op.num_heads; h++) {
      const T* x = op.x.row<T>(r) + h * op.dim;
      T* out = op.out.row<T>(r) + h * op.dim;
      rotate_head(x, out, angles, angles + half, half);
      if (rest && out != x) std::memcpy(out + 2 * half, x + 2 * half, rest * sizeof(T));
    }
  });
}

inline void embed_row_bf16(const PackedWeight& w, i64 id, float* y) {
  const u16* base = w.data.as<u16>() + id / kColumns * w.k_padded * kColumns;
  for (i64 k = 0; k < w.k; k++) {
    const u32 bits = u32{base[w.value_at(id % kColumns, place_of(k, w.is_chained))]} << 16;
    std::memcpy(y + k, &bits, 4);
  }
}

inline float code_of(const PackedWeight& w, i64 id, i64 column) {
  const i64 place = place_of(column, w.is_chained);
  const u32* words = w.data.as<u32>() + id / kColumns * w.k_padded * w.bits;
  const u32 bits = words[w.word_at(id % kColumns, place)] >> w.shift_of(place);
  return w.bits == 4 ? static_cast<float>(bits & 15) : static_cast<float>(static_cast<signed char>(bits));
}

inline float scale_of(const PackedWeight& w, const char* group, i64 column) {
  return w.is_half ? half_to_float(reinterpret_cast<const u16*>(group)[column]) : reinterpret_cast<const float*>(group)[column];
}

inline void embed_row_of_integers(const PackedWeight& w, i64 id, float* y) {
  const char* group = w.scales.as<char>() + id / kColumns * (w.k_padded / w.group) * w.group_bytes();
  for (i64 first = 0; first < w.k; first += w.group, group += w.group_bytes()) {
    const float scale = scale_of(w, group, id % kColumns);
    const float minimum = w.has_minimum ? scale_of(w, group + kColumns * w.scale_bytes(), id % kColumns) : 0.0f;
    for (i64 k = first; k < first + w.group && k < w.k; k++) y[k] = __builtin_fmaf(code_of(w, id, k), scale, minimum);
  }
}

// Into f32, whatever the table holds.
inline void embed(const Embed& op, Team& team) {
  const PackedWeight& w = *op.table;
  for_rows(team, op.y.rows, op.y.cols, [&](i64 r) {
    const i64 id = op.token_ids[r];
    float* y = op.y.row<float>(r);
    if (w.bits) return embed_row_of_integers(w, id, y);
    if (w.type == Type::bf16) return embed_row_bf16(w, id, y);
    std::memcpy(y, w.data.as<float>() + id * w.k_padded, w.k * 4);
  });
}

inline void gather(const Gather& op, Team& team) {
  const i64 bytes = op.out.cols * item_bytes(op.out.type);
  for_rows(team, op.out.rows, op.out.cols, [&](i64 r) {
    const char* from = static_cast<const char*>(op.x.data) + op.rows[r] * op.x.stride * item_bytes(op.x.type);
    std::memcpy(static_cast<char*>(op.out.data) + r * op.out.stride * item_bytes(op.out.type), from, bytes);
  });
}

#define HEADRACE_BY_TYPE(name, Op, which)                       \
  inline void name(const Op& op, Team& team) {                  \
    FlushDenormals flush;                                       \
    if (op.which.type == Type::f32) return name##_as<float>(op, team); \
    name##_as<u16>(op, team);                                   \
  }
HEADRACE_BY_TYPE(activate, Activate, y)
HEADRACE_BY_TYPE(glu, Glu, y)
HEADRACE_BY_TYPE(scale, Scale, out)
HEADRACE_BY_TYPE(rotate, Rotate, out)
#undef HEADRACE_BY_TYPE

// A step's residual is f32 though its products take bf16.
#define HEADRACE_BY_TWO_TYPES(name, Op, first, second)                                                   \
  inline void name(const Op& op, Team& team) {                                                           \
    FlushDenormals flush;                                                                                \
    if (op.first.type == Type::bf16) return name##_as<u16, u16>(op, team);                               \
    if (op.second.type == Type::bf16) return name##_as<float, u16>(op, team);                            \
    name##_as<float, float>(op, team);                                                                   \
  }
HEADRACE_BY_TWO_TYPES(rms_norm, RmsNorm, x, y)
HEADRACE_BY_TWO_TYPES(layer_norm, LayerNorm, x, y)
HEADRACE_BY_TWO_TYPES(add, Add, x, y)
#undef HEADRACE_BY_TWO_TYPES

}  // namespace headrace::HEADRACE_NS
