// Receives a captured program call by call and builds the typed forward graph of ONNX ops.
// The front end makes no decisions: it hands over every ATen call with its arguments by name, and
// the op that knows the spelling (OpDef::from_torch) turns it into nodes.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/device.h"
#include "ir/graph.h"
#include "ops/torch_call.h"

namespace ortmodule {

/// What the session must know about one positional argument of the compiled piece.
struct BoundInput {
  enum class Kind : uint8_t { Tensor, Symbol };
  Kind kind = Kind::Tensor;
  int graph_input = -1;  // Tensor: index among Graph::inputs
  std::string symbol;    // Symbol: the size it binds
};

/// One flat output of the piece, in the caller's order.
struct BoundOutput {
  enum class Kind : uint8_t { Tensor, Dim, Input, None };
  Kind kind = Kind::None;
  int graph_output = -1;  // Tensor: GraphOutput::index
  DimExpr dim;            // Dim
  int argument = -1;      // Input: the argument returned as it is
};

/// A captured piece: the forward graph and how arguments and results map to it.
struct ExportedPiece {
  std::unique_ptr<Graph> graph;
  std::vector<BoundInput> arguments;
  std::vector<BoundOutput> results;
  std::vector<Dims> output_strides;   // per GraphOutput::index, eager's strides
  std::vector<std::string> refusals;  // why a call became an ATen node, one line each
};

/// A call's outcome: value ids per output (-1 for none), or nothing if the op must be handed over
/// again with its traced gradient (see CustomGradient).
using CallResult = std::optional<std::vector<int>>;

/// What the builder decides by.
struct BuilderOptions {
  Device device = Device::CPU;  // whose kernels run the piece
  /// Everything random runs through torch's own operators, in eager's order.
  bool torch_random = false;
  TorchVersion torch = {};
};

/// One ATen call as it was traced.
struct TracedCall {
  std::string target;
  std::vector<std::pair<std::string, TorchArg>> args;
  std::vector<int> operands;  // ids of the tensors among the arguments
  std::vector<TorchOutput> outputs;
  Origin origin;
  std::string tag;
  bool random = false;    // draws from torch's generator
  bool gradient = false;  // a gradient must flow through it
};

class GraphBuilder {
 public:
  explicit GraphBuilder(BuilderOptions options = {});

  /// An empty builder for a backward body of this program: it is about the same symbols.
  GraphBuilder body() const;

  /// The next positional argument, a tensor. `index` is for gradients in a backward body.
  int input(const std::string& name, DType dtype, const Dims& sizes, const Dims& strides,
            bool requires_grad, InputKind kind, int index = -1);
  /// A Python int, which may be a size or any other number in `range`.
  void symint_input(const std::string& symbol, const ValueRange& range);
  /// A tensor that the program closed over; its data is bound by the caller as a further input.
  int constant(const std::string& name, DType dtype, const Dims& sizes, const Dims& strides);

  /// Converts one ATen call. Without an own op for these arguments it becomes an ATen node, whose
  /// operands lie as they did when traced, since operators may depend on it; or, if a gradient must
  /// flow through it, nothing is added or returned.
  CallResult call(const TracedCall& call);
  /// Whether some own op with a kernel on the device knows this spelling (it may still refuse the
  /// arguments). `random`: as TracedCall::random.
  bool has_rule(const std::string& target, bool random) const;

  /// Values that stand for `outputs` from now on, with the gradient given by `body`: a graph whose
  /// User inputs are the `saved` values in order, whose GradOutput inputs are gradients of
  /// `outputs` by index, and whose outputs are the gradients of `inputs` (null where there is
  /// none).
  std::vector<int> custom_gradient(const std::vector<int>& outputs, const std::vector<int>& inputs,
                                   const std::vector<int>& saved,
                                   std::shared_ptr<const Graph> body);

  /// `value` is the new content of argument `argument` after the call.
  void mutate(int argument, int value);
  void output(int value, const Dims& strides);
  void output_dim(const DimExpr& dim);
  void output_argument(int argument);
  void output_none();

  Value* value(int id) const { return captured(id).value; }
  /// Strides of a captured value in the traced program.
  const Dims& strides(int id) const { return captured(id).strides; }
  Graph& graph() { return *piece_.graph; }
  /// Finishes; the builder is empty afterwards.
  ExportedPiece take();

 private:
  struct Captured {
    Value* value = nullptr;
    Dims strides;
  };

  const Captured& captured(int id) const;
  int remember(Value* value, Dims strides);
  bool takes_own_ops(const std::string& target, bool random) const;
  std::vector<int> aten_call(const TracedCall& call);
  Value* as_traced(Value* value, const TracedCall& call);
  std::vector<int> finish_call(const TracedCall& call, const Values& values);

  BuilderOptions options_;
  bool is_body_ = false;
  ExportedPiece piece_;
  std::vector<Captured> values_;
  SymbolRanges symbol_ranges_;
  int outputs_ = 0;
};

}  // namespace ortmodule
