// Ops recorded once, run in order for any number of rows, and timed where somebody asks.
#pragma once
#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bind/profile.h"

namespace headrace {

// Columns [offset, offset + cols) of a buffer.
struct Place {
  int buffer;
  i64 offset, cols;
};

class Recording {
 public:
  // `body(step, team)` computes each of the step's rows from the same row of what it reads.
  template <class Body>
  void add(const char* kind, std::string shape, std::function<Cost(const Step&)> cost, std::vector<Place> reads, Place writes, Body body) {
    ops_.push_back({std::make_unique<Recorded<Body>>(std::move(body)), std::move(cost), {kind, std::move(shape)},
                    std::move(reads), writes});
  }

  void run(const Step& step, Team& team, bool is_profiled) {
    if (!is_profiled || team.rank() > 0) {
      for (const Op& op : ops_) op.call->run(step, team);
      return;
    }
    Clock clock(true);
    for (Op& op : ops_) {
      op.call->run(step, team);
      op.account.add(clock.lap_s(), op.cost(step));
    }
  }

  void drop_last() { ops_.pop_back(); }

  // Takes away the ops from `first` on.
  Recording split(i64 first) {
    Recording rest;
    for (auto at = ops_.begin() + first; at != ops_.end(); ++at) rest.ops_.push_back(std::move(*at));
    ops_.resize(first);
    return rest;
  }

  // The buffers that are read before they are written.
  std::vector<int> inputs() const {
    std::vector<int> found, known;
    auto has = [](const std::vector<int>& in, int buffer) { return std::find(in.begin(), in.end(), buffer) != in.end(); };
    for (const Op& op : ops_) {
      for (const Place& place : op.reads)
        if (!has(known, place.buffer)) {
          found.push_back(place.buffer);
          known.push_back(place.buffer);
        }
      if (!has(known, op.writes.buffer)) known.push_back(op.writes.buffer);
    }
    return found;
  }

  i64 size() const { return static_cast<i64>(ops_.size()); }
  template <class Visit>
  void each_account(Visit visit) {
    for (Op& op : ops_) visit(op.account);
  }

 private:
  struct Call {
    virtual ~Call() = default;
    virtual void run(const Step& step, Team& team) const = 0;
  };
  template <class Body>
  struct Recorded final : Call {
    explicit Recorded(Body b) : body(std::move(b)) {}
    void run(const Step& step, Team& team) const override { body(step, team); }
    Body body;
  };
  struct Op {
    std::unique_ptr<Call> call;
    std::function<Cost(const Step&)> cost;
    Account account;
    std::vector<Place> reads;
    Place writes;
  };
  std::vector<Op> ops_;
};

}  // namespace headrace
