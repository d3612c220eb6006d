// headrace._native: one Machine (threads and kernels), packed weights, paged caches, ops over numpy arrays, programs.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <atomic>
#include <chrono>
#include <cstring>

#include "bind/arrays.h"
#include "bind/machine.h"
#include "core/isa.h"
#include "core/pack.h"

namespace headrace {

void bind_ops(nb::class_<Machine>& machine);
void bind_sampling(nb::class_<Machine>& machine);
void bind_program(nb::module_& module);

namespace {

PackedWeight pack(Machine& machine, const Input& values) {
  require(values.ndim() == 2, "a matrix [out, in] is expected");
  const View view = view_of(values);
  require(view.stride == view.cols, "a matrix must be dense");
  nb::gil_scoped_release release;
  return pack_weight(view.data, view.type, view.rows, view.cols, machine.pool);
}

// Bytes per second of the best of eight plain reads of a weight by all threads: what a streaming kernel is held against.
double read_rate(Machine& machine, const PackedWeight& weight) {
  constexpr i64 kChunk = i64{1} << 18;
  const i64 chunks = weight.data.bytes() / kChunk;
  std::atomic<u64> sum{0};
  double best = 0;
  nb::gil_scoped_release release;
  for (int round = 0; round < 8; round++) {
    const auto start = std::chrono::steady_clock::now();
    machine.pool.run([&](Team& team) {
      team.for_each(chunks, [&](i64 chunk) {
        const u64* words = weight.data.as<u64>() + chunk * (kChunk / 8);
        u64 lanes[8] = {};
        for (i64 i = 0; i < kChunk / 8; i += 8) {
          __builtin_prefetch(words + i + 768);
          for (int j = 0; j < 8; j++) lanes[j] += words[i + j];
        }
        u64 total = 0;
        for (u64 lane : lanes) total += lane;
        sum.fetch_add(total, std::memory_order_relaxed);
      });
    });
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    const double rate = static_cast<double>(chunks * kChunk) / seconds.count();
    best = rate > best ? rate : best;
  }
  return best;
}

Cache* new_cache(bool is_bf16, i64 num_blocks, i64 block_size, i64 num_heads, i64 dim) {
  require(num_blocks > 0 && block_size > 0 && num_heads > 0 && dim > 0, "a cache has blocks, heads and dimensions");
  require(dim <= 512, "head dimensions up to 512 are supported");
  return new Cache(make_cache(is_bf16 ? Type::bf16 : Type::f32, num_blocks, block_size, num_heads, dim));
}

void zero_blocks(Cache& cache, const std::vector<i64>& block_ids) {
  for (i64 id : block_ids) {
    require(id >= 0 && id < cache.num_blocks, "no such block");
    zero_block(cache, id);
  }
}

std::vector<std::string> isa_names() {
  std::vector<std::string> names;
  for (Isa isa : usable_isas()) names.emplace_back(isa_name(isa));
  return names;
}

}  // namespace

NB_MODULE(_native, module) {
  module.doc() = "The native CPU kernels of Headrace.";
  module.def("isas", &isa_names, "Instruction sets that this build has and this machine runs, slowest first.");
  nb::class_<PackedWeight>(module, "Weight")
      .def_prop_ro("shape", [](const PackedWeight& w) { return nb::make_tuple(w.n, w.k); })
      .def_prop_ro("is_bf16", [](const PackedWeight& w) { return w.type == Type::bf16; })
      .def_prop_ro("nbytes", [](const PackedWeight& w) { return w.data.bytes(); });
  nb::class_<Cache>(module, "Cache")
      .def("zero_blocks", &zero_blocks)
      .def("fill", [](Cache& cache, int byte) {  // for tests that poison pages
        std::memset(cache.keys.as<char>(), byte, cache.keys.bytes());
        std::memset(cache.values.as<char>(), byte, cache.values.bytes());
      });
  module.def("make_cache", &new_cache, nb::rv_policy::take_ownership);
  nb::class_<Machine> machine(module, "Machine");
  machine.def(nb::init<int, const std::string&, bool>(), nb::arg("num_threads") = 0, nb::arg("isa") = "", nb::arg("fast") = false)
      .def_prop_ro("isa", [](const Machine& m) { return std::string(isa_name(m.isa)); })
      .def_prop_ro("num_threads", [](const Machine& m) { return m.pool.size(); })
      .def("pack", &pack)
      .def("read_rate", &read_rate);
  bind_ops(machine);
  bind_sampling(machine);
  bind_program(module);
}

}  // namespace headrace
