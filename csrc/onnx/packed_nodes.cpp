#include "onnx/packed_nodes.h"

#include <optional>
#include <utility>

#include "base/byte_pack.h"

namespace ortmodule {
namespace {

enum class PackedAttr : uint8_t { Integer, Integers, Text, Other };

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
bool pack_attr(ByteWriter& to, const OnnxAttr& attr) {
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
  } else {
    to.byte(PackedAttr::Other);
    return false;
  }
  return true;
}

/// Nothing for one that was not packed.
std::optional<OnnxAttr> unpack_attr(ByteReader& from) {
  switch (from.byte<PackedAttr>()) {
    case PackedAttr::Integer: return from.integer();
    case PackedAttr::Integers: {
      std::vector<int64_t> integers(from.number());
      for (int64_t& each : integers) each = from.integer();
      return integers;
    }
    case PackedAttr::Text: return std::string(from.text());
    default: return std::nullopt;
  }
}

void pack_node(ByteWriter& to, OnnxNode& node, OnnxAttrs& staying, std::vector<OnnxRest>& rests) {
  for (const std::string* text : {&node.op, &node.domain, &node.name, &node.overload})
    to.text(*text);
  pack_texts(to, node.inputs);
  pack_texts(to, node.outputs);
  to.number(node.attrs.size());
  for (auto& attr : node.attrs) {
    if (pack_attr(to, attr.second))
      to.text(attr.first);
    else
      staying.push_back(std::move(attr));
  }
  to.number(node.metadata.size());
  for (const auto& [key, value] : node.metadata) {
    to.text(key);
    to.text(value);
  }
  to.byte(node.rest != nullptr);
  if (node.rest) rests.push_back(std::move(node.rest));
}

OnnxNode unpack_node(ByteReader& from, OnnxAttrs::const_iterator& staying,
                     std::vector<OnnxRest>::const_iterator& rest) {
  OnnxNode node;
  for (std::string* text : {&node.op, &node.domain, &node.name, &node.overload})
    *text = from.text();
  node.inputs = unpack_texts(from);
  node.outputs = unpack_texts(from);
  const uint64_t attrs = from.number();
  node.attrs.reserve(attrs);
  for (uint64_t i = 0; i < attrs; ++i) {
    std::optional<OnnxAttr> value = unpack_attr(from);
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
  if (from.byte<bool>()) node.rest = *rest++;
  return node;
}

}  // namespace

PackedNodes::PackedNodes(std::vector<OnnxNode> nodes) {
  ByteWriter to;
  to.number(nodes.size());
  for (OnnxNode& node : nodes) pack_node(to, node, attrs_, rests_);
  bytes_ = to.take();
  attrs_.shrink_to_fit();
  rests_.shrink_to_fit();
}

std::vector<OnnxNode> PackedNodes::unpacked() const {
  ByteReader from(bytes_);
  auto attr = attrs_.begin();
  auto rest = rests_.begin();
  std::vector<OnnxNode> nodes(from.number());
  for (OnnxNode& node : nodes) node = unpack_node(from, attr, rest);
  return nodes;
}

}  // namespace ortmodule
