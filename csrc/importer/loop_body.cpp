#include "importer/loop_body.h"

#include <string>

namespace ortmodule {

bool keeps_condition(const OnnxGraph& body) {
  std::string name = body.outputs.front().name;
  for (size_t i = body.nodes.size(); i-- > 0;) {
    const OnnxNode& node = body.nodes[i];
    if (node.outputs.empty() || node.outputs.front() != name) continue;
    if (node.op == "Constant") return true;
    if (!node.domain.empty() || node.op != "Identity" || node.inputs.size() != 1) return false;
    name = node.inputs.front();
  }
  return true;  // an input or initializer
}

}  // namespace ortmodule
