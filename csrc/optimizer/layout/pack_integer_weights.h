// A pass that packs constant factors of integer products.
#pragma once

#include "optimizer/pass.h"

namespace ortmodule {

/// Packs the right factors of integer products that depend on weights alone, where packing takes
/// hardly more memory. Only for runs on the host without a gradient, whose constant part is
/// computed once.
bool pack_integer_weights(Graph& graph, PassContext& context);

}  // namespace ortmodule
