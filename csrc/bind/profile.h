// What the ops of a program took: calls and time by the clock, bytes and FLOPs by their shapes.
#pragma once
#include <chrono>
#include <string>

#include "core/ops.h"

namespace headrace {

struct Cost {
  double bytes = 0, flops = 0;
};

// Costs that grow with a step's tokens alone.
struct RowCost {
  double once_bytes, row_bytes, row_flops;
  Cost operator()(const Step& step) const {
    const double rows = static_cast<double>(step.num_tokens);
    return {once_bytes + rows * row_bytes, rows * row_flops};
  }
};

// Keys and values that the segments' queries can see are read once each.
struct AttendCost {
  i64 key_bytes, num_heads, dim, window, row_bytes;
  Cost operator()(const Step& step) const {
    double keys = 0, pairs = 0;
    for (i64 s = 0; s < step.num_segments; s++) {
      const i64 last = step.context_lens[s], skipped = step.first_wanted ? step.first_wanted[s] : 0;
      const i64 count = step.query_starts[s + 1] - step.query_starts[s] - skipped;
      if (count == 0) continue;
      const i64 first = last - count + 1;  // keys that the first query sees
      const i64 reach = window > 0 ? window : last;
      keys += static_cast<double>(last < reach + count - 1 ? last : reach + count - 1);
      for (i64 seen = first; seen <= last; seen++) pairs += static_cast<double>(seen < reach ? seen : reach);
    }
    return {keys * key_bytes + static_cast<double>(step.num_tokens * row_bytes), 4.0 * num_heads * dim * pairs};
  }
};

// Of `num_experts` pairs of matrices those that tokens go to are read, each at most once.
struct ExpertCost {
  i64 num_experts, num_chosen, expert_bytes, row_bytes, pair_flops;
  Cost operator()(const Step& step) const {
    const i64 pairs = step.num_tokens * num_chosen;
    return {static_cast<double>((pairs < num_experts ? pairs : num_experts) * expert_bytes + step.num_tokens * row_bytes),
            static_cast<double>(pairs * pair_flops)};
  }
};

struct Account {
  std::string kind, shape;
  i64 calls = 0;
  double seconds = 0, bytes = 0, flops = 0;

  void clear() {
    calls = 0;
    seconds = bytes = flops = 0;
  }
  void add(double taken_s, Cost cost) {
    calls++;
    seconds += taken_s;
    bytes += cost.bytes;
    flops += cost.flops;
  }
};

// Is not looked at where nothing is timed.
class Clock {
 public:
  explicit Clock(bool is_timed) {
    if (is_timed) last_ = std::chrono::steady_clock::now();
  }
  double lap_s() {
    const auto now = std::chrono::steady_clock::now();
    const std::chrono::duration<double> taken = now - last_;
    last_ = now;
    return taken.count();
  }

 private:
  std::chrono::steady_clock::time_point last_;
};

inline std::string by(i64 a, i64 b) { return std::to_string(a) + " × " + std::to_string(b); }

}  // namespace headrace
