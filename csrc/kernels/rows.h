// Loads and stores of activations, fp32 or bf16, whole vectors and tails.
#pragma once
#include <cstring>

namespace headrace::HEADRACE_NS {

inline F16 load_any(const float* p) { return load(p); }
inline F16 load_any(const u16* p) { return load_bf16(p); }
inline void store_any(float* p, F16 x) { store(p, x); }
inline void store_any(u16* p, F16 x) { store_bf16(p, x); }

// The first n < 16 values, zeros behind.
template <class T>
F16 load_some(const T* p, i64 n) {
  T room[16] = {};
  std::memcpy(room, p, n * sizeof(T));
  return load_any(room);
}
template <class T>
void store_some(T* p, F16 x, i64 n) {
  T room[16];
  store_any(room, x);
  std::memcpy(p, room, n * sizeof(T));
}

// body(offset, n) over [0, size) by 16; n < 16 only at the end.
template <class Body>
void by_sixteen(i64 size, Body&& body) {
  i64 i = 0;
  for (; i + 16 <= size; i += 16) body(i, i64{16});
  if (i < size) body(i, size - i);
}
template <class T>
F16 load_up_to(const T* p, i64 n) {
  return n == 16 ? load_any(p) : load_some(p, n);
}
template <class T>
void store_up_to(T* p, F16 x, i64 n) {
  if (n == 16) return store_any(p, x);
  store_some(p, x, n);
}

// Rows shared out in runs of about `values` values, so that small work stays on one thread.
constexpr i64 kRunValues = 8192;
template <class Body>
void for_rows(Team& team, i64 num_rows, i64 row_values, Body&& body) {
  const i64 run = row_values >= kRunValues ? 1 : kRunValues / (row_values > 0 ? row_values : 1);
  const i64 num_runs = ceil_div(num_rows, run);
  auto work = [&](i64 i) {
    const i64 end = (i + 1) * run < num_rows ? (i + 1) * run : num_rows;
    for (i64 r = i * run; r < end; r++) body(r);
  };
  if (num_runs <= 1) return team.solo([&] { for (i64 i = 0; i < num_runs; i++) work(i); });
  team.for_each(num_runs, work);
}

}  // namespace headrace::HEADRACE_NS
