// Builds the typed forward graph of ONNX ops from a captured program, call by call. The front end
// makes no decisions: it passes every ATen call with its named arguments, and the op registered for
// that overload (OpDef::from_torch) converts it into nodes.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/device.h"
#include "ir/exported_piece.h"
#include "ops/torch_call.h"

namespace ortmodule {

/// Value ids of a call's outputs (-1 if absent), or nullopt if the caller must trace the gradient
/// of the call and add it with custom_gradient().
using CallResult = std::optional<std::vector<int>>;

struct BuilderOptions {
  Device device = Device::CPU;  // whose kernels run the piece
  /// Random ops run as torch operators, in eager order.
  bool torch_random = false;
  TorchVersion torch = {};
};

/// One traced ATen call.
struct TracedCall {
  std::string target;
  std::vector<std::pair<std::string, TorchArg>> args;
  std::vector<int> operands;  // value ids of the tensor arguments
  std::vector<TorchOutput> outputs;
  Origin origin;
  std::string tag;
  bool random = false;    // draws from torch's generator
  bool gradient = false;  // it is differentiated
};

class GraphBuilder {
 public:
  explicit GraphBuilder(BuilderOptions options = {});

  /// An empty builder for a backward body of this program, with the same symbols.
  GraphBuilder body() const;

  /// Adds a tensor as the next positional argument and returns its value id. `index`: of a gradient
  /// in a backward body.
  int input(const std::string& name, DType dtype, const Dims& sizes, const Dims& strides,
            bool requires_grad, InputKind kind, int index = -1);
  /// Adds a Python int, a size or another number, as the next positional argument.
  void symint_input(const std::string& symbol, const ValueRange& range);
  /// Adds a tensor that the program closed over. The caller binds its data as a further input.
  int constant(const std::string& name, DType dtype, const Dims& sizes, const Dims& strides);

  /// Converts one ATen call. If none of our ops supports the arguments, the call becomes an ATen
  /// node, whose operands keep their traced layouts, since operators may depend on them. If such a
  /// call is differentiated, nothing is added and nullopt returned.
  CallResult call(const TracedCall& call);
  /// Whether one of our ops, with a kernel on the device, converts this overload; it may still
  /// refuse the arguments. `random`: as TracedCall::random.
  bool has_rule(const std::string& target, bool random) const;

  /// Gives `outputs` a custom gradient and returns the values that replace them. `body` is a graph
  /// whose User inputs are the `saved` values in order, whose GradOutput inputs are the gradients
  /// of `outputs` by index, and whose outputs are the gradients of `inputs` (null: no gradient).
  /// `traced`: it is torch's own gradient of the operator that computed `outputs`.
  std::vector<int> custom_gradient(const std::vector<int>& outputs, const std::vector<int>& inputs,
                                   const std::vector<int>& saved, std::shared_ptr<const Graph> body,
                                   bool traced);

  /// Records that `value` is written to argument `argument`.
  void mutate(int argument, int value);
  /// The output at this position is the argument itself, whatever is passed for it.
  void alias_output(int position, int argument) { aliases_[position] = argument; }
  /// Eager's strides of the output at this position, if its value has others.
  void output_strides(int position, Dims strides) {
    output_strides_[position] = std::move(strides);
  }
  /// The next output: a value, a size, or nothing.
  void output(int value);
  void output_dim(const DimExpr& dim);
  void output_none();

  Value* value(int id) const { return captured(id).value; }
  /// Strides of a captured value in the traced program.
  const Dims& strides(int id) const { return captured(id).strides; }
  Graph& graph() { return *piece_.graph; }
  /// Returns the piece and leaves the builder empty.
  ExportedPiece take();

 private:
  struct Captured {
    Value* value = nullptr;
    Dims strides;
  };

  const Captured& captured(int id) const;
  bool output_alias();
  int remember(Value* value, Dims strides);
  bool takes_own_ops(const std::string& target, bool random) const;
  bool touches_complex(const TracedCall& call) const;
  bool made_only_views(size_t before) const;
  std::vector<int> aten_call(const TracedCall& call);
  Value* as_traced(Value* value, const TracedCall& call);
  std::vector<int> finish_call(const TracedCall& call, const Values& values);

  BuilderOptions options_;
  bool is_body_ = false;
  ExportedPiece piece_;
  std::vector<Captured> values_;
  SymbolRanges symbol_ranges_;
  std::map<int, int> aliases_;  // position of an output -> the argument that it is
  std::map<int, Dims> output_strides_;
  int outputs_ = 0;
};

}  // namespace ortmodule
