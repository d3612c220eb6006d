// headrace._native: one Machine (threads and kernels), packed weights, paged caches, ops over numpy arrays, programs.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <string>
#include <tuple>
#include <vector>

#include "bind/arrays.h"
#include "bind/machine.h"
#include "core/isa.h"
#include "core/pack.h"
#include "core/quant.h"

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
  return pack_weight(view.data, view.type, view.rows, view.cols, machine.is_chained(), machine.pool);
}

using Bytes = nb::ndarray<const unsigned char, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Codes = nb::ndarray<const signed char, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

PackedWeight pack_parts(Machine& machine, const std::vector<std::tuple<Bytes, std::string, i64, nb::object>>& sources, i64 k) {
  require(!sources.empty(), "a matrix has at least one part");
  std::vector<BlockPart> parts;
  std::vector<Ints> orders;
  for (const auto& [bytes, name, n, order] : sources) {
    const BlockFormat* format = find_format(name);
    require(format != nullptr, "this format of blocks is not built");
    require(k > 0 && k % format->block_values == 0, "a row is not made of whole blocks");
    const i64 row_bytes = k / format->block_values * format->block_bytes;
    require(n > 0 && static_cast<i64>(bytes.shape(0)) == n * row_bytes, "blocks are not as many as the shape says");
    const i32* rows = nullptr;
    if (!order.is_none()) {
      orders.push_back(nb::cast<Ints>(order));
      require(static_cast<i64>(orders.back().shape(0)) == n, "an order names every row");
      for (i64 i = 0; i < n; i++)
        require(orders.back().data()[i] >= 0 && orders.back().data()[i] < n, "an order names a row that does not exist");
      rows = orders.back().data();
    }
    parts.push_back({format, bytes.data(), n, rows});
  }
  nb::gil_scoped_release release;
  return pack_blocks(parts, k, machine.is_chained(), machine.pool);
}

PackedWeight pack_integers(Machine& machine, const Codes& codes, const FloatRows& scales, const nb::object& minimums, int bits) {
  const i64 n = static_cast<i64>(codes.shape(0)), k = static_cast<i64>(codes.shape(1));
  const i64 num_groups = static_cast<i64>(scales.shape(1));
  require(n > 0 && num_groups > 0 && static_cast<i64>(scales.shape(0)) == n && k % num_groups == 0, "scales do not fit");
  require(bits == 4 || bits == 8, "integers have 4 or 8 bits");
  const i64 group = k / num_groups;
  require(group == 16 || group == 32, "groups have 16 or 32 values");
  const float* least = nullptr;
  FloatRows values;
  if (!minimums.is_none()) {
    values = nb::cast<FloatRows>(minimums);
    require(static_cast<i64>(values.shape(0)) == n && static_cast<i64>(values.shape(1)) == num_groups, "minimums do not fit");
    least = values.data();
  }
  nb::gil_scoped_release release;
  return pack_codes(codes.data(), scales.data(), least, n, k, bits, group, machine.is_chained(), machine.pool);
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

Cache* new_cache(Machine& machine, bool is_bf16, bool has_codes, i64 num_blocks, i64 block_size, i64 num_heads, i64 dim) {
  require(num_blocks > 0 && block_size > 0 && num_heads > 0 && dim > 0, "a cache has blocks, heads and dimensions");
  require(dim <= 512, "head dimensions up to 512 are supported");
  return new Cache(make_cache(is_bf16 ? Type::bf16 : Type::f32, has_codes, num_blocks, block_size, num_heads, dim,
                             machine.is_chained()));
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
  module.def("block_formats", &format_names, "GGML's formats of quantized weights that are kept as they are.");
  nb::class_<PackedWeight>(module, "Weight")
      .def_prop_ro("shape", [](const PackedWeight& w) { return nb::make_tuple(w.n, w.k); })
      .def_prop_ro("is_bf16", [](const PackedWeight& w) { return w.type == Type::bf16; })
      .def_prop_ro("bits", [](const PackedWeight& w) { return w.bits; })
      .def_prop_ro("nbytes", &PackedWeight::bytes);
  nb::class_<Cache>(module, "Cache")
      .def("zero_blocks", &zero_blocks)
      .def("fill", [](Cache& cache, int byte) {  // for tests that poison pages
        for (const HugeBuffer* room : {&cache.keys, &cache.values, &cache.key_scales, &cache.value_scales})
          if (room->bytes()) std::memset(room->as<char>(), byte, room->bytes());
      })
      .def_prop_ro("nbytes", [](const Cache& c) {
        return c.keys.bytes() + c.values.bytes() + c.key_scales.bytes() + c.value_scales.bytes();
      });
  nb::class_<Machine> machine(module, "Machine");
  machine.def(nb::init<int, const std::string&>(), nb::arg("num_threads") = 0, nb::arg("isa") = "")
      .def_prop_ro("isa", [](const Machine& m) { return std::string(isa_name(m.isa)); })
      .def_prop_ro("num_threads", [](const Machine& m) { return m.pool.size(); })
      .def("make_cache", &new_cache, nb::rv_policy::take_ownership)
      .def("pack", &pack)
      .def("pack_blocks", &pack_parts)
      .def("pack_integers", &pack_integers, nb::arg("codes"), nb::arg("scales"), nb::arg("minimums").none(), nb::arg("bits"))
      .def("read_rate", &read_rate);
  bind_ops(machine);
  bind_sampling(machine);
  bind_program(module);
}

}  // namespace headrace
