// Memory that lives as long as a model: huge pages, aligned, zeroed.
#pragma once
#include <memory>

#include "core/types.h"

namespace headrace {

class Mapping;

// Large ones have a mapping of their own, small ones share one: a matrix of a megabyte deserves huge pages, too.
class HugeBuffer {
 public:
  HugeBuffer() = default;
  explicit HugeBuffer(i64 bytes);  // throws std::bad_alloc

  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  i64 bytes() const { return bytes_; }

 private:
  std::shared_ptr<Mapping> mapping_;
  void* data_ = nullptr;
  i64 bytes_ = 0;
};

}  // namespace headrace
