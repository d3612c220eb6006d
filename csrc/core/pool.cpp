#include "core/pool.h"

#include <unistd.h>

#include <chrono>

#if defined(__linux__)
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#endif
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace headrace {
namespace {

constexpr auto kSpin = std::chrono::microseconds(20);

inline void relax() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

#if defined(__linux__)
void futex_wait(std::atomic<u32>& word, u32 seen) {
  syscall(SYS_futex, reinterpret_cast<u32*>(&word), FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
}
void futex_wake_all(std::atomic<u32>& word) {
  syscall(SYS_futex, reinterpret_cast<u32*>(&word), FUTEX_WAKE_PRIVATE, 0x7fffffff, nullptr, nullptr, 0);
}
std::vector<int> allowed_cores() {
  cpu_set_t set;
  std::vector<int> cores;
  if (sched_getaffinity(0, sizeof set, &set) == 0)
    for (int core = 0; core < CPU_SETSIZE; core++)
      if (CPU_ISSET(core, &set)) cores.push_back(core);
  return cores;
}
void pin(int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  sched_setaffinity(0, sizeof set, &set);
}
// Pins the calling thread for a scope, so that it does not sit on a worker's core.
class Pinned {
 public:
  explicit Pinned(int core) : is_known_(sched_getaffinity(0, sizeof before_, &before_) == 0) { pin(core); }
  ~Pinned() {
    if (is_known_) sched_setaffinity(0, sizeof before_, &before_);
  }

 private:
  cpu_set_t before_;
  bool is_known_;
};
#else
void futex_wait(std::atomic<u32>& word, u32 seen) { word.wait(seen); }
void futex_wake_all(std::atomic<u32>& word) { word.notify_all(); }
std::vector<int> allowed_cores() { return {}; }
void pin(int) {}
struct Pinned {
  explicit Pinned(int) {}
};
#endif

}  // namespace

void Signal::wait_while(u32 seen) {
  const auto until = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < 64; i++) {
      if (value() != seen) return;
      relax();
    }
  } while (std::chrono::steady_clock::now() < until);
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  while (word_.load(std::memory_order_seq_cst) == seen) futex_wait(word_, seen);
  sleepers_.fetch_sub(1, std::memory_order_relaxed);
}

void Signal::advance() {
  word_.fetch_add(1, std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) > 0) futex_wake_all(word_);
}

void Team::barrier() {
  if (size_ == 1) return;
  pool_.arrive();
}

// Threads are at most one phase apart, so what lies half a ring ahead is nobody's: each clears its own for the next use.
u32 Team::next_phase() {
  counter(phase_ + Pool::kPhases / 2, rank_).store(0, std::memory_order_relaxed);
  return phase_++;
}

std::atomic<i64>& Team::counter(u32 phase, int owner) {
  return pool_.counters_[phase % Pool::kPhases * static_cast<u32>(size_) + static_cast<u32>(owner)].next;
}

void Pool::arrive() {
  const u32 seen = passed_.value();
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 < num_threads_) return passed_.wait_while(seen);
  arrived_.store(0, std::memory_order_relaxed);
  passed_.advance();
}

Pool::Pool(int num_threads) : cores_(allowed_cores()), owner_pid_(getpid()) {
  num_threads_ = num_threads > 0 ? num_threads : static_cast<int>(cores_.size());
  if (num_threads_ < 1) num_threads_ = 1;
  counters_ = std::vector<Counter>(kPhases * static_cast<std::size_t>(num_threads_));
  for (int i = 0; i < num_threads_; i++) scratch_.emplace_back(kScratchBytes);
  threads_.reserve(num_threads_);
  try {
    for (int rank = 1; rank < num_threads_; rank++) threads_.emplace_back([this, rank] { work(rank); });
  } catch (...) {
    end();
    throw;
  }
}

Pool::~Pool() {
  if (getpid() != owner_pid_) {
    for (std::thread& thread : threads_) thread.detach();
    return;
  }
  end();
}

void Pool::end() {
  is_closing_ = true;
  start_.advance();
  for (std::thread& thread : threads_) thread.join();
}

void Pool::work(int rank) {
  if (rank < static_cast<int>(cores_.size())) pin(cores_[rank]);
  for (u32 seen = 0;; seen++) {
    start_.wait_while(seen);
    if (is_closing_) return;
    Team team(*this, rank, num_threads_, scratch_[rank].as<char>(), kScratchBytes, phase_);
    call_(argument_, team);
    arrive();
  }
}

// A forked child has no workers: it computes alone, with the same bits.
void Pool::run_erased(Call call, void* argument) {
  std::lock_guard<std::mutex> lock(turn_);
  const int size = getpid() == owner_pid_ ? num_threads_ : 1;
  Team team(*this, 0, size, scratch_[0].as<char>(), kScratchBytes, phase_);
  if (size == 1) return call(argument, team);
  Pinned pinned(cores_.empty() ? 0 : cores_[0]);
  call_ = call;
  argument_ = argument;
  start_.advance();
  call(argument, team);
  arrive();
  phase_ = team.phase_;
}

}  // namespace headrace
