// Steps that are alike, as those of repeated layers: what is planned for one holds for all.
#pragma once

#include <vector>

#include "lower/lower.h"

namespace ortmodule {

/// Sets `form` of each step and returns the number of forms. Steps of one form have the same ops,
/// attributes, types and literals, bit by bit, the same symbolic sizes of results, and the same
/// results that are read outside of them. Sizes and layouts of their operands may differ.
size_t find_forms(std::vector<StepNodes>& steps);

/// Sets `symbols` of the graph and of each step, by which a plan of other sizes finds the steps
/// that differ.
void find_symbols(Lowered& lowered);

/// Whether a result of a pointwise group is read by nodes of the group alone.
bool stays_inside(const Value& output, const StepNodes& nodes);

}  // namespace ortmodule
