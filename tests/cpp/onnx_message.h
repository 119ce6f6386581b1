// Builds ONNX files field by field, so that tests can write what no tool writes, and prints models.
#pragma once

#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "onnx/onnx_model.h"
#include "onnx/onnx_types.h"

namespace ortmodule {

/// A serialized message. Field numbers are those of ortmodule_onnx.proto.
class Message {
 public:
  Message& number(int field, uint64_t value) {
    tag(field, 0);
    varint(value);
    return *this;
  }
  /// The same in ten bytes, so that a change of one bit may change the number a lot.
  Message& wide_number(int field, uint64_t value) {
    tag(field, 0);
    for (int i = 0; i < 9; ++i, value >>= 7u) bytes_ += static_cast<char>(value | 128u);
    bytes_ += static_cast<char>(value);
    return *this;
  }
  Message& text(int field, std::string_view bytes) {
    tag(field, 2);
    varint(bytes.size());
    bytes_ += bytes;
    return *this;
  }
  /// The start of a field whose bytes follow in another way.
  Message& start(int field, size_t bytes) {
    tag(field, 2);
    varint(bytes);
    return *this;
  }
  Message& message(int field, const Message& inner) { return text(field, inner.bytes_); }
  Message& float32(int field, float value) {
    tag(field, 5);
    return raw(value);
  }
  Message& float64(int field, double value) {
    tag(field, 1);
    return raw(value);
  }
  Message& packed(int field, const std::vector<uint64_t>& values) {
    Message inner;
    for (uint64_t value : values) inner.varint(value);
    return message(field, inner);
  }
  template <class T>
  Message& packed_fixed(int field, const std::vector<T>& values) {
    Message inner;
    for (T value : values) inner.raw(value);
    return message(field, inner);
  }
  /// Bytes that need not be a field.
  template <class T>
  Message& raw(T value) {
    const auto* start = reinterpret_cast<const char*>(&value);
    bytes_.append(start, sizeof(T));
    return *this;
  }
  Message& raw_text(std::string_view bytes) {
    bytes_ += bytes;
    return *this;
  }
  const std::string& bytes() const { return bytes_; }

 private:
  void tag(int field, uint64_t wire_type) {
    varint((static_cast<uint64_t>(field) << 3u) | wire_type);
  }
  void varint(uint64_t value) {
    for (; value >= 128; value >>= 7u) bytes_ += static_cast<char>(value | 128u);
    bytes_ += static_cast<char>(value);
  }

  std::string bytes_;
};

// ---- the messages of ONNX
// ------------------------------------------------------------------------

inline Message tensor_message(const std::string& name, int type,
                              std::initializer_list<uint64_t> dims) {
  Message tensor;
  for (uint64_t dim : dims) tensor.wide_number(1, dim);
  tensor.number(2, static_cast<uint64_t>(type));
  if (!name.empty()) tensor.text(8, name);
  return tensor;
}

inline Message entry_message(const std::string& key, const std::string& value) {
  return Message().text(1, key).text(2, value);
}

inline Message external_message(const std::string& name, std::initializer_list<uint64_t> dims,
                                const std::vector<std::pair<std::string, std::string>>& entries) {
  Message tensor = tensor_message(name, 1, dims);
  for (const auto& [key, value] : entries) tensor.message(13, entry_message(key, value));
  return tensor.number(14, 1);
}

inline Message node_message(const std::string& op, const std::vector<std::string>& inputs,
                            const std::vector<std::string>& outputs) {
  Message node;
  for (const std::string& input : inputs) node.text(1, input);
  for (const std::string& output : outputs) node.text(2, output);
  return node.text(4, op);
}

inline Message attr_message(const std::string& name, int type) {
  return Message().text(1, name).number(20, static_cast<uint64_t>(type));
}

/// A TypeProto of a tensor whose sizes are numbers.
inline Message tensor_type_message(int type, std::initializer_list<uint64_t> dims) {
  Message shape;
  for (uint64_t dim : dims) shape.message(1, Message().number(1, dim));
  return Message().message(1, Message().number(1, static_cast<uint64_t>(type)).message(2, shape));
}

inline Message value_message(const std::string& name, const Message& type) {
  return Message().text(1, name).message(2, type);
}

inline Message model_message(const Message& graph) {
  return Message().number(1, 10).message(8, Message().number(2, 21)).message(7, graph);
}

/// A model with one initializer.
inline Message model_with(const Message& tensor, int field = 5) {
  return model_message(Message().message(field, tensor));
}

// ---- printing
// ------------------------------------------------------------------------------------

/// All that a model holds, as text.
class ModelText {
 public:
  static std::string of(const OnnxModel& model) {
    ModelText text;
    text.add("ir ", model.ir_version, " of ", model.producer, "\n");
    text.opsets(model.opsets);
    text.metadata(model.metadata);
    text.graph(model.graph);
    for (const OnnxFunction& function : model.functions) text.function(function);
    return text.out_;
  }
  static std::string of(const OnnxTensor& tensor) {
    ModelText text;
    text.tensor(tensor);
    return text.out_;
  }

 private:
  template <class... Parts>
  void add(const Parts&... parts) {
    out_ += str(parts...);
  }
  void list(const std::vector<std::string>& names) {
    for (const std::string& name : names) add(" ", name);
  }
  void opsets(const std::vector<OnnxOpset>& opsets) {
    for (const OnnxOpset& opset : opsets) add("opset '", opset.domain, "' ", opset.version, "\n");
  }
  void metadata(const OnnxMetadata& metadata) {
    for (const auto& [key, value] : metadata) add("meta ", key, "=", value, "\n");
  }

  void element(DType dtype, int element_type) {
    add(onnx_type_name(element_type), dtype == onnx_dtype(element_type) ? "" : "?");
  }

  // Many bytes as their sum.
  void bytes(std::string_view bytes) {
    static constexpr char kDigits[] = "0123456789abcdef";
    size_t sum = 0;
    for (char byte : bytes) {
      const auto bits = static_cast<unsigned char>(byte);
      sum += bits;
      if (bytes.size() > 100) continue;
      out_ += kDigits[bits >> 4u];
      out_ += kDigits[bits & 15u];
    }
    if (bytes.size() > 100) add("sum ", sum);
  }

  void tensor(const OnnxTensor& tensor) {
    element(tensor.dtype, tensor.element_type);
    add("[");
    for (int64_t dim : tensor.dims) add(dim, ",");
    add("] ");
    bytes(tensor.bytes.view());
    list(tensor.strings);
  }

  void type(const OnnxType& type) {
    static constexpr const char* kKinds[] = {"unknown",  "tensor",   "sparse",
                                             "sequence", "optional", "map"};
    add(kKinds[static_cast<int>(type.kind)], " ");
    element(type.dtype, type.element_type);
    if (type.dims) {
      add("[");
      for (const OnnxDim& dim : *type.dims) {
        if (const auto* size = std::get_if<int64_t>(&dim)) add(*size);
        if (const auto* name = std::get_if<std::string>(&dim)) add(*name);
        if (std::holds_alternative<std::monostate>(dim)) add("?");
        add(",");
      }
      add("]");
    }
    if (!type.element) return;
    add(" of ");
    this->type(*type.element);
  }

  struct AttrText {
    ModelText& text;
    void operator()(int64_t value) const { text.add("i ", value); }
    void operator()(double value) const { text.add("f ", value); }
    void operator()(const std::string& value) const { text.add("s ", value); }
    void operator()(DType value) const { text.add(name_of(value)); }
    void operator()(const OnnxTensor& value) const { text.tensor(value); }
    void operator()(const OnnxType& value) const { text.type(value); }
    void operator()(const std::shared_ptr<const OnnxGraph>& value) const {
      text.add("{\n");
      text.graph(*value);
      text.add("}");
    }
    void operator()(const OnnxAttrReference& value) const {
      text.add("ref ", value.name, " ", value.type);
    }
    template <class T>
    void operator()(const std::vector<T>& values) const {
      text.add("(");
      for (const T& value : values) {
        (*this)(value);
        text.add("; ");
      }
      text.add(")");
    }
  };

  void attrs(const OnnxAttrs& attrs) {
    for (const auto& [name, attr] : attrs) {
      add("  ", name, ": ");
      std::visit(AttrText{*this}, attr);
      add("\n");
    }
  }

  void nodes(const std::vector<OnnxNode>& nodes) {
    for (const OnnxNode& node : nodes) {
      add("node ", node.name, " = ", node.domain, ".", node.op, ".", node.overload, ":");
      list(node.inputs);
      add(" ->");
      list(node.outputs);
      add("\n");
      attrs(node.attrs);
      metadata(node.metadata);
    }
  }

  void values(const char* what, const std::vector<OnnxValue>& values) {
    for (const OnnxValue& value : values) {
      add(what, " ", value.name, ": ");
      type(value.type);
      add("\n");
    }
  }

  void graph(const OnnxGraph& graph) {
    add("graph ", graph.name, "\n");
    values("input", graph.inputs);
    values("output", graph.outputs);
    values("value", graph.values);
    for (const OnnxInitializer& initializer : graph.initializers) {
      add("init ", initializer.name, " ");
      tensor(initializer.tensor);
      add("\n");
    }
    nodes(graph.nodes);
  }

  void function(const OnnxFunction& function) {
    add("function ", function.domain, ".", function.name, ".", function.overload, ":");
    list(function.inputs);
    add(" ->");
    list(function.outputs);
    add(" with");
    list(function.attrs);
    add("\n");
    attrs(function.defaults);
    opsets(function.opsets);
    nodes(function.nodes);
  }

  std::string out_;
};

// ---- small models of all kinds
// -------------------------------------------------------------------

/// A model with an If, whose branch has a constant, and an attribute of each type.
inline Message model_of_attributes() {
  const Message value = tensor_message("", 7, {1}).packed(7, {5});
  const Message branch =
      Message()
          .message(1, node_message("Constant", {}, {"c"})
                          .message(5, attr_message("value", 4).message(5, value)))
          .text(2, "yes")
          .message(12, value_message("c", tensor_type_message(7, {1})));
  Message node = node_message("If", {"cond"}, {"y"}).text(3, "choice").text(7, "ai.onnx");
  node.message(5, attr_message("then_branch", 5).message(6, branch));
  node.message(5, attr_message("f", 1).float32(2, 0.5f));
  node.message(5, attr_message("i", 2).number(3, static_cast<uint64_t>(-3)));
  node.message(5, attr_message("s", 3).text(4, "a\xff"));
  node.message(5, attr_message("fs", 6).packed_fixed<float>(7, {1, 2}).float32(7, 3));
  node.message(5, attr_message("is", 7).number(8, 4).packed(8, {5, 6}));
  node.message(5, attr_message("ss", 8).text(9, "a").text(9, ""));
  node.message(5, attr_message("ts", 9).message(10, value).message(10, value));
  node.message(5, attr_message("gs", 10).message(11, branch));
  node.message(5, attr_message("tp", 13).message(14, tensor_type_message(1, {2, 3})));
  node.message(5, attr_message("none", 7));
  node.message(5, attr_message("zero", 2));
  node.message(9, entry_message("key", "value"));
  return model_message(Message().message(1, node).text(2, "main"));
}

/// A model that calls a function of its own.
inline Message model_of_functions() {
  Message body = node_message("LeakyRelu", {"x"}, {"y"});
  body.message(5, Message().text(1, "alpha").number(20, 1).text(21, "slope"));
  Message function = Message().text(1, "Leak").text(10, "mine").text(13, "fast");
  function.text(4, "x").text(5, "y").text(6, "slope").message(7, body);
  function.message(9, Message().text(1, "ai.onnx").number(2, 20));
  function.message(11, attr_message("beta", 1).float32(2, 2));
  const Message node = node_message("Leak", {"a"}, {"b"}).text(7, "mine").text(8, "fast");
  return model_message(Message().message(1, node)).message(25, function);
}

/// A model whose inputs are of all types.
inline Message model_of_types() {
  const Message tensor = tensor_type_message(1, {});
  Message shape;
  shape.message(1, Message().number(1, 4)).message(1, Message().text(2, "n")).message(1, Message());
  shape.message(1, Message().number(1, static_cast<uint64_t>(-1)));
  const Message sized = Message().message(1, Message().number(1, 10).message(2, shape));
  Message graph;
  graph.message(11, value_message("sized", sized));
  graph.message(11, value_message("any_rank", Message().message(1, Message().number(1, 4))));
  graph.message(11, value_message("list", Message().message(4, Message().message(1, tensor))));
  graph.message(11, value_message("maybe", Message().message(9, Message().message(1, sized))));
  graph.message(
      11, value_message("map", Message().message(5, Message().number(1, 8).message(2, tensor))));
  graph.message(11, value_message("sparse", Message().message(8, Message().number(1, 1))));
  graph.message(11, Message().text(1, "untyped"));
  graph.message(13, value_message("between", sized));
  return model_message(graph);
}

/// A 2 x 3 tensor with two values.
inline Message sparse_message() {
  const Message values = tensor_message("s", 1, {2}).packed_fixed<float>(4, {1.5f, 2.5f});
  const Message indices = tensor_message("", 7, {2, 2}).packed(7, {0, 2, 1, 0});
  return Message().message(1, values).message(2, indices).wide_number(3, 2).wide_number(3, 3);
}

}  // namespace ortmodule
