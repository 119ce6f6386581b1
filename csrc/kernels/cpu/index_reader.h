// Indices of int64 or int32, checked: an index out of range is the user's error and named as such.
#pragma once

#include "kernels/cpu/cpu_kernel.h"
#include "kernels/indices.h"

namespace ortmodule {
inline namespace ORTM_ISA {

class IndexReader {
 public:
  /// `size` is that of the indexed dimension; the indices are operand 1.
  IndexReader(const KernelArgs& args, int64_t size, std::string_view op)
      : IndexReader(args.in[1], size, least_index(args.facts, size), op) {}
  IndexReader(const TensorView& indices, int64_t size, int64_t least, std::string_view op)
      : wide_(indices.dtype == DType::Int64 ? indices.as<int64_t>() : nullptr),
        narrow_(wide_ ? nullptr : indices.as<int32_t>()),
        count_(indices.element_count()),
        size_(size),
        least_(least),
        op_(op) {}

  int64_t count() const { return count_; }
  /// The index at a position, counted from the front.
  int64_t at(int64_t position) const { return at(position, position); }
  /// The same for indices with strides, where the element at that position lies at `offset`.
  int64_t at(int64_t position, int64_t offset) const {
    const int64_t index = wide_ ? wide_[offset] : narrow_[offset];
    if (index < least_ || index >= size_) fail(index, position);
    return index < 0 ? index + size_ : index;
  }

 private:
  [[noreturn]] __attribute__((noinline)) void fail(int64_t index, int64_t position) const {
    throw IndexOutOfRange(str("[", op_, "] indices must lie in [", least_, ", ", size_,
                              "), but found ", index, " at position ", position));
  }

  const int64_t* wide_;
  const int32_t* narrow_;
  int64_t count_, size_, least_;
  std::string_view op_;
};

}  // namespace ORTM_ISA
}  // namespace ortmodule
