// The step's threads: one per allowed core, pinned, waiting by spinning at most 20 µs and then on a futex.
//
// The caller of run() is rank 0 and is pinned to its core while it runs; afterwards its affinity is what it was.
#pragma once
#include <atomic>
#include <memory>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

#include "core/memory.h"
#include "core/types.h"

namespace headrace {

// A word that threads wait on until it differs from what they saw.
class Signal {
 public:
  u32 value() const { return word_.load(std::memory_order_acquire); }
  void wait_while(u32 seen);
  void advance();  // releases what was written before

 private:
  alignas(64) std::atomic<u32> word_{0};
  std::atomic<u32> sleepers_{0};
};

class Pool;

// What one thread sees of a run: all threads call the same functions in the same order.
class Team {
 public:
  Team(Pool& pool, int rank, int size, char* scratch, i64 scratch_bytes, u32 phase)
      : pool_(pool), rank_(rank), size_(size), scratch_(scratch), scratch_bytes_(scratch_bytes), phase_(phase) {}

  int rank() const { return rank_; }
  int size() const { return size_; }
  char* scratch() const { return scratch_; }  // this thread's own, 64-byte aligned
  i64 scratch_bytes() const { return scratch_bytes_; }
  void barrier();

  // Calls body(i) once for each i in [0, count), shared out as threads come free; ends with a barrier.
  template <class Body>
  void for_each(i64 count, Body&& body) {
    if (size_ == 1) {
      for (i64 i = 0; i < count; i++) body(i);
      return;
    }
    std::atomic<i64>& next = counter(next_phase(), 0);
    for (i64 i = next.fetch_add(1); i < count; i = next.fetch_add(1)) body(i);
    barrier();
  }

  // The same where neighbours lie together in memory: each thread walks a range of its own from end to end, and then
  // helps the others. body(i, end) also hears up to where the same thread is likely to go on.
  template <class Body>
  void for_each_in_ranges(i64 count, Body&& body) {
    if (size_ == 1) {
      for (i64 i = 0; i < count; i++) body(i, count);
      return;
    }
    const u32 phase = next_phase();
    for (int n = 0; n < size_; n++) {
      const i64 owner = (rank_ + n) % size_, begin = count * owner / size_, end = count * (owner + 1) / size_;
      std::atomic<i64>& next = counter(phase, static_cast<int>(owner));
      for (i64 i = begin + next.fetch_add(1); i < end; i = begin + next.fetch_add(1)) body(i, n == 0 ? end : i + 1);
    }
    barrier();
  }

  // For work too small to share: rank 0 does it.
  template <class Body>
  void solo(Body&& body) {
    if (rank_ == 0) body();
    if (size_ > 1) barrier();
  }

 private:
  friend class Pool;
  u32 next_phase();
  std::atomic<i64>& counter(u32 phase, int owner);
  Pool& pool_;
  int rank_, size_;
  char* scratch_;
  i64 scratch_bytes_;
  u32 phase_;  // how many pieces of work were shared out before, the same on all threads
};

class Pool {
 public:
  explicit Pool(int num_threads);  // 0: one per allowed core; throws std::system_error where there cannot be so many
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int size() const { return num_threads_; }

  // Runs job(team) on every thread and returns when all have. Calls from several threads take turns. A job throws
  // nothing, and so allocates nothing: its threads wait for one another, and nobody is there to catch on most of them.
  template <class Job>
  void run(Job&& job) {
    using Plain = std::remove_reference_t<Job>;
    run_erased([](void* p, Team& team) { (*static_cast<Plain*>(p))(team); }, const_cast<void*>(static_cast<const void*>(&job)));
  }

 private:
  friend class Team;
  using Call = void (*)(void*, Team&);
  static constexpr u32 kPhases = 64;
  static constexpr i64 kScratchBytes = i64{8} << 20;
  void run_erased(Call call, void* argument);
  void work(int rank);
  void end();
  void arrive();

  struct alignas(64) Counter {
    std::atomic<i64> next{0};
  };

  int num_threads_;
  std::vector<int> cores_;
  std::vector<HugeBuffer> scratch_;
  std::vector<std::thread> threads_;
  std::mutex turn_;
  Signal start_, passed_;
  alignas(64) std::atomic<int> arrived_{0};
  std::vector<Counter> counters_;  // [kPhases][threads]
  u32 phase_ = 0;
  Call call_ = nullptr;
  void* argument_ = nullptr;
  bool is_closing_ = false;
  int owner_pid_;
};

}  // namespace headrace
