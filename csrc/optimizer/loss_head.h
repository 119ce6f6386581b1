// Logits that the loss head cannot fuse because the model returns them.
#pragma once

#include <vector>

#include "ir/graph.h"

namespace ortmodule {

/// Logits of many classes that a cross entropy reads and the model returns. Without the output,
/// fuse_loss_head would not materialize them.
std::vector<const Value*> returned_scores(const Graph& forward);

}  // namespace ortmodule
