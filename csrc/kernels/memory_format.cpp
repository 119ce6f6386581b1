#include "kernels/memory_format.h"

#include <algorithm>

namespace ortmodule {

bool is_pixel_major(const Layout& x) { return is_channels_last(x) && !is_contiguous(x); }

Sizes strides_in_format(const Layout& x, const Sizes& sizes) {
  Sizes strides = contiguous_strides(sizes);
  if (!is_pixel_major(x)) return strides;
  for (size_t d = 2; d < sizes.size(); ++d) strides[d] *= std::max<int64_t>(sizes[1], 1);
  strides[1] = 1;
  return strides;
}

}  // namespace ortmodule
