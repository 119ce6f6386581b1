// Sizes of inputs on which nothing in a segment depends.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/layout.h"
#include "importer/import_model.h"

namespace ortmodule {

/// By tensor of the inputs and dimension; empty for tensors that are read. A loop that collects
/// tokens hands a longer list to each iteration, which only the last part of its body reads: the
/// plan of the first part holds for all lengths.
using UnreadSizes = std::vector<std::vector<bool>>;

/// What such sizes are in the graph and its plans.
inline constexpr int64_t kUnreadSize = 1;

/// Finds the sizes that are symbols of nothing but tensors that no node of `part` before its cut
/// names, and fixes them in the graph of `imported`, without the guards on them. `symbols`: the
/// names of the inputs' dimensions, "" of constants.
UnreadSizes fix_unread_sizes(ImportedModel& imported, const ModelPart& part,
                             const std::vector<ValueForm>& forms,
                             const std::vector<std::vector<std::string>>& symbols);

/// The sizes of input `i` that a plan is made for.
Sizes planned_sizes(const UnreadSizes& unread, size_t i, const Sizes& given);

}  // namespace ortmodule
