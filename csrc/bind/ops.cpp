// The ops over numpy arrays, one call each, the GIL released.
#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include "bind/arrays.h"
#include "bind/owned.h"
#include "bind/step.h"
#include "core/experts.h"

namespace headrace {
namespace {

template <class Op>
void run(Machine& machine, void (*kernel)(const Op&, Team&), const Op& op) {
  nb::gil_scoped_release release;
  machine.pool.run([&](Team& team) { kernel(op, team); });
}

void linear(Machine& machine, const Input& x, const PackedWeight& weight, const nb::object& bias, const Array& y) {
  require_owned(machine, weight);
  const View in = view_of(x), out = view_of(y);
  require(in.rows == out.rows && in.cols == weight.k && out.cols == weight.n, "linear: shapes do not fit");
  require((in.type == weight.type || in.type == Type::f32) && (out.type == weight.type || out.type == Type::f32), "linear: types do not fit");
  const float* added = nullptr;
  Floats values;
  if (!bias.is_none()) {
    values = nb::cast<Floats>(bias);
    require(static_cast<i64>(values.shape(0)) == weight.n, "linear: the bias does not fit");
    added = values.data();
  }
  run(machine, machine.kernels.linear, Linear{in, &weight, added, out});
}

void embed(Machine& machine, const Ints& token_ids, const PackedWeight& table, const Array& y) {
  const View out = view_of(y);
  require(out.rows == static_cast<i64>(token_ids.shape(0)) && out.cols == table.k && out.type == Type::f32,
          "embed: shapes or types do not fit");
  for (i64 i = 0; i < out.rows; i++)
    require(token_ids.data()[i] >= 0 && token_ids.data()[i] < table.n, "embed: no such token id");
  run(machine, machine.kernels.embed, Embed{token_ids.data(), &table, out});
}

void rms_norm(Machine& machine, const Input& x, const Floats& weight, float eps, float offset, const Array& y) {
  const View in = view_of(x), out = view_of(y);
  const i64 dim = static_cast<i64>(weight.shape(0));
  require_narrower(in, out, "rms_norm: shapes or types do not fit");
  require(dim > 0 && in.cols % dim == 0, "rms_norm: the weight does not fit");
  run(machine, machine.kernels.rms_norm, RmsNorm{in, out, weight.data(), dim, eps, offset});
}

void layer_norm(Machine& machine, const Input& x, const Floats& weight, const Floats& bias, float eps, const Array& y) {
  const View in = view_of(x), out = view_of(y);
  require_narrower(in, out, "layer_norm: shapes or types do not fit");
  require(static_cast<i64>(weight.shape(0)) == in.cols && static_cast<i64>(bias.shape(0)) == in.cols,
          "layer_norm: weight or bias do not fit");
  run(machine, machine.kernels.layer_norm, LayerNorm{in, out, weight.data(), bias.data(), eps});
}

void activate(Machine& machine, const Input& x, int activation, const Array& y) {
  const Activate op{view_of(x), view_of(y), static_cast<Activation>(activation)};
  require_same(op.x, op.y, "activate: shapes or types do not fit");
  require(activation >= 0 && activation <= 3, "activate: no such activation");
  run(machine, machine.kernels.activate, op);
}

void cap(Machine& machine, const Array& x, float factor, float soft_cap) {
  const Cap op{view_of(x), factor, soft_cap};
  require(op.x.type == Type::f32, "cap: logits are float32");
  run(machine, machine.kernels.cap, op);
}

using IntRows = nb::ndarray<i32, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using WeightRows = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

void route(Machine& machine, const Input& logits, bool renormalizes, const IntRows& ids, const WeightRows& weights) {
  const View in = view_of(logits);
  const i64 num_chosen = static_cast<i64>(ids.shape(1));
  require(in.type == Type::f32 && static_cast<i64>(ids.shape(0)) == in.rows && num_chosen > 0 && num_chosen <= in.cols &&
              ids.shape(0) == weights.shape(0) && ids.shape(1) == weights.shape(1), "route: shapes or types do not fit");
  run(machine, machine.kernels.route, Route{in, num_chosen, renormalizes, ids.data(), weights.data()});
}

void experts(Machine& machine, const Input& x, const IntRows& ids, const WeightRows& weights,
             const std::vector<const PackedWeight*>& gate_up, const std::vector<const PackedWeight*>& down,
             int activation, const Array& out) {
  const Experts op{view_of(x), ids.data(), weights.data(), static_cast<i64>(ids.shape(1)), &gate_up, &down,
                   static_cast<Activation>(activation), view_of(out)};
  check_experts(machine, gate_up, down, op.x.cols);
  require_same(op.x, op.out, "experts: shapes or types do not fit");
  require(static_cast<i64>(ids.shape(0)) == op.x.rows && ids.shape(0) == weights.shape(0) && ids.shape(1) == weights.shape(1),
          "experts: routes do not fit");
  for (i64 i = 0; i < op.x.rows * op.num_chosen; i++)
    require(op.ids[i] >= 0 && op.ids[i] < static_cast<i64>(gate_up.size()), "experts: no such expert");
  ExpertRoom room(static_cast<i64>(down.size()), op.x.rows * op.num_chosen, op.x.cols, down[0]->k, op.x.type);
  nb::gil_scoped_release release;
  machine.pool.run([&](Team& team) { room.run(op, machine.kernels, team); });
}

void glu(Machine& machine, const Input& gate_up, int activation, const Array& y) {
  const View in = view_of(gate_up), out = view_of(y);
  require(in.rows == out.rows && in.cols == 2 * out.cols && in.type == out.type, "glu: shapes or types do not fit");
  require(activation >= 0 && activation <= 3, "glu: no such activation");
  run(machine, machine.kernels.glu, Glu{in, out, static_cast<Activation>(activation)});
}

void add(Machine& machine, const Input& x, const Input& y, const Array& out) {
  const Add op{view_of(x), view_of(y), view_of(out)};
  require_narrower(op.x, op.y, "add: shapes or types do not fit");
  require_same(op.x, op.out, "add: shapes or types do not fit");
  run(machine, machine.kernels.add, op);
}

void scale(Machine& machine, const Input& x, float factor, const Array& out) {
  const Scale op{view_of(x), view_of(out), factor};
  require_same(op.x, op.out, "scale: shapes or types do not fit");
  run(machine, machine.kernels.scale, op);
}

void gather(Machine& machine, const Input& x, const Ints& rows, const Array& out) {
  const Gather op{view_of(x), rows.data(), view_of(out)};
  require(op.out.rows == static_cast<i64>(rows.shape(0)) && op.x.cols == op.out.cols && op.x.type == op.out.type,
          "gather: shapes or types do not fit");
  for (i64 i = 0; i < op.out.rows; i++) require(op.rows[i] >= 0 && op.rows[i] < op.x.rows, "gather: no such row");
  run(machine, machine.kernels.gather, op);
}

void rotate(Machine& machine, const Input& x, const FloatRows& angles, const Array& out) {
  require(x.ndim() == 3, "rotate: [tokens, heads, dim] is expected");
  const View in = view_of(x), to = view_of(out);
  const i64 dim = static_cast<i64>(x.shape(2)), turned = static_cast<i64>(angles.shape(1));
  require_same(in, to, "rotate: shapes or types do not fit");
  require(static_cast<i64>(angles.shape(0)) == in.rows && turned <= dim && turned % 2 == 0, "rotate: angles do not fit");
  run(machine, machine.kernels.rotate, Rotate{in, to, static_cast<i64>(x.shape(1)), dim, angles.data(), turned});
}

void attend(Machine& machine, const Input& q, const Input& k, const Input& v, Cache& cache, const StepArrays& step,
            float scale, i64 window, float soft_cap, const Array& out) {
  Attend op{view_of(q), view_of(k), view_of(v), &cache, step.step(), view_of(out), 0, scale, window, soft_cap};
  check_attend(op);
  require_owned(machine, cache);
  op.num_heads = op.q.cols / cache.dim;
  run(machine, machine.kernels.attend, op);
}

}  // namespace

void bind_ops(nb::class_<Machine>& machine) {
  machine.def("linear", &linear, nb::arg("x"), nb::arg("weight"), nb::arg("bias").none(), nb::arg("y"))
      .def("embed", &embed)
      .def("rms_norm", &rms_norm, nb::arg("x"), nb::arg("weight"), nb::arg("eps"), nb::arg("offset"), nb::arg("y"))
      .def("layer_norm", &layer_norm)
      .def("activate", &activate)
      .def("cap", &cap)
      .def("route", &route)
      .def("experts", &experts)
      .def("glu", &glu)
      .def("add", &add)
      .def("scale", &scale)
      .def("gather", &gather)
      .def("rotate", &rotate)
      .def("attend", &attend);
}

}  // namespace headrace
