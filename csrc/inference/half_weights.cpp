#include "inference/half_weights.h"

#include <cmath>
#include <cstring>

#include "base/element_value.h"
#include "ops/emit.h"

namespace ortmodule {
namespace {

constexpr int64_t kFewElements = 256;  // the Cast costs more than it saves
constexpr float kLargest = 65504.0f;

}  // namespace

bool is_halvable(DType dtype, const Sizes& sizes) {
  return dtype == DType::Float32 && element_count(sizes) > kFewElements;
}

std::optional<HostTensor> to_half(const void* data, const Sizes& sizes, HostMemory& memory) {
  const auto count = static_cast<size_t>(element_count(sizes));
  HostTensor half{DType::Float16, sizes, memory.allocate(static_cast<int64_t>(2 * count))};
  const auto* from = static_cast<const char*>(data);
  auto* to = static_cast<uint16_t*>(half.memory.data());
  for (size_t i = 0; i < count; ++i) {
    float element = 0;
    std::memcpy(&element, from + 4 * i, 4);
    if (!(std::fabs(element) <= kLargest)) return std::nullopt;
    to[i] = float16_bits(element);
  }
  return half;
}

void widen_at_reader(Graph& graph, Value* input) {
  Node* first = nullptr;
  for (const auto& node : graph.nodes()) {
    for (const Value* read : node->inputs())
      if (read == input) first = node.get();
    if (first) break;
  }
  const Graph::Inserting here(graph, first);
  Node* cast = emit_node(graph, "Cast", {input}, {{"to", DType::Float32}});
  graph.replace_all_uses(input, cast->output());
  graph.set_input(cast, 0, input);
  input->dtype = DType::Float16;
}

}  // namespace ortmodule
