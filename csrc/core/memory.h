// Memory that lives as long as a model: huge pages, aligned, zeroed.
#pragma once
#include "core/types.h"

namespace headrace {

class HugeBuffer {
 public:
  HugeBuffer() = default;
  explicit HugeBuffer(i64 bytes);  // throws std::bad_alloc
  ~HugeBuffer();
  HugeBuffer(HugeBuffer&& other) noexcept { swap(other); }
  HugeBuffer& operator=(HugeBuffer&& other) noexcept {
    swap(other);
    return *this;
  }
  HugeBuffer(const HugeBuffer&) = delete;
  HugeBuffer& operator=(const HugeBuffer&) = delete;

  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  i64 bytes() const { return bytes_; }

 private:
  void swap(HugeBuffer& other) noexcept;
  void* data_ = nullptr;
  void* mapped_ = nullptr;
  i64 bytes_ = 0, mapped_bytes_ = 0;
};

}  // namespace headrace
