// What a node has, for messages of rules that do not name it.
#pragma once

#include <string>
#include <vector>

#include "importer/importer.h"

namespace ortmodule {

/// `why` with types of the operands and attributes of the node, unless it names a value itself.
std::string with_found(std::string why, const OnnxNode& node,
                       const std::vector<ImportedRef>& operands);

}  // namespace ortmodule
