// The definition of an operator, registered by the op's own file. Ops follow ONNX: the empty domain
// is the standard one, "com.microsoft" has fused ops and gradients, and "org.pytorch.aten" the ops
// that torch's dispatcher runs.
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

/// How an op accesses memory. Used by fusion into groups, the cost model and recomputation.
enum class OpKind : uint8_t {
  View,       // the output aliases operand 0 where a view is legal, else copies it
  Pointwise,  // each output element depends on one element of each (broadcast) operand
  Reduction,  // fewer output elements than input elements
  Norm,       // statistics per row, then pointwise: softmax, layer norm
  MatMul,     // compute-bound: matrix products, convolutions, attention
  Data,       // moves elements: concat, gather, pad
  Opaque,     // any other
};

/// Sets the output types of a node from its operands and attributes.
class InferContext {
 public:
  explicit InferContext(Node& node) : node_(node) {}
  const Node& node() const { return node_; }
  const Attrs& attrs() const { return node_.attrs; }
  size_t input_count() const { return node_.inputs().size(); }
  bool has_input(size_t i) const { return node_.input(i) != nullptr; }
  /// Operand i. Throws Error, naming op and operand, if it is absent.
  const Value& input(size_t i) const;
  void set(size_t output, DType dtype, Dims dims);
  /// Throws Error `[Op] message (origin)`. Messages read "... must ..., but found ...".
  [[noreturn]] void fail(const std::string& message) const;
  /// Attribute `attr` as a non-negative axis. Throws Error if it is not within `rank`.
  int64_t axis(std::string_view attr, size_t rank) const;

 private:
  Node& node_;
};

using InferFn = void (*)(InferContext&);
/// Layout of output `output` of a view op as a view of operand 0, or nullopt if its layout needs a
/// copy.
using ViewFn = std::optional<Layout> (*)(const Layout& in, const Attrs& resolved,
                                         const Sizes& out_sizes, size_t output);
/// Layout of a view op's result of these sizes where it must copy.
using CopiedFn = Layout (*)(const Sizes&);
using GradFn = Grads (*)(GradContext&);
/// Number of floating point operations of the node for concrete sizes.
using FlopsFn = double (*)(const Attrs& resolved, const std::vector<Sizes>& in,
                           const std::vector<Sizes>& out);

/// The conversion of one torch overload into this op, possibly with others.
struct TorchRow {
  std::string_view target;  // "aten.softmax.int"
  Values (*convert)(TorchCall&) = nullptr;
};

/// A predicate for properties of all nodes of an op.
inline bool always(const Node&) { return true; }

/// The definition of an op; see the top of this file.
struct OpDef {
  std::string_view name = {};
  std::string_view domain = {};
  std::vector<std::string_view> inputs = {};   // "x"; optional "bias?"; variadic, last: "xs*"
  std::vector<std::string_view> outputs = {};  // likewise
  Attrs attrs = {};                            // defaults; attributes not listed are required
  OpKind kind = OpKind::Opaque;
  bool commutative = false;  // the first two operands may be swapped
  bool random = false;       // draws from the Philox stream given by attribute `rng`
  /// Has side effects or unrecorded random numbers: never cloned, merged or removed.
  bool effect = false;
  InferFn infer = nullptr;
  ViewFn view = nullptr;
  /// Layout of a view op's copy; null: row-major.
  CopiedFn copied = nullptr;
  /// Whether the result is channels-last, at no cost, if operand 0 is (for OpKind::Data: if all
  /// operands are). Null: true for pointwise ops, false for others.
  bool (*keeps_channels_last)(const Node&) = nullptr;
  GradFn grad = nullptr;
  /// Operands without a gradient by definition, such as indices and masks.
  std::vector<size_t> non_differentiable = {};
  /// Whether an output depends on an operand; null: all depend on all.
  bool (*depends)(size_t output, size_t operand) = nullptr;
  FlopsFn flops = nullptr;
  /// Decomposition into other ops, in the text notation, with the names of operands and outputs
  /// above and attributes as `@name`. Used as pattern, gradient, ONNX form and fallback kernel.
  std::string_view body = {};
  /// The same where it depends on the ranks or types of the node's operands.
  std::string (*body_of)(const Node&) = nullptr;
  /// A kernel may round differently from the body, so the op must be recomputed as a whole, not
  /// by parts of its body.
  bool indivisible = false;
  /// Outputs that are never computed again where backward reads them: the states of a recurrence.
  std::vector<size_t> always_kept = {};
  /// How the other outputs are computed again, in the text notation: its inputs have the names of
  /// operands and of outputs in `always_kept`, its outputs those of outputs. Empty: as the first
  /// time.
  std::string_view recompute = {};
  OnnxRule onnx = {};  // export to ONNX
  std::vector<TorchRow> from_torch = {};
};

/// The op of that name, or null.
const OpDef* find_op(std::string_view name);
/// The op of that name. Throws InternalError if there is none.
const OpDef& op_def(std::string_view name);
/// The conversion of a torch overload ("aten.softmax.int"), or null.
const TorchRow* find_torch_row(std::string_view target);
/// All torch overloads with a conversion, sorted.
std::vector<std::string_view> all_torch_targets();
/// Whether the op has a decomposition.
inline bool has_body(const OpDef& def) { return !def.body.empty() || def.body_of; }
/// Whether the node has side effects or unrecorded random numbers (see OpDef::effect).
bool is_impure(const Node& node);
/// Whether `value` is never computed again: its node is impure, or keeps it (OpDef::always_kept).
bool is_always_kept(const Value& value);
/// All ops by name.
std::vector<const OpDef*> all_ops();

/// Registers ops at static initialization. Aborts if a name or torch target is registered twice.
class OpRegistrar {
 public:
  OpRegistrar(std::string_view name, OpDef def, std::string_view file);
  /// Registers several ops.
  OpRegistrar(std::vector<OpDef> defs, std::string_view file);
};

/// Registers conversions of torch overloads into several ops, which belong to none of them.
class TorchRegistrar {
 public:
  explicit TorchRegistrar(std::vector<TorchRow> rows);
};

/// The source file that registered the op, for `python -m ortmodule_py.ops`.
std::string_view file_of(const OpDef& def);

}  // namespace ortmodule

#define ORTM_CONCAT_INNER(a, b) a##b
#define ORTM_CONCAT(a, b) ORTM_CONCAT_INNER(a, b)
/// REGISTER_OP(Softmax, {.inputs = {"x"}, ...});
#define REGISTER_OP(op_name, ...)                                             \
  static const ::ortmodule::OpRegistrar ORTM_CONCAT(registrar_, __COUNTER__)( \
      #op_name, __VA_ARGS__, __FILE__)
/// REGISTER_OPS(table) with a std::vector<OpDef> whose rows carry their names.
#define REGISTER_OPS(table) \
  static const ::ortmodule::OpRegistrar ORTM_CONCAT(registrar_, __COUNTER__)(table, __FILE__)
/// REGISTER_TORCH({{"aten.mse_loss.default", convert_mse}, ...});
#define REGISTER_TORCH(...)                             \
  static const ::ortmodule::TorchRegistrar ORTM_CONCAT( \
      torch_registrar_, __COUNTER__)(std::vector<::ortmodule::TorchRow> __VA_ARGS__)
