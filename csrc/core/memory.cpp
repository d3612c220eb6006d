#include "core/memory.h"

#include <sys/mman.h>

#include <mutex>
#include <new>

namespace headrace {
namespace {

constexpr i64 kHugePage = i64{2} << 20, kSharedBytes = i64{32} << 20;
constexpr i64 kAlignment = 256;
// Kernels prefetch and load whole vectors; so much behind the end is mapped, too.
constexpr i64 kSlack = 8192;

}  // namespace

// Zeroed pages, given out from the front and never again.
class Mapping {
 public:
  explicit Mapping(i64 bytes) : bytes_(round_up(bytes + kSlack, kHugePage) + kHugePage) {
    mapped_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped_ == MAP_FAILED) throw std::bad_alloc();
    start_ = round_up(reinterpret_cast<i64>(mapped_), kHugePage) - reinterpret_cast<i64>(mapped_);
#if defined(MADV_HUGEPAGE)
    madvise(static_cast<char*>(mapped_) + start_, bytes_ - kHugePage, MADV_HUGEPAGE);
#endif
  }
  ~Mapping() { munmap(mapped_, bytes_); }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  bool has_room(i64 bytes) const { return used_ + bytes + kSlack <= bytes_ - kHugePage; }
  void* take(i64 bytes) {
    void* taken = static_cast<char*>(mapped_) + start_ + used_;
    used_ += round_up(bytes, kAlignment);
    return taken;
  }

 private:
  i64 bytes_, start_ = 0, used_ = 0;
  void* mapped_;
};

namespace {

std::shared_ptr<Mapping> mapping_for(i64 bytes, void** data) {
  if (bytes >= kHugePage) {
    auto own = std::make_shared<Mapping>(bytes);
    *data = own->take(bytes);
    return own;
  }
  static std::mutex turn;
  static std::weak_ptr<Mapping> current;  // lives as long as a buffer in it
  std::lock_guard<std::mutex> lock(turn);
  std::shared_ptr<Mapping> shared = current.lock();
  if (!shared || !shared->has_room(bytes)) current = shared = std::make_shared<Mapping>(kSharedBytes);
  *data = shared->take(bytes);
  return shared;
}

}  // namespace

HugeBuffer::HugeBuffer(i64 bytes) : bytes_(bytes) { mapping_ = mapping_for(bytes, &data_); }

}  // namespace headrace
