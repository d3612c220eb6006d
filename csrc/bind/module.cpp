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
#include "core/codes.h"
#include "core/isa.h"
#include "core/pack.h"
#include "core/quant.h"

namespace headrace {

void bind_ops(nb::class_<Machine>& machine);
void bind_sampling(nb::module_& module, nb::class_<Machine>& machine);
void bind_program(nb::module_& module);

namespace {

PackedWeight pack(Machine& machine, const Input& values) {
  require(values.ndim() == 2, "a matrix [out, in] is expected");
  const View view = view_of(values);
  require(view.stride == view.cols, "a matrix must be dense");
  nb::gil_scoped_release release;
  return pack_weight(view.data, view.type, view.rows, view.cols, machine.is_chained(), machine.pool);
}

PackedWeight pack_all(Machine& machine, const std::vector<RowSource>& sources, i64 k) {
  nb::gil_scoped_release release;
  return pack_rows(sources, k, machine.is_chained(), machine.pool);
}

using Bytes = nb::ndarray<const unsigned char, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

PackedWeight pack_blocks(Machine& machine, const std::vector<std::tuple<Bytes, std::string, i64, nb::object>>& parts, i64 k) {
  require(!parts.empty(), "a matrix has at least one part");
  std::vector<RowSource> sources;
  std::vector<Ints> orders;
  for (const auto& [bytes, name, n, order] : parts) {
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
    sources.push_back(rows_of_blocks(*format, bytes.data(), n, k, rows));
  }
  return pack_all(machine, sources, k);
}

// headrace.ops.base.Integers for n rows of k integers.
Integers integers_of(const nb::object& given, const Bytes& data, i64 n, i64 k) {
  const auto [num_rows, num_columns] = nb::cast<std::tuple<i64, i64>>(given.attr("num_words"));
  Integers from{data.data(), nb::cast<int>(given.attr("bits")), nb::cast<int>(given.attr("word_bytes")), num_columns, 1,
                nb::cast<bool>(given.attr("holds_rows")), nb::cast<bool>(given.attr("is_signed")), {0, 1, 2, 3, 4, 5, 6, 7}};
  if (nb::cast<bool>(given.attr("is_turned"))) {
    from.row_stride = 1;
    from.column_stride = num_rows;
  }
  require((from.bits == 4 && from.word_bytes == 4) || (from.bits == 8 && (from.word_bytes == 1 || from.word_bytes == 4)),
          "integers have 4 or 8 bits, in words of one byte or four");
  require(num_rows > 0 && num_columns > 0 && static_cast<i64>(data.shape(0)) == num_rows * num_columns * from.word_bytes,
          "words are not as many as the shape says");
  const i64 per_row = from.holds_rows ? from.per_word() : 1, per_column = from.holds_rows ? 1 : from.per_word();
  require(n > 0 && k > 0 && ceil_div(n, per_row) <= num_rows && ceil_div(k, per_column) <= num_columns,
          "there are fewer integers than the shape says");
  if (const nb::object places = given.attr("places"); !places.is_none()) {
    const auto told = nb::cast<std::vector<int>>(places);
    require(static_cast<int>(told.size()) == from.per_word(), "a word has a place for each of its integers");
    for (std::size_t i = 0; i < told.size(); i++) {
      require(told[i] >= 0 && told[i] < from.per_word(), "there is no such place in a word");
      from.places[i] = told[i];
    }
  }
  return from;
}

PackedWeight pack_codes(Machine& machine, const std::vector<std::tuple<nb::object, FloatRows, nb::object, i64, bool>>& parts, i64 k) {
  require(!parts.empty(), "a matrix has at least one part");
  std::vector<RowSource> sources;
  std::vector<FloatRows> kept;
  std::vector<Bytes> words;
  for (const auto& [integers, scales, least, group, may_be_half] : parts) {
    const i64 n = static_cast<i64>(scales.shape(0)), num_groups = static_cast<i64>(scales.shape(1));
    require(group > 0 && (group % 16 == 0 || group >= k), "groups have a multiple of 16 values, or are whole rows");
    require(n > 0 && k > 0 && num_groups == ceil_div(k, group), "scales do not fit");
    const float* minimums = nullptr;
    if (!least.is_none()) {
      kept.push_back(nb::cast<FloatRows>(least));
      require(static_cast<i64>(kept.back().shape(0)) == n && static_cast<i64>(kept.back().shape(1)) == num_groups, "minimums do not fit");
      minimums = kept.back().data();
    }
    words.push_back(nb::cast<Bytes>(integers.attr("data")));
    const Integers from = integers_of(integers, words.back(), n, k);
    sources.push_back(rows_of_integers(from, scales.data(), minimums, n, k, group, may_be_half));
  }
  return pack_all(machine, sources, k);
}

Number number_of(const Input& values) {
  if (values.dtype() == nb::dtype<float>()) return Number::f32;
  if (values.dtype() == nb::dtype<u16>()) return Number::bf16;
  require(values.dtype().code == static_cast<std::uint8_t>(nb::dlpack::dtype_code::Float) && values.dtype().bits == 16,
          "numbers are float32, float16, or bfloat16 held as uint16");
  return Number::f16;
}

PackedWeight pack_rounded(Machine& machine, const std::vector<Input>& parts, int bits) {
  require(!parts.empty() && (bits == 4 || bits == 8), "a matrix has at least one part, and integers of 4 or 8 bits");
  const i64 k = parts[0].ndim() == 2 ? static_cast<i64>(parts[0].shape(1)) : 0;
  std::vector<RowSource> sources;
  for (const Input& part : parts) {
    require(part.ndim() == 2 && k > 0 && static_cast<i64>(part.shape(1)) == k && part.stride(1) == 1 && part.stride(0) == k,
            "a dense matrix [out, in] is expected, as wide as the others");
    sources.push_back(rows_to_round(part.data(), number_of(part), static_cast<i64>(part.shape(0)), k, bits));
  }
  return pack_all(machine, sources, k);
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

// fp32 operations per second of the best of eight runs of multiply-adds on all threads: the arithmetic's limit.
double fma_rate(Machine& machine) {
  constexpr i64 kRounds = i64{1} << 18;
  std::atomic<int> num_nan{0};  // keeps the sums from being left out
  double best = 0;
  nb::gil_scoped_release release;
  for (int round = 0; round < 8; round++) {
    const auto start = std::chrono::steady_clock::now();
    machine.pool.run([&](Team& team) {
      const float sum = machine.kernels.chains(kRounds, 0.5f + 0.01f * round);
      if (sum != sum) num_nan.fetch_add(1);
      team.barrier();
    });
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    const double rate = 2.0 * 16 * kChains * kRounds * machine.pool.size() / seconds.count();
    best = rate > best ? rate : best;
  }
  return best;
}

// Per layer (whether it holds codes, heads, dimensions).
std::vector<Cache> new_caches(Machine& machine, bool is_bf16, i64 num_blocks, i64 block_size,
                              const std::vector<std::tuple<bool, i64, i64>>& layers) {
  std::vector<CacheShape> shapes;
  for (const auto& [has_codes, num_heads, dim] : layers) {
    require(num_blocks > 0 && block_size > 0 && num_heads > 0 && dim > 0, "a cache has blocks, heads and dimensions");
    require(dim <= kMaxDim, "head dimensions up to 512 are supported");
    shapes.push_back({has_codes, num_heads, dim});
  }
  return make_caches(is_bf16 ? Type::bf16 : Type::f32, num_blocks, block_size, shapes, machine.is_chained());
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
        for (i64 block = 0; block < cache.num_blocks; block++)
          cache.each_part(block, [byte](char* start, i64 bytes) { std::memset(start, byte, bytes); });
      })
      .def_prop_ro("nbytes", [](const Cache& cache) { return cache.num_blocks * cache.block_bytes(); });
  nb::class_<Machine> machine(module, "Machine");
  machine.def(nb::init<int, const std::string&>(), nb::arg("num_threads") = 0, nb::arg("isa") = "")
      .def_prop_ro("isa", [](const Machine& m) { return std::string(isa_name(m.isa)); })
      .def_prop_ro("num_threads", [](const Machine& m) { return m.pool.size(); })
      .def("make_caches", &new_caches)
      .def("pack", &pack)
      .def("pack_blocks", &pack_blocks)
      .def("pack_codes", &pack_codes)
      .def("pack_rounded", &pack_rounded)
      .def("read_rate", &read_rate)
      .def("fma_rate", &fma_rate);
  bind_ops(machine);
  bind_sampling(module, machine);
  bind_program(module);
}

}  // namespace headrace
