// Everything the program knows about one operator, in one struct, registered by the op's own file.
// An op is ONNX's; an empty domain is the standard one, "com.microsoft" holds fused ops and
// gradients, "org.pytorch.aten" what the dispatcher runs.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/layout.h"
#include "ir/graph.h"
#include "onnx/onnx_rule.h"
#include "ops/grad_context.h"
#include "ops/torch_call.h"

namespace ortmodule {

/// What an op does to memory, in one word. Grouping, cost and recompute read it.
enum class OpKind : uint8_t {
  View,       // output shares the input's storage where a legal view exists
  Pointwise,  // each output element from the same element of the (broadcast) operands
  Reduction,  // fewer output elements than input elements
  Norm,       // row-wise statistics, then pointwise: softmax, layer norm
  MatMul,     // compute-bound: matrix products, convolutions, attention
  Data,       // moves elements: concat, gather, pad
  Opaque,     // only its kernel knows
};

/// Sets the output types of a node from its operands and attributes.
class InferContext {
 public:
  explicit InferContext(Node& node) : node_(node) {}
  const Node& node() const { return node_; }
  const Attrs& attrs() const { return node_.attrs; }
  size_t input_count() const { return node_.inputs().size(); }
  bool has_input(size_t i) const { return node_.input(i) != nullptr; }
  /// Operand i; Error naming op and operand if it is absent.
  const Value& input(size_t i) const;
  void set(size_t output, DType dtype, Dims dims);
  /// Fails with `[Op] rule, but found ... (origin)`.
  [[noreturn]] void fail(const std::string& message) const;
  /// Attribute `axis` counted from the front, checked against `rank`.
  int64_t axis(std::string_view attr, size_t rank) const;

 private:
  Node& node_;
};

using InferFn = void (*)(InferContext&);
/// Layout of output `output` of a view op as a view of operand 0, or nothing if no view of this
/// input layout is legal.
using ViewFn = std::optional<Layout> (*)(const Layout& in, const Attrs& resolved,
                                         const Sizes& out_sizes, size_t output);
/// Layout of the copy that a view op makes of an operand with these sizes.
using CopiedFn = Layout (*)(const Sizes&);
using GradFn = Grads (*)(GradContext&);
/// Floating point operations of the node for concrete sizes.
using FlopsFn = double (*)(const Attrs& resolved, const std::vector<Sizes>& in,
                           const std::vector<Sizes>& out);

/// One spelling in torch of (a part of) this op.
struct TorchRow {
  std::string_view target;  // "aten.softmax.int"
  Values (*convert)(TorchCall&) = nullptr;
};

/// A fact that holds for every node of an op.
inline bool always(const Node&) { return true; }

struct OpDef {
  std::string_view name = {};
  std::string_view domain = {};
  std::vector<std::string_view> inputs = {};   // "x"; optional "bias?"; variadic, last: "xs*"
  std::vector<std::string_view> outputs = {};  // likewise
  Attrs attrs = {};                            // defaults; an attribute not listed must be given
  OpKind kind = OpKind::Opaque;
  bool commutative = false;  // the first two operands may be swapped
  bool random = false;       // draws from the run's Philox stream given by attribute `rng`
  /// Draws from a generator nobody recorded, or has effects: never cloned, merged or removed.
  bool effect = false;
  InferFn infer = nullptr;
  ViewFn view = nullptr;
  /// Of a view op: how it copies an operand of which no view is legal; null: row-major.
  CopiedFn copied = nullptr;
  /// Whether a channels-last first operand (of an op that moves data: all operands) gives a
  /// channels-last result, as fast as a row-major one; null: pointwise ops do, others do not.
  bool (*keeps_channels_last)(const Node&) = nullptr;
  GradFn grad = nullptr;
  /// Operand i has no gradient by definition (indices, masks): silent, not a missing rule.
  std::vector<size_t> non_differentiable = {};
  /// Whether output k depends on operand i, where not every one does on every one.
  bool (*depends)(size_t output, size_t operand) = nullptr;
  FlopsFn flops = nullptr;
  /// Definition by other ops in the text notation; operands and outputs by the names above and
  /// attributes as `@name`. Used as pattern, gradient, ONNX form and fallback kernel.
  std::string_view body = {};
  /// A kernel may round otherwise than the body, so that no part of the body stands for a result
  /// of the op: it is recomputed whole or not at all.
  bool indivisible = false;
  OnnxRule onnx = {};  // how it stands in an ONNX file
  std::vector<TorchRow> from_torch = {};
};

/// The op of that name, or null.
const OpDef* find_op(std::string_view name);
/// The op of that name; InternalError if there is none.
const OpDef& op_def(std::string_view name);
/// The conversion of a torch overload, or null.
const TorchRow* find_torch_row(std::string_view target);
/// All torch overloads with a conversion, sorted.
std::vector<std::string_view> all_torch_targets();
/// Has effects or draws from a generator that nobody recorded: never cloned, merged or removed.
bool is_impure(const Node& node);
/// All ops by name.
std::vector<const OpDef*> all_ops();

/// Registers at static initialization; a name or torch target registered twice is a fatal error.
class OpRegistrar {
 public:
  OpRegistrar(std::string_view name, OpDef def, std::string_view file);
  /// A family in one table.
  OpRegistrar(std::vector<OpDef> defs, std::string_view file);
};

/// Registers conversions of torch overloads that are compositions and belong to no single op.
class TorchRegistrar {
 public:
  explicit TorchRegistrar(std::vector<TorchRow> rows);
};

/// Source file that registered the op, for `python -m ortmodule_py.ops`.
std::string_view file_of(const OpDef& def);

}  // namespace ortmodule

#define ORTM_CONCAT_INNER(a, b) a##b
#define ORTM_CONCAT(a, b) ORTM_CONCAT_INNER(a, b)
/// REGISTER_OP(Softmax, {.inputs = {"x"}, ...});
#define REGISTER_OP(op_name, ...)                                                                \
  static const ::ortmodule::OpRegistrar ORTM_CONCAT(registrar_, __LINE__)(#op_name, __VA_ARGS__, \
                                                                          __FILE__)
/// REGISTER_OPS(table) with a std::vector<OpDef> whose rows carry their names.
#define REGISTER_OPS(table) \
  static const ::ortmodule::OpRegistrar ORTM_CONCAT(registrar_, __LINE__)(table, __FILE__)
/// REGISTER_TORCH({{"aten.mse_loss.default", convert_mse}, ...});
#define REGISTER_TORCH(...)                             \
  static const ::ortmodule::TorchRegistrar ORTM_CONCAT( \
      torch_registrar_, __LINE__)(std::vector<::ortmodule::TorchRow> __VA_ARGS__)
