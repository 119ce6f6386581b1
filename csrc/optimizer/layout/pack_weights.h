#pragma once

#include "optimizer/pass.h"

namespace ortmodule {

/// Lets products with a weight that does not change read it in packed form (inference).
bool pack_weights(Graph& graph, PassContext& context);

}  // namespace ortmodule
