// A model's step as a flat list of ops over buffers, run for any number of tokens in one call: the body over all tokens,
// but behind its last attention only over those of which something is wanted; the head over those whose logits are
// wanted; and the draws.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <array>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bind/arrays.h"
#include "bind/draws.h"
#include "bind/owned.h"
#include "bind/recording.h"
#include "bind/step.h"
#include "core/experts.h"

namespace headrace {
namespace {

struct Room {
  i64 stride;
  Type type;
  HugeBuffer data;
};

class Program {
 public:
  Program(Machine& machine, i64 max_tokens) : machine_(machine), max_tokens_(max_tokens) {}
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  int add_buffer(i64 cols, bool is_bf16) {
    const Type type = is_bf16 ? Type::bf16 : Type::f32;
    rooms_.push_back({cols, type, HugeBuffer((in_head() ? max_rows_ : max_tokens_) * cols * item_bytes(type))});
    return static_cast<int>(rooms_.size()) - 1;
  }

  void embed(const PackedWeight& table, bool by_position, Place y) {
    require(table.k == y.cols && room(y).type == Type::f32, "embed: shapes or types do not fit");
    if (by_position) know_positions(table.n);
    else vocab_ = table.n;
    record("embed", by(table.n, y.cols), per_row(0, table.bytes() / table.n_padded + bytes(y), 0),
           {}, y, [this, &table, by_position, y](const Step& s, Team& t) {
      machine_.kernels.embed({by_position ? s.positions : s.token_ids, &table, view(y, s)}, t);
    });
  }

  void angles(const FloatRows& table, Place y) {
    require(static_cast<i64>(table.shape(1)) == y.cols && room(y).type == Type::f32, "angles: shapes do not fit");
    const i64 num_positions = static_cast<i64>(table.shape(0));
    know_positions(num_positions);
    const View from{const_cast<float*>(table.data()), num_positions, y.cols, y.cols, Type::f32};
    record("angles", std::to_string(y.cols), per_row(0, 2 * bytes(y), 0),
           {}, y, [this, from, y](const Step& s, Team& t) { machine_.kernels.gather({from, s.positions, view(y, s)}, t); });
  }

  void linear(Place x, const PackedWeight& weight, const nb::object& bias, Place y) {
    require_owned(machine_, weight);
    require(x.cols == weight.k && y.cols == weight.n && (room(x).type == weight.type || room(x).type == Type::f32) &&
                (room(y).type == weight.type || room(y).type == Type::f32), "linear: shapes do not fit");
    last_ = {x, &weight, bias.is_none() ? nullptr : nb::cast<Floats>(bias).data(), y};
    record("linear", by(weight.n, weight.k), per_row(weight.bytes(), bytes(x) + bytes(y), 2 * weight.n * weight.k), {x}, y,
           [this, product = last_](const Step& s, Team& t) {
      machine_.kernels.linear({view(product.x, s), product.weight, product.bias, view(product.y, s)}, t);
    });
    last_.number = recording_->size();
  }

  void rms_norm(Place x, const Floats& weight, float eps, float offset, Place y) {
    const float* factors = weight.data();
    const i64 dim = static_cast<i64>(weight.shape(0));
    require(dim > 0 && x.cols % dim == 0 && x.cols == y.cols && is_narrower(y, x), "rms_norm: shapes do not fit");
    record("rms_norm", std::to_string(x.cols), per_row(4 * dim, bytes(x) + bytes(y), 4 * x.cols),
           {x}, y, [this, x, factors, dim, eps, offset, y](const Step& s, Team& t) {
      machine_.kernels.rms_norm({view(x, s), view(y, s), factors, dim, eps, offset}, t);
    });
  }

  void layer_norm(Place x, const Floats& weight, const Floats& bias, float eps, Place y) {
    require(static_cast<i64>(weight.shape(0)) == x.cols && static_cast<i64>(bias.shape(0)) == x.cols && x.cols == y.cols &&
                is_narrower(y, x),
            "layer_norm: shapes do not fit");
    record("layer_norm", std::to_string(x.cols), per_row(8 * x.cols, bytes(x) + bytes(y), 8 * x.cols),
           {x}, y, [this, x, factors = weight.data(), added = bias.data(), eps, y](const Step& s, Team& t) {
      machine_.kernels.layer_norm({view(x, s), view(y, s), factors, added, eps}, t);
    });
  }

  void activate(Place x, int activation, Place y) {
    require(x.cols == y.cols && activation >= 0 && activation <= 3, "activate: shapes do not fit");
    record("activate", std::to_string(x.cols), per_row(0, bytes(x) + bytes(y), 4 * x.cols),
           {x}, y, [this, x, activation, y](const Step& s, Team& t) {
      machine_.kernels.activate({view(x, s), view(y, s), static_cast<Activation>(activation)}, t);
    });
  }

  // Logits [T, experts] → `weights` [T, chosen]; the ids stay inside. Gives the number by which `experts` finds them.
  int route(Place logits, bool renormalizes, Place weights) {
    require(room(logits).type == Type::f32 && room(weights).type == Type::f32 && room(weights).stride == weights.cols &&
                weights.cols <= logits.cols, "route: shapes or types do not fit");
    auto& ids = routes_.emplace_back(std::make_unique<std::vector<i32>>(max_tokens_ * weights.cols));
    record("route", by(logits.cols, weights.cols), per_row(0, bytes(logits) + 2 * bytes(weights), 4 * logits.cols),
           {logits}, weights, [this, logits, renormalizes, weights, found = ids.get()](const Step& s, Team& t) {
      machine_.kernels.route({view(logits, s), weights.cols, renormalizes, found->data(),
                              static_cast<float*>(view(weights, s).data)}, t);
    });
    return static_cast<int>(routes_.size()) - 1;
  }

  void experts(Place x, int number, Place weights, std::vector<const PackedWeight*> gate_up,
               std::vector<const PackedWeight*> down, int activation, Place out) {
    check_experts(machine_, gate_up, down, x.cols);
    require(x.cols == out.cols && room(x).type == gate_up[0]->type, "experts: shapes do not fit");
    const i64 num_experts = static_cast<i64>(down.size()), pairs = max_tokens_ * weights.cols;
    std::unique_ptr<ExpertRoom>& shared = expert_rooms_[{num_experts, pairs, x.cols, down[0]->k}];
    if (!shared) shared = std::make_unique<ExpertRoom>(num_experts, pairs, x.cols, down[0]->k, room(x).type);
    const ExpertCost cost{num_experts, weights.cols, gate_up[0]->bytes() + down[0]->bytes(),
                          bytes(x) + bytes(out), 6 * x.cols * down[0]->k};
    const std::string shape = by(down.size(), x.cols) + " × " + std::to_string(down[0]->k);  // before `down` is moved
    record("experts", shape, cost,
           {x, weights}, out, [this, x, ids = routes_.at(number).get(), weights, gate_up = std::move(gate_up), down = std::move(down),
            activation, out, between = shared.get()](const Step& s, Team& t) {
      between->run({view(x, s), ids->data(), static_cast<const float*>(view(weights, s).data), weights.cols, &gate_up, &down,
                    static_cast<Activation>(activation), view(out, s)}, machine_.kernels, t);
    });
  }

  void add(Place x, Place y, Place out) {
    require(x.cols == y.cols && x.cols == out.cols && room(x).type == room(out).type && is_narrower(y, x), "add: shapes do not fit");
    if (room(x).type == Type::f32 && last_.number == recording_->size() && is_same(last_.y, y)) return add_to_last(x, out);
    record("add", std::to_string(x.cols), per_row(0, bytes(x) + bytes(y) + bytes(out), x.cols),
           {x, y}, out, [this, x, y, out](const Step& s, Team& t) { machine_.kernels.add({view(x, s), view(y, s), view(out, s)}, t); });
  }

  void scale(Place x, float factor, Place out) {
    require(x.cols == out.cols && room(x).type == room(out).type, "scale: shapes do not fit");
    record("scale", std::to_string(x.cols), per_row(0, bytes(x) + bytes(out), x.cols),
           {x}, out, [this, x, factor, out](const Step& s, Team& t) { machine_.kernels.scale({view(x, s), view(out, s), factor}, t); });
  }

  void glu(Place gate_up, int activation, Place y) {
    require(gate_up.cols == 2 * y.cols && activation >= 0 && activation <= 3, "glu: shapes do not fit");
    record("glu", std::to_string(y.cols), per_row(0, bytes(gate_up) + bytes(y), 5 * y.cols),
           {gate_up}, y, [this, gate_up, activation, y](const Step& s, Team& t) {
      machine_.kernels.glu({view(gate_up, s), view(y, s), static_cast<Activation>(activation)}, t);
    });
  }

  void rotate(Place x, i64 num_heads, Place angles, Place out) {
    require(x.cols == out.cols && x.cols % num_heads == 0 && angles.cols <= x.cols / num_heads &&
                room(angles).stride == angles.cols, "rotate: shapes do not fit");
    record("rotate", std::to_string(x.cols), per_row(0, bytes(x) + bytes(angles) + bytes(out), 3 * num_heads * angles.cols),
           {x, angles}, out, [this, x, num_heads, angles, out](const Step& s, Team& t) {
      machine_.kernels.rotate({view(x, s), view(out, s), num_heads, x.cols / num_heads,
                               static_cast<const float*>(view(angles, s).data), angles.cols}, t);
    });
  }

  void attend(Place q, Place k, Place v, Cache& cache, float scale, i64 window, float soft_cap, Place out) {
    require_owned(machine_, cache);
    const Attend shape{{}, {}, {}, &cache, {}, {}, q.cols / cache.dim, scale, window, soft_cap};
    attends_.push_back({shape, q, k, v, out});
    const i64 key_bytes = cache.block_bytes() / cache.block_size;
    const AttendCost cost{key_bytes, shape.num_heads, cache.dim, window, bytes(q) + bytes(k) + bytes(v) + bytes(out)};
    record("attend", by(shape.num_heads, cache.num_heads) + " × " + std::to_string(cache.dim), cost,
           {q, k, v}, out, [this, shape, q, k, v, out](const Step& s, Team& t) { machine_.kernels.attend(filled(shape, q, k, v, out, s), t); });
    num_attended_ = body_.size();
  }

  void cap(Place x, float factor, float soft_cap) {
    require(room(x).type == Type::f32, "cap: logits are float32");
    record("cap", std::to_string(x.cols), per_row(0, 2 * bytes(x), soft_cap > 0 ? 20 * x.cols : x.cols),
           {x}, x, [this, x, factor, soft_cap](const Step& s, Team& t) { machine_.kernels.cap({view(x, s), factor, soft_cap}, t); });
  }

  // Ends the body. What is recorded from here on is the head: its rows are the tokens whose logits are wanted, `max_rows`
  // at most, and the ids of its step are their places among the body's rows.
  void begin_head(i64 max_rows) {
    require(!in_head() && max_rows > 0, "a program has one head");
    max_rows_ = max_rows;
    recording_ = &head_;
    last_ = {};
    if (num_attended_ > 0) {
      rest_ = body_.split(num_attended_);
      turn_ = body_.split(num_attended_ - 1);
    }
    kept_ = rest_.inputs();
    for (i32 row = 0; row < max_rows; row++) own_rows_.push_back(row);
  }

  void take_rows(Place hidden, Place y) {
    require(in_head() && hidden.cols == y.cols && room(hidden).type == room(y).type, "take_rows: shapes or types do not fit");
    record("gather", std::to_string(y.cols), per_row(0, 2 * bytes(y), 0), {}, y, [this, hidden, y](const Step& s, Team& t) {
      machine_.kernels.gather({whole(hidden), s.token_ids, view(y, s)}, t);
    });
  }

  // Where the head leaves its logits, from which tokens are drawn.
  void end_head(Place logits) {
    require(in_head() && room(logits).type == Type::f32 && logits.cols <= kMaxVocab, "logits are float32, of 262,144 tokens at most");
    logits_ = logits;
    draw_ = Account{"draw", std::to_string(logits.cols)};
    score_ = Account{"logprobs", std::to_string(logits.cols)};
    score_rows_.reserve(max_rows_);
    score_ids_.reserve(max_rows_);
  }

  // Runs all ops, those of the head for the rows that are wanted; the results lie in the buffers that the caller knows.
  // Where hidden states are not wanted, they are computed of those rows alone, and lie elsewhere.
  void run(const StepArrays& arrays, const DrawArrays& draws, bool wants_hidden) {
    const Step step = arrays.step();
    const i64 num_rows = draws.rows();
    require(step.num_tokens <= max_tokens_, "the step has more tokens than the program has room for");
    require(num_rows <= max_rows_, "the step wants more logits than the program has room for");
    check(step);
    draws.check(step.num_tokens, logits_.cols);
    Step wanted;
    wanted.num_tokens = num_rows;
    wanted.token_ids = draws.tokens.data();
    const bool is_cut = !wants_hidden && num_rows < step.num_tokens && turn_.size() > 0;
    if (is_cut) find_first_wanted(step, wanted);
    nb::gil_scoped_release release;
    Clock clock(is_profiled_);
    machine_.pool.run([&](Team& team) {
      is_cut ? run_cut(step, wanted, team) : run_whole(step, wanted, team);
      if (num_rows > 0) draw(draws, view(logits_, wanted), team);
    });
    if (is_profiled_) total_.add(clock.lap_s(), {});
  }

  // Ops are timed from now on, from zero.
  void start_profile() {
    for (Recording* ops : parts()) ops->each_account([](Account& account) { account.clear(); });
    for (Account* account : {&draw_, &score_, &total_}) account->clear();
    is_profiled_ = true;
  }

  // (kind, shape, calls, seconds, bytes, FLOPs) of each op since then; the first is the whole of every call.
  std::vector<std::tuple<std::string, std::string, i64, double, double, double>> stop_profile() {
    is_profiled_ = false;
    std::vector<std::tuple<std::string, std::string, i64, double, double, double>> found;
    const auto tell = [&](const Account& a) { found.emplace_back(a.kind, a.shape, a.calls, a.seconds, a.bytes, a.flops); };
    tell(total_);
    for (Recording* ops : parts()) ops->each_account(tell);
    tell(draw_);
    tell(score_);
    return found;
  }

  // All rows there is room for, as an array.
  nb::object result(Place place) {
    Room& from = rooms_.at(place.buffer);
    const i64 num_rows = from.data.bytes() / item_bytes(from.type) / from.stride;
    const std::size_t shape[2] = {static_cast<std::size_t>(num_rows), static_cast<std::size_t>(place.cols)};
    const i64 strides[2] = {from.stride, 1};
    char* data = from.data.as<char>() + place.offset * item_bytes(from.type);
    const nb::dlpack::dtype type = from.type == Type::f32 ? nb::dtype<float>() : nb::dtype<u16>();
    return nb::cast(nb::ndarray<nb::numpy>(data, 2, shape, nb::find(this), strides, type));
  }

  i64 num_buffers() const { return static_cast<i64>(rooms_.size()); }
  i64 num_ops() const { return body_.size() + turn_.size() + rest_.size() + head_.size(); }

 private:
  // A recorded linear layer, of which `number` says how many ops there were with it.
  struct Product {
    Place x{};
    const PackedWeight* weight = nullptr;
    const float* bias = nullptr;
    Place y{};
    i64 number = -1;
  };
  struct Attention {
    Attend shape;
    Place q, k, v, out;
  };

  template <class Body>
  void record(const char* kind, std::string shape, std::function<Cost(const Step&)> cost, std::vector<Place> reads, Place writes,
              Body body) {
    for (const Place& place : reads) require(!dropped_.count(place.buffer), "what is added to a product at once is read alone, too");
    dropped_.erase(writes.buffer);
    recording_->add(kind, std::move(shape), std::move(cost), std::move(reads), writes, std::move(body));
  }

  // A product that is only to be added to x: in one op.
  void add_to_last(Place x, Place out) {
    const Product product = last_;
    const PackedWeight& w = *product.weight;
    recording_->drop_last();
    record("linear", by(w.n, w.k) + " + x", per_row(w.bytes(), bytes(product.x) + bytes(x) + bytes(out), 2 * w.n * w.k + w.n),
           {product.x, x}, out, [this, product, x, out](const Step& s, Team& t) {
      machine_.kernels.linear({view(product.x, s), product.weight, product.bias, view(out, s), view(x, s)}, t);
    });
    dropped_.insert(product.y.buffer);
  }

  static bool is_same(Place a, Place b) { return a.buffer == b.buffer && a.offset == b.offset && a.cols == b.cols; }
  bool in_head() const { return recording_ == &head_; }
  i64 bytes(Place p) const { return p.cols * item_bytes(room(p).type); }

  static RowCost per_row(i64 once_bytes, i64 row_bytes, i64 row_flops) {
    return {static_cast<double>(once_bytes), static_cast<double>(row_bytes), static_cast<double>(row_flops)};
  }

  void run_whole(const Step& step, const Step& wanted, Team& team) {
    for (Recording* ops : {&body_, &turn_, &rest_}) ops->run(step, team, is_profiled_);
    if (wanted.num_tokens > 0) head_.run(wanted, team, is_profiled_);
  }

  void run_cut(const Step& step, Step wanted, Team& team) {
    body_.run(step, team, is_profiled_);
    Step turn = step;
    turn.first_wanted = first_wanted_.data();
    turn_.run(turn, team, is_profiled_);
    if (wanted.num_tokens == 0) return;
    team.solo([&] { keep_rows(wanted); });
    wanted.token_ids = own_rows_.data();
    rest_.run(wanted, team, is_profiled_);
    head_.run(wanted, team, is_profiled_);
  }

  // Brings the wanted rows of what is still to be read to the front.
  void keep_rows(const Step& wanted) {
    for (const int buffer : kept_) {
      const i64 bytes = rooms_[buffer].stride * item_bytes(rooms_[buffer].type);
      char* data = rooms_[buffer].data.as<char>();
      for (i64 r = 0; r < wanted.num_tokens; r++)
        if (wanted.token_ids[r] != r) std::memcpy(data + r * bytes, data + wanted.token_ids[r] * bytes, bytes);
    }
  }

  void find_first_wanted(const Step& step, const Step& wanted) {
    first_wanted_.clear();
    i64 next = 0;
    for (i64 s = 0; s < step.num_segments; s++) {
      const i32 begin = step.query_starts[s], end = step.query_starts[s + 1];
      while (next < wanted.num_tokens && wanted.token_ids[next] < begin) next++;
      first_wanted_.push_back((next < wanted.num_tokens && wanted.token_ids[next] < end ? wanted.token_ids[next] : end) - begin);
    }
  }

  std::array<Recording*, 4> parts() { return {&body_, &turn_, &rest_, &head_}; }

  void draw(const DrawArrays& draws, const View& logits, Team& team) {
    const bool is_timed = is_profiled_ && team.rank() == 0;
    Clock clock(is_timed);
    machine_.kernels.sample(draws.cuts.sample(logits, draws.drawn.data(), draws.token_ids.data(), draws.is_finite.data()), team);
    if (is_timed) draw_.add(clock.lap_s(), {4.0 * draws.cuts.count() * logits.cols, 0});
    if (draws.found.count() == 0) return;
    team.solo([&] {
      score_rows_.clear();
      score_ids_.clear();
      for (i64 i = 0; i < draws.found.count(); i++) {
        const i32 at = draws.scored.data()[i];
        score_rows_.push_back(draws.drawn.data()[at]);
        score_ids_.push_back(draws.token_ids.data()[at]);
      }
    });
    machine_.kernels.score(draws.found.score(logits, score_rows_.data(), score_ids_.data()), team);
    if (is_timed) score_.add(clock.lap_s(), {4.0 * draws.found.count() * logits.cols, 0});
  }

  bool is_narrower(Place a, Place b) const { return room(a).type == room(b).type || room(b).type == Type::f32; }
  const Room& room(Place p) const { return rooms_.at(p.buffer); }

  View view(Place p, const Step& step) const {
    const Room& from = rooms_[p.buffer];
    return {from.data.as<char>() + p.offset * item_bytes(from.type), step.num_tokens, p.cols, from.stride, from.type};
  }

  View whole(Place p) const {
    const Room& from = rooms_[p.buffer];
    return {from.data.as<char>() + p.offset * item_bytes(from.type), max_tokens_, p.cols, from.stride, from.type};
  }

  Attend filled(Attend op, Place q, Place k, Place v, Place out, const Step& step) const {
    op.q = view(q, step);
    op.k = view(k, step);
    op.v = view(v, step);
    op.out = view(out, step);
    op.step = step;
    return op;
  }

  void know_positions(i64 count) { max_positions_ = max_positions_ == 0 || count < max_positions_ ? count : max_positions_; }

  // All layers share one step: the first attention is checked whole, the others differ in nothing that is data.
  void check(const Step& step) const {
    for (i64 t = 0; t < step.num_tokens; t++) {
      require(step.token_ids[t] >= 0 && step.token_ids[t] < vocab_, "no such token id");
      require(max_positions_ == 0 || step.positions[t] < max_positions_, "a position lies behind the tables of positions");
    }
    const Cache* checked = nullptr;
    for (const Attention& a : attends_) {
      if (checked && checked->num_blocks == a.shape.cache->num_blocks && checked->block_size == a.shape.cache->block_size)
        continue;
      check_attend(filled(a.shape, a.q, a.k, a.v, a.out, step));
      checked = a.shape.cache;
    }
  }

  Machine& machine_;
  i64 max_tokens_, max_rows_ = 0, vocab_ = INT64_MAX, max_positions_ = 0;
  bool is_profiled_ = false;
  std::vector<Room> rooms_;
  std::vector<Attention> attends_;
  std::vector<std::unique_ptr<std::vector<i32>>> routes_;
  std::map<std::tuple<i64, i64, i64, i64>, std::unique_ptr<ExpertRoom>> expert_rooms_;  // by (experts, pairs, hidden, inner): one at a time is in use
  Recording body_, turn_, rest_, head_;  // turn_: the body's last attention; rest_: what is behind it
  Recording* recording_ = &body_;
  Product last_;
  std::set<int> dropped_;  // buffers whose writer is gone
  i64 num_attended_ = 0;       // ops of the body up to its last attention
  std::vector<int> kept_;      // buffers that rest_ reads
  std::vector<i32> own_rows_;  // 0, 1, 2, …
  std::vector<i32> first_wanted_;
  Place logits_{0, 0, 0};
  Account draw_, score_, total_{"all", ""};
  std::vector<i32> score_rows_, score_ids_;
};

}  // namespace

void bind_program(nb::module_& module) {
  nb::class_<StepArrays>(module, "Step")
      .def(nb::new_([](const Ints& token_ids, const Ints& positions, const Longs& slots, const Ints& query_starts,
                       const Ints& context_lens, const Table& block_tables) {
        return make_step(token_ids, positions, slots, query_starts, context_lens, block_tables);
      }));
  nb::class_<Place>(module, "Place")
      .def(nb::init<int, i64, i64>())
      .def_ro("buffer", &Place::buffer)
      .def_ro("offset", &Place::offset)
      .def_ro("cols", &Place::cols);
  nb::class_<Program>(module, "Program")
      .def(nb::init<Machine&, i64>(), nb::keep_alive<1, 2>())
      .def("add_buffer", &Program::add_buffer)
      .def("embed", &Program::embed, nb::keep_alive<1, 2>())
      .def("angles", &Program::angles, nb::keep_alive<1, 2>())
      .def("linear", &Program::linear, nb::arg("x"), nb::arg("weight"), nb::arg("bias").none(), nb::arg("y"),
           nb::keep_alive<1, 3>(), nb::keep_alive<1, 4>())
      .def("rms_norm", &Program::rms_norm, nb::arg("x"), nb::arg("weight"), nb::arg("eps"), nb::arg("offset"), nb::arg("y"),
           nb::keep_alive<1, 3>())
      .def("layer_norm", &Program::layer_norm, nb::keep_alive<1, 3>(), nb::keep_alive<1, 4>())
      .def("activate", &Program::activate)
      .def("route", &Program::route)
      .def("experts", &Program::experts, nb::keep_alive<1, 5>(), nb::keep_alive<1, 6>())
      .def("add", &Program::add)
      .def("scale", &Program::scale)
      .def("glu", &Program::glu)
      .def("rotate", &Program::rotate)
      .def("attend", &Program::attend, nb::keep_alive<1, 5>())
      .def("cap", &Program::cap)
      .def("begin_head", &Program::begin_head)
      .def("take_rows", &Program::take_rows)
      .def("end_head", &Program::end_head)
      .def("start_profile", &Program::start_profile)
      .def("stop_profile", &Program::stop_profile)
      .def("run", &Program::run)
      .def("result", &Program::result)
      .def_prop_ro("num_buffers", &Program::num_buffers)
      .def_prop_ro("num_ops", &Program::num_ops);
}

}  // namespace headrace
