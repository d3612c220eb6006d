#include "core/memory.h"

#include <sys/mman.h>

#include <new>
#include <utility>

namespace headrace {
namespace {
constexpr i64 kHugePage = i64{2} << 20;
// Kernels prefetch and load whole vectors; so much behind the end is mapped, too.
constexpr i64 kSlack = 8192;
}  // namespace

HugeBuffer::HugeBuffer(i64 bytes) : bytes_(bytes) {
  const bool is_large = bytes >= kHugePage;
  mapped_bytes_ = round_up(bytes + kSlack, 4096) + (is_large ? kHugePage : 0);
  mapped_ = mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped_ == MAP_FAILED) {
    mapped_ = nullptr;
    throw std::bad_alloc();
  }
  data_ = mapped_;
  if (!is_large) return;
  data_ = reinterpret_cast<void*>(round_up(reinterpret_cast<i64>(mapped_), kHugePage));
#if defined(MADV_HUGEPAGE)
  madvise(data_, round_up(bytes, kHugePage), MADV_HUGEPAGE);
#endif
}

HugeBuffer::~HugeBuffer() {
  if (mapped_) munmap(mapped_, mapped_bytes_);
}

void HugeBuffer::swap(HugeBuffer& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(mapped_, other.mapped_);
  std::swap(bytes_, other.bytes_);
  std::swap(mapped_bytes_, other.mapped_bytes_);
}

}  // namespace headrace
