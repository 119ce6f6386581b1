#include "inference/half_weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/element_value.h"
#include "ops/emit.h"

namespace ortmodule {
namespace {

constexpr int64_t kFewElements = 256;  // the Cast costs more than it saves
constexpr float kLargest = 65504.0f;   // of float16
// Of smaller numbers float16 has 7 bits or less, since its exponent ends at -24.
constexpr float kLeast = 0x1p-17f;
constexpr float kLargestBFloat16 = 0x1.fep127f;

// The type for elements of at most that size; nothing for NaN.
std::optional<DType> half_for(float largest) {
  if (!(largest <= kLargestBFloat16)) return std::nullopt;
  return largest > kLargest || (largest > 0 && largest < kLeast) ? DType::BFloat16 : DType::Float16;
}

// visit(elements, first, count) for part after part.
template <class Visit>
void visit_parts(const ReadElements& read, int64_t count, const Visit& visit) {
  constexpr int64_t kPart = 1 << 16;
  std::vector<float> part(static_cast<size_t>(std::min(kPart, count)));
  for (int64_t first = 0; first < count; first += kPart) {
    const int64_t elements = std::min(kPart, count - first);
    read(first, elements, part.data());
    visit(part.data(), first, elements);
  }
}

}  // namespace

bool is_halvable(DType dtype, const Sizes& sizes) {
  return dtype == DType::Float32 && element_count(sizes) > kFewElements;
}

std::optional<HostTensor> to_half(const ReadElements& read, const Sizes& sizes,
                                  HostMemory& memory) {
  const int64_t count = element_count(sizes);
  float largest = 0;
  visit_parts(read, count, [&](const float* elements, int64_t, int64_t size) {
    for (int64_t i = 0; i < size; ++i)  // a NaN stays
      if (const float e = std::fabs(elements[i]); !(e <= largest) && !std::isnan(largest))
        largest = e;
  });
  const std::optional<DType> type = half_for(largest);
  if (!type) return std::nullopt;
  HostTensor half{*type, sizes, memory.allocate(2 * count)};
  auto* to = static_cast<uint16_t*>(half.memory.data());
  const auto round = *type == DType::Float16 ? float16_bits : bfloat16_bits;
  visit_parts(read, count, [&](const float* elements, int64_t first, int64_t size) {
    for (int64_t i = 0; i < size; ++i) to[first + i] = round(elements[i]);
  });
  return half;
}

void widen_at_reader(Graph& graph, Value* input, DType half) {
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
  input->dtype = half;
}

void halve_outputs(Graph& graph, const std::vector<DType>& types) {
  const std::vector<Node*> nodes = graph.node_pointers();
  for (size_t i = 0; i < types.size(); ++i) {
    Value* wide = graph.outputs()[i].value;
    if (types[i] == wide->dtype) continue;
    const auto made = std::find(nodes.begin(), nodes.end(), wide->producer());
    Node* next = made == nodes.end() || made + 1 == nodes.end() ? nullptr : *(made + 1);
    const Graph::Inserting here(graph, next);
    graph.replace_output(i, emit(graph, "Cast", {wide}, {{"to", types[i]}}));
  }
}

bool holds_values(const HostTensor& half) {
  const auto* bits = static_cast<const uint16_t*>(half.memory.data());
  uint16_t largest = 0;  // sizes of floats are ordered as their bits are
  for (int64_t i = 0; i < element_count(half.sizes); ++i)
    largest = std::max<uint16_t>(largest, bits[i] & 0x7fff);
  if (half.dtype == DType::BFloat16) return largest < bfloat16_bits(HUGE_VALF);
  return largest < float16_bits(HUGE_VALF) && largest >= float16_bits(kLeast);
}

}  // namespace ortmodule
