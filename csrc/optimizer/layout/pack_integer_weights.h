// A pass that packs constant weights of integer products and convolutions.
#pragma once

#include "optimizer/pass.h"

namespace ortmodule {

/// Packs right factors and windows of integers that depend on weights alone, where packing takes
/// hardly more memory. Only for runs on the host without a gradient, whose constant part is
/// computed once.
bool pack_integer_weights(Graph& graph, PassContext& context);

}  // namespace ortmodule
