#include "inference/save_optimized.h"

#include <list>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/narrow_number.h"
#include "exporter/save_model.h"

namespace ortmodule {
namespace {

// The names of sizes in the file, by symbol: the model's own, unless two symbols share one.
std::map<std::string, std::string> size_names(const OptimizedModel& model) {
  std::map<std::string, std::string> names;
  std::set<std::string> taken;
  for (size_t i = 0; i < model.inputs.size(); ++i) {
    const auto& dims = model.inputs[i]->type.dims;
    for (size_t d = 0; d < model.input_dims[i].size(); ++d) {
      std::string symbol;
      if (!model.input_dims[i][d].is_symbol(&symbol) || names.count(symbol)) continue;
      const auto* own = dims ? std::get_if<std::string>(&(*dims)[d]) : nullptr;
      std::string name = own ? *own : symbol;
      while (!taken.insert(name).second) name += "_";
      names[symbol] = name;
    }
  }
  return names;
}

}  // namespace

void save_optimized(const OptimizedModel& model, const std::string& path) {
  const auto& inputs = model.graph->inputs();
  const std::map<std::string, std::string> names = size_names(model);
  SavedModel saved;
  saved.outputs = model.outputs;
  saved.data.placement = model.placement;
  for (size_t i = 0; i < model.inputs.size(); ++i) {
    const Value& value = *inputs.at(i).value;
    SavedInput& input = saved.inputs.emplace_back();
    input.value = value.name;
    input.name = model.inputs[i]->name;
    input.dtype = model.tensors[i].dtype;
    input.sizes = model.tensors[i].sizes.vector();
    for (size_t d = 0; d < value.rank(); ++d) {
      std::string symbol;
      if (value.dims[d].is_symbol(&symbol))
        input.any_sizes[static_cast<int64_t>(d)] = names.at(symbol);
    }
  }
  std::list<std::string> packed;  // until the file is written
  for (size_t i = 0; i < model.weights.size(); ++i) {
    const Value& value = *inputs.at(model.inputs.size() + i).value;
    const bool read = !value.uses().empty() || value.is_graph_output();
    if (!read) continue;
    const int64_t count = element_count(model.weight_sizes[i]);
    if (const int bits = packed_bits(value.dtype); bits < 8) {
      std::string& bytes = packed.emplace_back(static_cast<size_t>((count * bits + 7) / 8), '\0');
      pack_elements(static_cast<const char*>(model.weights[i]), count, value.dtype, bytes.data());
      saved.data.initializers[value.name] = {bytes.data(), bytes.size()};
      continue;
    }
    const size_t bytes = static_cast<size_t>(count) * size_of(value.dtype);
    saved.data.initializers[value.name] = {model.weights[i], bytes};
  }
  save_model(*model.graph, path, saved);
}

}  // namespace ortmodule
