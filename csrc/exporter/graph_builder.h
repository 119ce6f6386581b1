// Receives a captured program call by call and builds the typed forward graph of ONNX ops.
// The front end makes no decisions: it hands over every ATen call with its arguments by name, and
// the op that knows the spelling (OpDef::from_torch) turns it into nodes.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

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

/// How values lay when the program was traced: their dims, the outermost in memory first.
using MemoryOrders = std::map<const Value*, std::vector<int64_t>>;

class GraphBuilder {
 public:
  GraphBuilder();

  /// The next positional argument, a tensor. `index` is for gradients in a backward body.
  int input(const std::string& name, DType dtype, const Dims& sizes, bool requires_grad,
            InputKind kind, int index = -1);
  /// A Python int, which may be a size or any other number in `range`.
  void symint_input(const std::string& symbol, const ValueRange& range);
  /// A body is about the symbols of the program that it is from.
  void share_symbols(const GraphBuilder& program) { symbol_ranges_ = program.symbol_ranges_; }
  /// A tensor that the program closed over; its data is bound by the caller as a further input.
  int constant(const std::string& name, DType dtype, const Dims& sizes);

  /// Converts one ATen call; without an own op for these arguments it becomes an ATen node, or,
  /// if `gradient` says that a gradient must flow through it, nothing is added or returned.
  /// `random` marks operators that draw from torch's generator; without `own_ops`, every call
  /// becomes an ATen node, which gets the operands in `orders` laid out so, since operators may
  /// depend on it.
  CallResult call(const std::string& target, std::vector<std::pair<std::string, TorchArg>> args,
                  std::vector<TorchOutput> outputs, const Origin& origin, const std::string& tag,
                  bool random, bool gradient, bool own_ops = true, const MemoryOrders& orders = {});
  /// Whether some own op knows this spelling (it may still refuse the arguments).
  static bool has_rule(const std::string& target);

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

  Value* value(int id) const;
  Graph& graph() { return *piece_.graph; }
  /// Finishes; the builder is empty afterwards.
  ExportedPiece take();

 private:
  int remember(Value* value);
  std::vector<int> aten_call(const std::string& target,
                             const std::vector<std::pair<std::string, TorchArg>>& args,
                             const std::vector<TorchOutput>& outputs, bool random,
                             const MemoryOrders& orders);
  Value* laid_out(Value* value, const std::vector<int64_t>& order);
  std::vector<int> finish_call(const std::string& target, const Values& values,
                               const std::vector<TorchOutput>& outputs);

  ExportedPiece piece_;
  std::vector<Value*> values_;
  SymbolRanges symbol_ranges_;
  int outputs_ = 0;
};

}  // namespace ortmodule
