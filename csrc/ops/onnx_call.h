// A node of an ONNX model during its import: typed access to its attributes and operands, decisions
// on sizes, and emission of nodes. Import rules stand beside the export form of an op
// (OpDef::from_onnx), those of operators without an op of their own in ops/onnx_<family>.cpp.
#pragma once

#include <exception>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "onnx/onnx_model.h"
#include "onnx/onnx_types.h"
#include "ops/emit.h"
#include "ops/known_value.h"
#include "ops/size_guards.h"

namespace ortmodule {

/// Thrown where a node cannot be imported before other nodes were run: the content of an operand
/// decides sizes, or the number of results is known only when they are computed.
class DataNeeded : public std::exception {
 public:
  explicit DataNeeded(std::string why) : why_(std::move(why)) {}
  const char* what() const noexcept override { return why_.c_str(); }

  /// The operator computes results of sizes of its own, by these attributes: see SizedOp.
  std::optional<Attrs> sized{};
  /// It is in a subgraph or function of the node that was imported.
  bool is_inside = false;
  /// The node's subgraph must be run as often as data says.
  bool runs_subgraph = false;

 private:
  std::string why_;
};

/// What the elements of a value are for callers. The engine knows numbers only: texts are their
/// places in the model's table (onnx/text_table.h), maps a row of values for each.
enum class OnnxMeaning : uint8_t { Numbers, Texts, Maps };

/// The keys of maps, by column: one of these.
struct OnnxMapKeys {
  std::vector<int64_t> integers;
  std::vector<std::string> texts;
};

/// Which operands of a rule may be texts, by bit.
struct TextOperands {
  uint32_t operands = 0;
  bool moved = false;  // to the outputs, where they are not numbers of another kind
  bool mixed = false;  // some may be texts while others are numbers
};
/// For rules that compare texts, or look at sizes only.
constexpr TextOperands reads_texts(uint32_t operands = 1) { return {operands, false}; }
/// For rules that only move elements of these operands: all of them must be texts, or none.
constexpr TextOperands moves_texts(uint32_t operands = 1) { return {operands, true}; }

/// The operands of a node, made when a rule asks for them.
class OnnxOperands {
 public:
  virtual ~OnnxOperands() = default;
  virtual size_t count() const = 0;
  virtual bool has(size_t i) const = 0;
  virtual DType dtype(size_t i) = 0;
  virtual Dims dims(size_t i) = 0;
  /// The operand as a tensor of the graph.
  virtual Value* tensor(size_t i) = 0;
  /// Its content, or null if it is not known. `required`: a rule cannot do without, so that the
  /// graph may be imported for the content of an input of real numbers.
  virtual const KnownValue* known(size_t i, bool required) = 0;
  /// Whether a content depends on that of the model's inputs.
  virtual bool is_input_content(const KnownValue& value) = 0;
  /// A tensor of the graph with this content.
  virtual Value* constant(const KnownValue& value) = 0;
  /// The same for a tensor that was computed from attributes.
  virtual Value* weight(const OnnxTensor& tensor) = 0;
  /// The constant that a tensor of the graph has as its content, or null.
  virtual const OnnxTensor* weight_of(const Value& tensor) const = 0;
  /// The number for a rule to which all far ones mean the same, the end of an axis say. Elsewhere a
  /// far element of an input is refused or computed as data.
  virtual DimExpr place(const DimExpr& number) = 0;
  virtual OnnxMeaning meaning(size_t i) = 0;
  /// The number of a text of the model.
  virtual int64_t text_number(const std::string& text) = 0;
};

class OnnxCall {
 public:
  OnnxCall(Graph& graph, const OnnxNode& node, int64_t opset, OnnxOperands& operands,
           SizeGuards& sizes)
      : graph_(graph), node_(node), opset_(opset), operands_(operands), sizes_(sizes) {}

  Graph& graph() { return graph_; }
  const OnnxNode& node() const { return node_; }
  /// Version of the operator set of the node's domain in the model.
  int64_t opset() const { return opset_; }
  /// The same node as one of another version, for a rule that imports it as another operator.
  OnnxCall at_opset(int64_t opset) const {
    return OnnxCall(graph_, node_, opset, operands_, sizes_);
  }

  // --- operands
  size_t input_count() const { return operands_.count(); }
  bool has(size_t i) const { return operands_.has(i); }
  /// Operand i as a tensor. Refuses an absent one.
  Value* in(size_t i);
  Value* optional(size_t i) { return has(i) ? in(i) : nullptr; }
  Values ins();
  DType dtype(size_t i) const;
  Dims dims(size_t i) const;
  size_t rank(size_t i) const { return dims(i).size(); }
  /// The content of operand i, or null if it is not known.
  const KnownValue* known(size_t i) const { return has(i) ? operands_.known(i, false) : nullptr; }
  bool is_input_content(const KnownValue& value) const { return operands_.is_input_content(value); }
  /// The content of operand i. Refuses if it is not known.
  const KnownValue& content(size_t i) const;
  /// The content of integer operand i as sizes.
  Dims content_sizes(size_t i) const;
  /// The same as places along axes: see OnnxOperands::place.
  Dims content_places(size_t i) const;
  /// The content of operand i, fixed to the values of the first call.
  std::vector<int64_t> fixed_integers(size_t i);
  std::vector<double> fixed_numbers(size_t i);
  /// Whether operand i is of texts, as int64. Only rules with TextOperands see such operands.
  bool has_texts(size_t i) const { return has(i) && operands_.meaning(i) == OnnxMeaning::Texts; }
  int64_t text_number(const std::string& text) const { return operands_.text_number(text); }
  /// What an output is, where it is not numbers.
  void set_meaning(size_t output, OnnxMeaning meaning,
                   std::shared_ptr<const OnnxMapKeys> keys = nullptr) {
    meanings_.push_back({output, meaning, std::move(keys)});
  }
  struct Meaning {
    size_t output = 0;
    OnnxMeaning meaning = OnnxMeaning::Numbers;
    std::shared_ptr<const OnnxMapKeys> keys;
  };
  const std::vector<Meaning>& meanings() const { return meanings_; }
  /// A number, if the operand is a constant of one element.
  std::optional<double> constant_number(size_t i) const;
  bool wants_output(size_t i) const {
    return i < node_.outputs.size() && !node_.outputs[i].empty();
  }

  // --- attributes
  const OnnxAttr* find(std::string_view name) const;
  bool has_attr(std::string_view name) const { return find(name) != nullptr; }
  int64_t integer(std::string_view name) const;
  int64_t integer(std::string_view name, int64_t fallback) const;
  bool flag(std::string_view name, bool fallback = false) const {
    return integer(name, fallback ? 1 : 0) != 0;
  }
  double number(std::string_view name, double fallback) const;
  std::string string(std::string_view name, std::string_view fallback) const;
  /// One of these words; the first if absent. Refuses others.
  std::string word(std::string_view name, std::initializer_list<std::string_view> words) const;
  std::vector<int64_t> integers(std::string_view name) const;  // empty if absent
  std::vector<double> numbers(std::string_view name) const;
  std::vector<std::string> strings(std::string_view name) const;
  const OnnxTensor* tensor_attr(std::string_view name) const;
  /// The element type that an attribute names by its number in ONNX. Without a fallback it must be
  /// there.
  DType dtype_attr(std::string_view name, DType fallback = DType::Undefined) const;
  /// An axis as a non-negative number. Refuses one outside of `rank`.
  int64_t axis(int64_t given, size_t rank) const;
  int64_t axis_attr(std::string_view name, int64_t fallback, size_t rank) const {
    return axis(integer(name, fallback), rank);
  }
  /// Axes from operand `i` (since `opset`) or from attribute `axes` before, non-negative.
  std::vector<int64_t> axes(size_t i, size_t rank);

  // --- sizes
  SizeGuards& sizes() { return sizes_; }
  /// Fixed sizes of a known result; nullopt if it would have too many elements.
  std::optional<std::vector<int64_t>> known_size_of(const Dims& dims);
  /// Sizes as a known value of int64.
  static KnownValue known_sizes(const Dims& dims);

  // --- emission
  /// Emits a node. Refuses if the op does not support the shapes or types.
  Value* emit(std::string_view op, Values inputs, Attrs attrs = {});
  Values emit_all(std::string_view op, Values inputs, Attrs attrs = {}, size_t outputs = 0);
  Value* cast(Value* value, DType dtype) { return emit_cast(graph_, value, dtype); }
  Value* literal(double value, DType dtype) { return graph_.literal(value, dtype); }
  Value* constant(const KnownValue& value) { return operands_.constant(value); }
  Value* weight(const OnnxTensor& tensor) { return operands_.weight(tensor); }
  /// The constant that a tensor of the graph has as its content, or null.
  const OnnxTensor* weight_of(const Value& tensor) const { return operands_.weight_of(tensor); }
  Value* reshape(Value* value, const Dims& dims);
  Value* transpose(Value* value, const std::vector<int64_t>& permutation);
  Value* slice(Value* value, int64_t axis, const DimExpr& start, const DimExpr& end,
               int64_t step = 1);
  Value* concat(const Values& values, int64_t axis);
  Value* full(double value, Dims dims, DType dtype);
  Value* reduce(std::string_view op, Value* value, const std::vector<int64_t>& axes, bool keepdims);
  /// Broadcasts the operands: sizes that are 1 in this call are made so in the graph.
  Values broadcast(Values values);
  /// `value` with this shape, to which it must broadcast.
  Value* expand(Value* value, const Dims& shape);
  /// A pointwise op on broadcast operands.
  Value* pointwise(std::string_view op, Values inputs, Attrs attrs = {}) {
    return emit(op, broadcast(std::move(inputs)), std::move(attrs));
  }
  /// The number of the next random stream of the graph.
  int64_t next_rng_stream();

  /// Throws Refused: the node is not valid, for this reason.
  [[noreturn]] void refuse(const std::string& why) const;
  /// Throws Unsupported: ONNX has what the node asks for, and the engine lacks it.
  [[noreturn]] void unsupported(const std::string& why) const;

 private:
  Graph& graph_;
  const OnnxNode& node_;
  int64_t opset_;
  OnnxOperands& operands_;
  SizeGuards& sizes_;
  std::vector<Meaning> meanings_;
};

/// The nodes of an operator, as values by output; null for an output that nobody wants.
using OnnxConvert = Values (*)(OnnxCall&);
/// The contents of the outputs, or nullopt if they are not known.
using OnnxKnown = std::optional<std::vector<KnownValue>> (*)(OnnxCall&);

/// The import of an operator, from a version of its operator set on.
struct OnnxRow {
  std::string_view op;
  int64_t since = 1;
  OnnxConvert convert = nullptr;  // null: its outputs are known, or `sized`
  OnnxKnown known = nullptr;
  std::string_view domain = {};
  /// Of an operator whose results have sizes that only its data tells: the attributes of the
  /// SizedOp of the same name. Refuses operands and attributes that do not fit.
  Attrs (*sized)(OnnxCall&) = nullptr;
  TextOperands texts = {};
};

/// The row for an operator of a model with that operator set, or null.
const OnnxRow* find_onnx_row(std::string_view domain, std::string_view op, int64_t opset);
/// All rows, sorted by domain, operator and version.
std::vector<const OnnxRow*> all_onnx_rows();

/// A number of the type of `like`.
inline Value* number(OnnxCall& c, double value, const Value* like) {
  return c.literal(value, like->dtype);
}
/// The number `size`, which may depend on sizes of inputs.
inline Value* size_number(OnnxCall& c, const DimExpr& size, DType dtype = DType::Int64) {
  return c.graph().literal(size, dtype);
}

/// Registers rows at static initialization.
class OnnxRegistrar {
 public:
  explicit OnnxRegistrar(std::vector<OnnxRow> rows);
};

}  // namespace ortmodule

#define ORTM_ONNX_CONCAT_INNER(a, b) a##b
#define ORTM_ONNX_CONCAT(a, b) ORTM_ONNX_CONCAT_INNER(a, b)
/// REGISTER_ONNX({{"Flatten", 1, import_flatten}, ...});
#define REGISTER_ONNX(...)                                  \
  static const ::ortmodule::OnnxRegistrar ORTM_ONNX_CONCAT( \
      onnx_registrar_, __COUNTER__)(std::vector<::ortmodule::OnnxRow> __VA_ARGS__)
