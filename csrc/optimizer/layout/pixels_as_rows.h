// Convolutions of single pixels as products.
#pragma once

#include "optimizer/pass.h"

namespace ortmodule {

/// On the CPU, makes convolutions of float32 with windows of one place, stride 1 and one group,
/// whose images lie channels-last, products of their pixels, which are rows then. After
/// prefer_channels_last.
bool pixels_as_rows(Graph& graph, PassContext& context);

}  // namespace ortmodule
