#include "inference/readable_feeds.h"

#include <algorithm>

#include "base/narrow_number.h"
#include "inference/copy_elements.h"

namespace ortmodule {
namespace {

bool is_readable(const HostTensorView& tensor) {
  if (tensor.dtype == DType::Undefined) return true;  // nothing reads it
  if (is_narrow_integer(tensor.dtype)) return false;  // its bytes may have other bits, too
  if (reinterpret_cast<uintptr_t>(tensor.data) % size_of(tensor.dtype) != 0) return false;
  if (tensor.strides.empty()) return true;
  if (tensor.sizes.size() <= 1 && element_count(tensor.sizes) <= kMostContent) return false;
  return std::ranges::all_of(tensor.strides, [](int64_t stride) { return stride >= 0; });
}

}  // namespace

void make_readable(std::vector<HostTensorView>& tensors, HostMemory& memory,
                   std::vector<Buffer>& copies) {
  for (HostTensorView& tensor : tensors) {
    if (!tensor.strides.empty()) tensor.strides = canonical_strides(tensor.sizes, tensor.strides);
    if (is_readable(tensor)) continue;
    if (tensor.data) {
      const size_t element_bytes = size_of(tensor.dtype);
      Buffer& copy = copies.emplace_back(
          memory.allocate(element_count(tensor.sizes) * static_cast<int64_t>(element_bytes)));
      copy_elements(tensor.sizes, element_bytes, tensor.data, tensor.strides, copy.data(), {});
      if (is_narrow_integer(tensor.dtype))
        extend_integers(static_cast<char*>(copy.data()), element_count(tensor.sizes), tensor.dtype);
      tensor.data = copy.data();
    }
    tensor.strides.clear();
  }
}

}  // namespace ortmodule
