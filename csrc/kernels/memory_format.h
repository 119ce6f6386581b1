// The memory formats of images [N, C, ...] (LayoutRule::MemoryFormat): row-major or channels-last.
#pragma once

#include "base/layout.h"

namespace ortmodule {

/// Channels-last and not row-major as well: pixels are rows of more than one channel.
bool is_pixel_major(const Layout& x);

/// Strides of a result of as many dimensions in the format of x.
Sizes strides_in_format(const Layout& x, const Sizes& sizes);

}  // namespace ortmodule
