// From logits to tokens, row by row, with the bits of headrace.ops.draws, .truncation and .elementary. Denormals are
// not flushed here. A row's `gaps` are (logit − largest) / temperature.
#pragma once
#include "core/select.h"

namespace headrace::HEADRACE_NS {

constexpr float kNever = -__builtin_inff();
constexpr float kMassReach = 24.6f;         // e^−24.6 rounds to no unit of mass
constexpr float kMassUnits = 17179869184.f;  // 2^34
constexpr float kDrawReach = 20.0f;          // noise lies within (−2.82, 16.64): further below none can win

// A thread's room for one row.
struct RowRoom {
  float* gaps;            // [vocab], then the candidates' gaps
  float* other;           // [vocab]
  i32* ids;               // candidates, rising
  Candidate* candidates;
  double* bins;
  explicit RowRoom(Team& team) {
    char* at = team.scratch();
    gaps = reinterpret_cast<float*>(at);
    other = gaps + kMaxVocab;
    ids = reinterpret_cast<i32*>(other + kMaxVocab);
    candidates = reinterpret_cast<Candidate*>(ids + kMaxVocab);
    bins = reinterpret_cast<double*>(candidates + kMaxVocab);
  }
};

// NaN if there is one.
inline float largest_of(const float* values, i64 size) {
  F16 top = set(kNever);
  u32 numbers = 0xffff;
  by_sixteen(size, [&](i64 i, i64 n) {
    const F16 x = n == 16 ? load(values + i) : keep(load_some(values + i, n), 0, n, set(kNever));
    numbers &= equal_mask(x, x);
    top = max(top, x);
  });
  return numbers == 0xffff ? largest(top) : __builtin_nanf("");
}

inline bool is_finite(float top) { return top > kNever && top < -kNever; }

inline i64 first_equal(const float* values, i64 size, float wanted) {
  for (i64 i = 0; i + 16 <= size; i += 16)
    if (const u32 mask = equal_mask(load(values + i), set(wanted))) return i + __builtin_ctz(mask);
  for (i64 i = size / 16 * 16; i < size; i++)
    if (values[i] == wanted) return i;
  return 0;
}

inline void scale_gaps(const float* logits, float top, float temperature, float* gaps, i64 size) {
  by_sixteen(size, [&](i64 i, i64 n) {
    store_up_to(gaps + i, div(sub(load_up_to(logits + i, n), set(top)), set(temperature)), n);
  });
}

// body(i) for every place whose value is at least `bound`, rising.
template <class Body>
void where_at_least(const float* values, i64 size, float bound, Body&& body) {
  i64 i = 0;
  for (; i + 16 <= size; i += 16)
    for (u32 mask = 0xffffu & ~greater_mask(set(bound), load(values + i)); mask; mask &= mask - 1)
      body(i + __builtin_ctz(mask));
  for (; i < size; i++)
    if (values[i] >= bound) body(i);
}

// The k-th largest: first a bound that at least k values reach, the k-th largest maximum of disjoint groups.
inline float kth_of(const float* values, i64 size, i64 k, float* room) {
  const i64 num_groups = size / 16 / 16 * 16;
  float bound = kNever;
  if (num_groups >= k) {
    for (i64 g = 0; g < num_groups; g += 16) {
      F16 top = load(values + g);
      for (i64 j = 1; j < 16; j++) top = max(top, load(values + j * num_groups + g));
      store(room + g, top);
    }
    bound = kth_largest(room, num_groups, k);
  }
  i64 count = 0;
  where_at_least(values, size, bound, [&](i64 i) { room[count++] = values[i]; });
  return kth_largest(room, count, k);
}

// e^gap in whole units of 2^−34, for gaps ≤ 0.
inline F16 masses(F16 gaps) { return rint(mul(exp(max(gaps, set(-kMassReach))), set(kMassUnits))); }

// Candidates of a row: ids rising, gaps[i] belongs to ids[i] (to id i while `is_whole`).
struct Kept {
  RowRoom& room;
  i64 count;
  bool is_whole = true;

  void keep_at_least(float bound) {
    i64 kept = 0;
    const bool whole = is_whole;
    where_at_least(room.gaps, count, bound, [&](i64 i) {
      room.ids[kept] = whole ? static_cast<i32>(i) : room.ids[i];
      room.gaps[kept++] = room.gaps[i];
    });
    count = kept;
    is_whole = false;
  }

  // Keeps each token while the mass before it is below top_p of the whole; at least one. Mass is counted into bins by
  // gap, and only the bin in which the limit falls is sorted. All gaps ≥ −kMassReach.
  void keep_nucleus(double top_p) {
    constexpr i64 kBins = 1600;
    for (i64 b = 0; b < kBins; b++) room.bins[b] = 0;
    by_sixteen(count, [&](i64 i, i64 n) { store_up_to(room.other + i, masses(load_up_to(room.gaps + i, n)), n); });
    for (i64 i = 0; i < count; i++) room.bins[bin(i)] += room.other[i];
    double total = 0;
    for (i64 b = 0; b < kBins; b++) total += room.bins[b];
    const double limit = top_p * total;
    i64 last = 0;
    double before = 0;
    while (before + room.bins[last] < limit) before += room.bins[last++];
    i64 inside = 0;
    for (i64 i = 0; i < count; i++)
      if (bin(i) == last) room.candidates[inside++] = {room.gaps[i], room.ids[i]};
    cut(last, last_kept(inside, before, limit));
  }

 private:
  i64 bin(i64 i) const { return static_cast<i64>(room.gaps[i] * -64.0f); }

  Candidate last_kept(i64 inside, double before, double limit) const {
    sort_falling(room.candidates, inside);
    float mass[16];
    i64 i = 0;
    for (; i + 1 < inside; i++) {
      store(mass, masses(set(room.candidates[i].gap)));
      before += mass[0];
      if (!(before < limit)) break;
    }
    return room.candidates[i];
  }

  void cut(i64 bin_number, Candidate end) {
    i64 kept = 0;
    for (i64 i = 0; i < count; i++) {
      const bool is_before = room.gaps[i] > end.gap || (room.gaps[i] == end.gap && room.ids[i] <= end.id);
      if (bin(i) > bin_number || !is_before) continue;
      room.ids[kept] = room.ids[i];
      room.gaps[kept++] = room.gaps[i];
    }
    count = kept;
  }
};

struct Key {
  u32 low, high;
};

inline u64 mix64(u64 z) {
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
  z = (z ^ z >> 27) * 0x94D049BB133111EBu;
  return z ^ z >> 31;
}

inline Key key_of(u64 seed, i32 choice, i32 position) {
  const u64 place = static_cast<u64>(choice) << 32 | static_cast<u64>(position);
  const u64 z = mix64(mix64(seed + 0x9E3779B97F4A7C15u) ^ place);
  return {static_cast<u32>(z), static_cast<u32>(z >> 32)};
}

inline F16 noise(I16 ids, Key key) {
  I16 h = add(ids, words(static_cast<i32>(key.low)));
  h = mul(bit_xor(h, shift_right<16>(h)), words(0x7FEB352D));
  h = bit_xor(h, words(static_cast<i32>(key.high)));
  h = mul(bit_xor(h, shift_right<15>(h)), words(static_cast<i32>(0x846CA68Bu)));
  h = shift_right<9>(bit_xor(h, shift_right<16>(h)));
  const F16 u = mul(add(to_floats(h), set(0.5f)), set(1.1920928955078125e-07f));
  return negate_bits(log(negate_bits(log(u))));
}

// argmax(gap + noise), ties to the lowest id.
inline i32 winner(const Kept& kept, Key key) {
  static const i32 kLanes[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  float best = kNever;
  i32 best_id = 0;
  by_sixteen(kept.count, [&](i64 i, i64 n) {
    const F16 gaps = n == 16 ? load(kept.room.gaps + i) : keep(load_some(kept.room.gaps + i, n), 0, n, set(kNever));
    if (!greater_mask(gaps, set(-kDrawReach))) return;
    i32 own[16] = {};
    if (!kept.is_whole) std::memcpy(own, kept.room.ids + i, n * 4);
    const I16 ids = kept.is_whole ? add(load_words(kLanes), words(static_cast<i32>(i))) : load_words(own);
    const F16 scores = add(gaps, noise(ids, key));
    const float top = largest(scores);
    if (!(top > best)) return;
    best = top;
    const i64 lane = __builtin_ctz(equal_mask(scores, set(top)));
    best_id = kept.is_whole ? static_cast<i32>(i + lane) : own[lane];
  });
  return best_id;
}

// `top` is the largest of the row's logits.
inline i32 draw(const Sample& op, i64 r, const float* logits, float top, RowRoom& room) {
  const i64 vocab = op.logits.cols;
  if (!(op.temperature[r] > 0)) return static_cast<i32>(first_equal(logits, vocab, top));
  scale_gaps(logits, top, op.temperature[r], room.gaps, vocab);
  Kept kept{room, vocab};
  const float bound = op.top_k[r] > 0 && op.top_k[r] < vocab ? kth_of(room.gaps, vocab, op.top_k[r], room.other) : kNever;
  if (bound > kNever) kept.keep_at_least(bound);
  if (op.min_p[r] > 0) {
    float floor[16];
    store(floor, log(set(op.min_p[r] > 1.1754943508222875e-38f ? op.min_p[r] : 1.1754943508222875e-38f)));
    kept.keep_at_least(floor[0]);
  }
  if (op.top_p[r] < 1) {
    kept.keep_at_least(-kMassReach);
    kept.keep_nucleus(op.top_p[r]);
  }
  return winner(kept, key_of(op.seeds[r], op.choices[r], op.positions[r]));
}

inline void sample(const Sample& op, Team& team) {
  RowRoom room(team);
  team.for_each(op.count, [&](i64 i) {
    const float* logits = op.logits.row<float>(op.rows ? op.rows[i] : i);
    const float top = largest_of(logits, op.logits.cols);
    op.token_ids[i] = is_finite(top) ? draw(op, i, logits, top, room) : 0;
    if (op.is_finite) op.is_finite[i] = is_finite(top);
  });
}

struct Masses {
  double total, smaller;
  i64 num_above;
};

// Sums are exact, whatever their order: masses are whole numbers below 2^35, at most 2^19 of them.
inline Masses sum_masses(const float* gaps, i64 size, i64 token) {
  double total[16] = {}, smaller[16] = {};
  i64 above = 0;
  const F16 gap = set(gaps[token]), nothing = set(0.0f);
  by_sixteen(size, [&](i64 i, i64 n) {
    const F16 x = n == 16 ? load(gaps + i) : keep(load_some(gaps + i, n), 0, n, set(kNever));
    const F16 mass = masses(x);
    float all[16], below[16];
    store(all, mass);
    store(below, if_greater(gap, x, mass, nothing));
    for (int j = 0; j < 16; j++) total[j] += all[j];
    for (int j = 0; j < 16; j++) smaller[j] += below[j];
    above += __builtin_popcount(greater_mask(x, gap));
    if (i < token) {
      const i64 before = token - i < 16 ? token - i : 16;
      above += __builtin_popcount(equal_mask(x, gap) & ((1u << before) - 1));
    }
  });
  Masses found{0, 0, above};
  for (int j = 0; j < 16; j++) {
    found.total += total[j];
    found.smaller += smaller[j];
  }
  return found;
}

inline void top_of(const Score& op, i64 r, float log_total, RowRoom& room) {
  const i64 vocab = op.logits.cols;
  const float bound = kth_of(room.gaps, vocab, op.num_top, room.other);
  i64 count = 0;
  where_at_least(room.gaps, vocab, bound, [&](i64 i) { room.candidates[count++] = {room.gaps[i], static_cast<i32>(i)}; });
  sort_falling(room.candidates, count);
  for (i64 i = 0; i < op.num_top; i++) {
    op.top_ids[r * op.num_top + i] = room.candidates[i].id;
    op.top_logprobs[r * op.num_top + i] = room.candidates[i].gap - log_total;
  }
}

inline void score(const Score& op, Team& team) {
  RowRoom room(team);
  team.for_each(op.count, [&](i64 r) {
    const float* logits = op.logits.row<float>(op.rows ? op.rows[r] : r);
    const i64 vocab = op.logits.cols, token = op.token_ids[r];
    const float top = largest_of(logits, vocab);
    if (!is_finite(top)) return;
    scale_gaps(logits, top, 1.0f, room.gaps, vocab);
    const Masses sums = sum_masses(room.gaps, vocab, token);
    float log_total[16];
    store(log_total, log(set(static_cast<float>(sums.total / kMassUnits))));
    op.token_logprobs[r] = room.gaps[token] - log_total[0];
    op.ranks[r] = static_cast<i32>(1 + sums.num_above);
    op.sum_smaller_probs[r] = static_cast<float>(sums.smaller / sums.total);
    if (op.num_top) top_of(op, r, log_total[0], room);
  });
}

}  // namespace headrace::HEADRACE_NS
