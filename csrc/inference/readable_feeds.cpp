#include "inference/readable_feeds.h"

#include <algorithm>

#include "base/narrow_number.h"
#include "inference/copy_elements.h"

namespace ortmodule {

bool may_decide_sizes(const HostTensorView& tensor) {
  return tensor.sizes.size() <= 1 && element_count(tensor.sizes) <= kMostContent;
}

bool is_copied(const HostTensorView& tensor) {
  if (tensor.dtype == DType::Undefined) return false;  // nothing reads it
  if (tensor.copied) return true;
  if (is_narrow_integer(tensor.dtype)) return true;  // its bytes may have other bits, too
  if (reinterpret_cast<uintptr_t>(tensor.data) % size_of(tensor.dtype) != 0) return true;
  if (tensor.strides.empty()) return false;
  if (may_decide_sizes(tensor)) return true;
  return std::ranges::any_of(tensor.strides, [](int64_t stride) { return stride < 0; });
}

int64_t make_readable(std::vector<HostTensorView>& tensors, HostMemory& memory,
                      std::vector<Buffer>& copies) {
  int64_t unmade_bytes = 0;
  for (HostTensorView& tensor : tensors) {
    if (!tensor.strides.empty()) tensor.strides = canonical_strides(tensor.sizes, tensor.strides);
    if (!is_copied(tensor)) continue;
    const size_t element_bytes = size_of(tensor.dtype);
    const int64_t bytes = element_count(tensor.sizes) * static_cast<int64_t>(element_bytes);
    if (!tensor.data) {
      unmade_bytes += bytes;
    } else {
      Buffer& copy = copies.emplace_back(memory.allocate(bytes));
      copy_elements(tensor.sizes, element_bytes, tensor.data, tensor.strides, copy.data(), {});
      if (is_narrow_integer(tensor.dtype))
        extend_integers(static_cast<char*>(copy.data()), element_count(tensor.sizes), tensor.dtype);
      tensor.data = copy.data();
    }
    tensor.strides.clear();
  }
  return unmade_bytes;
}

}  // namespace ortmodule
