// Import of sequences and optionals: lists of values that exist while the model is imported.
#include <algorithm>

#include "base/error.h"
#include "importer/importer.h"
#include "ops/torch_call.h"

namespace ortmodule {
namespace {

using Refs = std::vector<ImportedRef>;

Refs sequence_construct(const ControlCall& c) {
  for (size_t i = 0; i < c.operands.size(); ++i) c.operand(i);  // refuses absent ones
  return {Importer::of_sequence(c.operands)};
}

Refs sequence_empty(const ControlCall&) { return {Importer::of_sequence({})}; }

// A position in a sequence; `end` is one behind the last.
size_t position(const ControlCall& c, size_t operand, size_t length, bool end) {
  const auto count = static_cast<int64_t>(length);
  int64_t at = c.has(operand) ? c.fixed_integer(operand) : (end ? count : count - 1);
  if (at < 0) at += count;
  if (at < 0 || at > count || (at == count && !end))
    c.refuse(str("position ", at, " must be within a sequence of ", length));
  return static_cast<size_t>(at);
}

Refs sequence_at(const ControlCall& c) {
  const Refs& elements = c.sequence(0);
  return {elements.at(position(c, 1, elements.size(), false))};
}

Refs sequence_insert(const ControlCall& c) {
  Refs elements = c.sequence(0);
  const size_t at = position(c, 2, elements.size(), true);
  c.operand(1);
  elements.insert(elements.begin() + static_cast<int64_t>(at), c.operands.at(1));
  return {Importer::of_sequence(std::move(elements))};
}

Refs sequence_erase(const ControlCall& c) {
  Refs elements = c.sequence(0);
  const size_t at = position(c, 1, elements.size(), false);
  elements.erase(elements.begin() + static_cast<int64_t>(at));
  return {Importer::of_sequence(std::move(elements))};
}

Refs sequence_length(const ControlCall& c) {
  const auto length = static_cast<int64_t>(c.sequence(0).size());
  return {Importer::of_known({DType::Int64, {}, {KnownNumber(length)}})};
}

Refs concat_from_sequence(const ControlCall& c) {
  Values parts;
  const bool new_axis = c.integer("new_axis", 0) != 0;
  int64_t axis = c.integer("axis", 0);
  for (const ImportedRef& element : c.sequence(0)) {
    Value* part = c.importer.tensor_of(*element);
    const auto rank = static_cast<int64_t>(part->rank()) + (new_axis ? 1 : 0);
    if (axis < 0) axis += rank;
    if (axis < 0 || axis >= rank) c.refuse(str("axis ", axis, " must be within rank ", rank));
    if (new_axis) {
      Dims dims = part->dims;
      dims.insert(dims.begin() + axis, DimExpr(1));
      part = emit(c.importer.graph(), "Reshape", {part}, {{"shape", dims}});
    }
    parts.push_back(part);
  }
  if (parts.empty()) c.refuse("there must be an element");
  if (parts.size() == 1) return {Importer::of_tensor(parts.at(0))};
  return {Importer::of_tensor(emit(c.importer.graph(), "Concat", parts, {{"axis", axis}}))};
}

// Parts of equal size (the last may be smaller), of the given sizes, or of one element.
Refs split_to_sequence(const ControlCall& c) {
  Value* x = c.importer.tensor_of(c.operand(0));
  int64_t axis = c.integer("axis", 0);
  if (axis < 0) axis += static_cast<int64_t>(x->rank());
  if (axis < 0 || axis >= static_cast<int64_t>(x->rank())) c.refuse("axis must be within the rank");
  const int64_t size = c.importer.sizes().fix(x->dims.at(static_cast<size_t>(axis)));
  std::vector<int64_t> parts;
  const KnownValue* split = c.has(1) ? c.importer.known_of(c.operand(1)) : nullptr;
  if (c.has(1) && !split) throw DataNeeded("the sizes of the parts are computed from data");
  if (split && !split->dims.empty()) {
    for (const KnownNumber& number : split->elements)
      parts.push_back(c.importer.sizes().fix(number.numerator()));
  } else {
    const int64_t each = split ? c.importer.sizes().fix(split->elements.at(0).numerator()) : 1;
    if (each <= 0) c.refuse("a part must have an element");
    for (int64_t at = 0; at < size; at += each) parts.push_back(std::min(each, size - at));
  }
  const bool keepdims = split || c.integer("keepdims", 1) != 0;
  Refs elements;
  int64_t at = 0;
  for (int64_t part : parts) {
    Value* y = emit(c.importer.graph(), "Slice", {x},
                    {{"axis", axis}, {"start", DimExpr(at)}, {"end", DimExpr(at + part)}});
    if (!keepdims) {
      Dims dims = y->dims;
      dims.erase(dims.begin() + axis);
      y = emit(c.importer.graph(), "Reshape", {y}, {{"shape", dims}});
    }
    elements.push_back(Importer::of_tensor(y));
    at += part;
  }
  if (at != size) c.refuse(str("the parts must add up to ", size, ", but found ", at));
  return {Importer::of_sequence(std::move(elements))};
}

// The body for each element of the first sequence, with those of the others or whole tensors.
Refs sequence_map(const ControlCall& c) {
  auto known = std::find_if(c.node.attrs.begin(), c.node.attrs.end(),
                            [](const auto& attr) { return attr.first == "body"; });
  if (known == c.node.attrs.end()) c.refuse("attribute 'body' must be given");
  const OnnxGraph& body = c.subgraph("body");
  std::vector<Refs> results(body.outputs.size());
  const size_t length = c.sequence(0).size();
  for (size_t i = 0; i < length; ++i) {
    c.importer.count_iteration(body);
    Refs inputs;
    for (size_t k = 0; k < c.operands.size(); ++k)
      inputs.push_back(c.operand(k).sequence ? c.sequence(k).at(i) : c.operands.at(k));
    const Refs outputs = c.importer.import_subgraph(body, c.scope, inputs);
    for (size_t k = 0; k < outputs.size(); ++k) {
      if (outputs[k]->failed) c.refuse("a node of its body cannot be imported");
      results.at(k).push_back(outputs[k]);
    }
  }
  Refs sequences;
  for (Refs& elements : results) sequences.push_back(Importer::of_sequence(std::move(elements)));
  return sequences;
}

Refs optional(const ControlCall& c) {
  if (c.has(0)) return {c.operands.at(0)};
  auto absent = std::make_shared<Imported>();
  absent->is_absent = true;
  return {absent};
}

Refs optional_has_element(const ControlCall& c) {
  const bool has = c.has(0) && !c.operands.at(0)->is_absent;
  return {Importer::of_known({DType::Bool, {}, {KnownNumber(int64_t{has})}})};
}

Refs optional_get_element(const ControlCall& c) {
  if (c.operand(0).is_absent) c.refuse("the optional must have an element");
  return {c.operands.at(0)};
}

// An operand that is known or no tensor stands for the result.
Refs identity(const ControlCall& c) {
  Imported& x = c.operand(0);
  if (x.sequence || x.is_absent || x.failed || c.importer.known_of(x, false)) {
    if (x.input < 0) return {c.operands.at(0)};
  }
  ImportedRef y =
      Importer::of_tensor(emit(c.importer.graph(), "Identity", {c.importer.tensor_of(x)}));
  y->known = x.known;
  y->meaning = x.meaning;
  y->keys = x.keys;
  return {y};
}

const ControlRegistrar kRows({{"Identity", identity},
                              {"SequenceConstruct", sequence_construct},
                              {"SequenceEmpty", sequence_empty},
                              {"SequenceAt", sequence_at},
                              {"SequenceInsert", sequence_insert},
                              {"SequenceErase", sequence_erase},
                              {"SequenceLength", sequence_length},
                              {"SequenceMap", sequence_map},
                              {"ConcatFromSequence", concat_from_sequence},
                              {"SplitToSequence", split_to_sequence},
                              {"Optional", optional},
                              {"OptionalHasElement", optional_has_element},
                              {"OptionalGetElement", optional_get_element}});

}  // namespace
}  // namespace ortmodule
