#include "onnx/packed_nodes.h"

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/byte_pack.h"

namespace ortmodule {
namespace {

enum class PackedAttr : uint8_t { Integer, Integers, Text, Tensor, Other };

using Owners = std::vector<std::shared_ptr<const void>>;

/// The owners of bytes, each once.
class OwnerTable {
 public:
  size_t place(const std::shared_ptr<const void>& owner) {
    const auto [known, is_new] = places_.try_emplace(owner, owners_.size());
    if (is_new) owners_.push_back(owner);
    return known->second;
  }
  Owners take() {
    owners_.shrink_to_fit();
    return std::move(owners_);
  }

 private:
  Owners owners_;
  std::map<std::shared_ptr<const void>, size_t, std::owner_less<>> places_;
};

bool is_packable(const OnnxTensor& tensor) {
  return tensor.strings.empty() && !tensor.rest && !tensor.sparse && !tensor.source;
}

// Its bytes are a place that an owner keeps alive.
void pack_tensor(ByteWriter& to, const OnnxTensor& tensor, OwnerTable& owners) {
  to.byte(tensor.dtype);
  to.integer(tensor.element_type);
  to.number(tensor.dims.size());
  for (int64_t size : tensor.dims) to.integer(size);
  const SharedBytes& bytes = tensor.bytes;
  to.number(owners.place(bytes.owner()));
  to.number(reinterpret_cast<uintptr_t>(bytes.data()));
  to.number(bytes.size());
  to.byte(bytes.mapped());
}

OnnxTensor unpack_tensor(ByteReader& from, const Owners& owners) {
  OnnxTensor tensor;
  tensor.dtype = from.byte<DType>();
  tensor.element_type = static_cast<int>(from.integer());
  tensor.dims.resize(from.number());
  for (int64_t& size : tensor.dims) size = from.integer();
  const std::shared_ptr<const void>& owner = owners[from.number()];
  const auto* data = reinterpret_cast<const char*>(from.number());
  const size_t size = from.number();
  tensor.bytes = SharedBytes(owner, {data, size}, from.byte<bool>());
  return tensor;
}

void pack_texts(ByteWriter& to, const std::vector<std::string>& texts) {
  to.number(texts.size());
  for (const std::string& text : texts) to.text(text);
}

std::vector<std::string> unpack_texts(ByteReader& from) {
  std::vector<std::string> texts(from.number());
  for (std::string& text : texts) text = from.text();
  return texts;
}

/// Returns whether the attribute is packed.
bool pack_attr(ByteWriter& to, const OnnxAttr& attr, OwnerTable& owners) {
  if (const auto* integer = std::get_if<int64_t>(&attr)) {
    to.byte(PackedAttr::Integer);
    to.integer(*integer);
  } else if (const auto* integers = std::get_if<std::vector<int64_t>>(&attr)) {
    to.byte(PackedAttr::Integers);
    to.number(integers->size());
    for (int64_t each : *integers) to.integer(each);
  } else if (const auto* text = std::get_if<std::string>(&attr)) {
    to.byte(PackedAttr::Text);
    to.text(*text);
  } else if (const auto* tensor = std::get_if<OnnxTensor>(&attr); tensor && is_packable(*tensor)) {
    to.byte(PackedAttr::Tensor);
    pack_tensor(to, *tensor, owners);
  } else {
    to.byte(PackedAttr::Other);
    return false;
  }
  return true;
}

/// Nothing for one that was not packed.
std::optional<OnnxAttr> unpack_attr(ByteReader& from, const Owners& owners) {
  switch (from.byte<PackedAttr>()) {
    case PackedAttr::Integer: return from.integer();
    case PackedAttr::Integers: {
      std::vector<int64_t> integers(from.number());
      for (int64_t& each : integers) each = from.integer();
      return integers;
    }
    case PackedAttr::Text: return std::string(from.text());
    case PackedAttr::Tensor: return unpack_tensor(from, owners);
    default: return std::nullopt;
  }
}

// The unknown fields of a message, of which there are rarely any.
void pack_rest(ByteWriter& to, const OnnxRest& rest) {
  to.byte(rest != nullptr);
  if (rest) to.text(*rest);
}

OnnxRest unpack_rest(ByteReader& from) {
  if (!from.byte<bool>()) return nullptr;
  return std::make_shared<const std::string>(from.text());
}

void pack_node(ByteWriter& to, OnnxNode& node, OnnxAttrs& staying, OwnerTable& owners) {
  for (const std::string* text : {&node.op, &node.domain, &node.name, &node.overload})
    to.text(*text);
  pack_texts(to, node.inputs);
  pack_texts(to, node.outputs);
  to.number(node.attrs.size());
  for (auto& attr : node.attrs) {
    if (pack_attr(to, attr.second, owners))
      to.text(attr.first);
    else
      staying.push_back(std::move(attr));
  }
  to.number(node.metadata.size());
  for (const auto& [key, value] : node.metadata) {
    to.text(key);
    to.text(value);
  }
  pack_rest(to, node.rest);
}

OnnxNode unpack_node(ByteReader& from, OnnxAttrs::const_iterator& staying, const Owners& owners) {
  OnnxNode node;
  for (std::string* text : {&node.op, &node.domain, &node.name, &node.overload})
    *text = from.text();
  node.inputs = unpack_texts(from);
  node.outputs = unpack_texts(from);
  const uint64_t attrs = from.number();
  node.attrs.reserve(attrs);
  for (uint64_t i = 0; i < attrs; ++i) {
    std::optional<OnnxAttr> value = unpack_attr(from, owners);
    if (value)
      node.attrs.emplace_back(from.text(), std::move(*value));
    else
      node.attrs.push_back(*staying++);
  }
  node.metadata.resize(from.number());
  for (auto& [key, value] : node.metadata) {
    key = from.text();
    value = from.text();
  }
  node.rest = unpack_rest(from);
  return node;
}

enum class PackedDim : uint8_t { Unknown, Number, Name };

/// Returns whether the value is packed.
bool pack_value(ByteWriter& to, const OnnxValue& value) {
  const OnnxType& type = value.type;
  const bool packs = type.kind == OnnxType::Kind::Tensor && !type.rest && !type.element &&
                     type.denotations.empty();
  to.byte(packs);
  if (!packs) return false;
  to.text(value.name);
  pack_rest(to, value.rest);
  to.byte(type.dtype);
  to.integer(type.element_type);
  to.number(type.dims ? type.dims->size() + 1 : 0);
  if (!type.dims) return true;
  for (const OnnxDim& dim : *type.dims) {
    to.byte(static_cast<PackedDim>(dim.index()));
    if (const auto* number = std::get_if<int64_t>(&dim)) to.integer(*number);
    if (const auto* name = std::get_if<std::string>(&dim)) to.text(*name);
  }
  return true;
}

OnnxDim unpack_dim(ByteReader& from) {
  switch (from.byte<PackedDim>()) {
    case PackedDim::Number: return from.integer();
    case PackedDim::Name: return std::string(from.text());
    default: return std::monostate();
  }
}

/// Nothing for one that was not packed.
std::optional<OnnxValue> unpack_value(ByteReader& from) {
  if (!from.byte<bool>()) return std::nullopt;
  OnnxValue value;
  value.name = from.text();
  value.rest = unpack_rest(from);
  value.type.kind = OnnxType::Kind::Tensor;
  value.type.dtype = from.byte<DType>();
  value.type.element_type = static_cast<int>(from.integer());
  const uint64_t rank = from.number();
  if (rank == 0) return value;
  for (OnnxDim& dim : value.type.dims.emplace(rank - 1)) dim = unpack_dim(from);
  return value;
}

/// The name and the tensor; returns whether it is packed.
bool pack_constant(ByteWriter& to, const OnnxInitializer& constant, OwnerTable& owners) {
  const bool packs = is_packable(constant.tensor);
  to.byte(packs);
  if (!packs) return false;
  to.text(constant.name);
  pack_tensor(to, constant.tensor, owners);
  return true;
}

/// Nothing for one that was not packed.
std::optional<OnnxInitializer> unpack_constant(ByteReader& from, const Owners& owners) {
  if (!from.byte<bool>()) return std::nullopt;
  OnnxInitializer constant;
  constant.name = from.text();
  constant.tensor = unpack_tensor(from, owners);
  return constant;
}

}  // namespace

PackedNodes::PackedNodes(OnnxGraph& graph) {
  ByteWriter to;
  OwnerTable owners;
  std::vector<OnnxNode> nodes = std::exchange(graph.nodes, {});
  to.number(nodes.size());
  for (OnnxNode& node : nodes) pack_node(to, node, attrs_, owners);
  std::vector<OnnxValue> values = std::exchange(graph.values, {});
  to.number(values.size());
  for (OnnxValue& value : values)
    if (!pack_value(to, value)) values_.push_back(std::move(value));
  std::vector<OnnxInitializer> constants = std::exchange(graph.initializers, {});
  to.number(constants.size());
  for (OnnxInitializer& constant : constants)
    if (!pack_constant(to, constant, owners)) constants_.push_back(std::move(constant));
  bytes_ = PackedBytes(to.bytes());
  owners_ = owners.take();
  attrs_.shrink_to_fit();
  values_.shrink_to_fit();
  constants_.shrink_to_fit();
}

void PackedNodes::unpack_into(OnnxGraph& graph) const {
  const std::string bytes = bytes_.unpacked();
  ByteReader from(bytes);
  auto attr = attrs_.begin();
  graph.nodes.resize(from.number());
  for (OnnxNode& node : graph.nodes) node = unpack_node(from, attr, owners_);
  auto staying = values_.begin();
  graph.values.resize(from.number());
  for (OnnxValue& value : graph.values) {
    std::optional<OnnxValue> packed = unpack_value(from);
    value = packed ? std::move(*packed) : *staying++;
  }
  auto constant = constants_.begin();
  graph.initializers.resize(from.number());
  for (OnnxInitializer& each : graph.initializers) {
    std::optional<OnnxInitializer> packed = unpack_constant(from, owners_);
    each = packed ? std::move(*packed) : *constant++;
  }
}

}  // namespace ortmodule
