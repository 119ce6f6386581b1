// The inputs of a model, and which of them a call must give.
#include <set>
#include <string_view>

#include "importer/import_model.h"

namespace ortmodule {
namespace {

std::vector<const OnnxValue*> inputs_of(const OnnxGraph& graph, bool with_initializer) {
  std::set<std::string_view> initialized;
  for (const OnnxInitializer& initializer : graph.initializers)
    initialized.insert(initializer.name);
  std::vector<const OnnxValue*> inputs;
  for (const OnnxValue& input : graph.inputs)
    if ((initialized.count(input.name) > 0) == with_initializer) inputs.push_back(&input);
  return inputs;
}

}  // namespace

std::vector<const OnnxValue*> called_inputs(const OnnxGraph& graph) {
  return inputs_of(graph, false);
}

std::vector<const OnnxValue*> overridable_inputs(const OnnxModel& model) {
  constexpr int64_t kFirst = 4;  // before, every initializer had to be an input as well
  if (model.ir_version < kFirst) return {};
  return inputs_of(model.graph, true);
}

}  // namespace ortmodule
