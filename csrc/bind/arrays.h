// numpy arrays as views: uint16 holds bf16. What does not fit is a Python ValueError, never a wrong read.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <stdexcept>
#include <string>

#include "core/ops.h"

namespace headrace {

namespace nb = nanobind;
using Array = nb::ndarray<nb::device::cpu>;           // written to
using Input = nb::ndarray<nb::ro, nb::device::cpu>;  // only read
using Ints = nb::ndarray<const i32, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Longs = nb::ndarray<const i64, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Table = nb::ndarray<const i32, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using FloatRows = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

inline void require(bool holds, const char* what) {
  if (!holds) throw std::invalid_argument(what);
}

template <class Any>
Type type_of(const Any& a) {
  if (a.dtype() == nb::dtype<float>()) return Type::f32;
  require(a.dtype() == nb::dtype<u16>(), "activations are float32, or bfloat16 held as uint16");
  return Type::bf16;
}

// [rows, …] as rows × everything behind; all dimensions but the first must be dense.
template <class Any>
View view_of(const Any& a) {
  require(a.ndim() >= 2, "an activation has rows and columns");
  i64 cols = 1;
  for (std::size_t d = a.ndim(); d-- > 1;) {
    require(a.stride(d) == cols || a.shape(d) == 1, "an activation's rows must be dense");
    cols *= static_cast<i64>(a.shape(d));
  }
  const i64 rows = static_cast<i64>(a.shape(0));
  return {const_cast<void*>(static_cast<const void*>(a.data())), rows, cols, rows > 1 ? a.stride(0) : cols, type_of(a)};
}

inline void require_same(const View& a, const View& b, const char* what) {
  require(a.rows == b.rows && a.cols == b.cols && a.type == b.type, what);
}

// b may be bf16 where a is f32.
inline void require_narrower(const View& a, const View& b, const char* what) {
  require(a.rows == b.rows && a.cols == b.cols && (a.type == b.type || a.type == Type::f32), what);
}

}  // namespace headrace
