// What the fusion of a loss head leaves to the user: scores that the model returns.
#pragma once

#include <vector>

#include "ir/graph.h"

namespace ortmodule {

/// Scores of many classes, made by a linear layer and read by a cross entropy, that exist as a
/// whole only because they are an output of the model.
std::vector<const Value*> returned_scores(const Graph& forward);

}  // namespace ortmodule
