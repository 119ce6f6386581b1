// What a gradient rule sees. The engine (gradient/) does the rest: accumulation over several uses,
// sums over broadcast dimensions, casts to the operand's type, pruning of unused paths.
#pragma once

#include <string_view>
#include <vector>

#include "ops/emit.h"

namespace ortmodule {

/// A value of the joint graph with arithmetic; an empty handle means "no gradient".
class Handle {
 public:
  Handle() = default;
  Handle(Graph* graph, Value* value) : graph_(graph), value_(value) {}
  explicit operator bool() const { return value_ != nullptr; }
  Value* value() const { return value_; }
  Graph* graph() const { return graph_; }
  DType dtype() const { return value_->dtype; }
  const Dims& dims() const { return value_->dims; }

 private:
  Graph* graph_ = nullptr;
  Value* value_ = nullptr;
};

Handle operator+(Handle a, Handle b);
Handle operator-(Handle a, Handle b);
Handle operator*(Handle a, Handle b);
Handle operator/(Handle a, Handle b);
Handle operator-(Handle a);
Handle operator+(Handle a, double b);
Handle operator-(Handle a, double b);
Handle operator-(double a, Handle b);
Handle operator*(Handle a, double b);
Handle operator*(double a, Handle b);
Handle operator/(Handle a, double b);
Handle operator/(double a, Handle b);

/// One entry per operand, empty where there is none.
using Grads = std::vector<Handle>;

class GradContext {
 public:
  GradContext(Graph& graph, const Node& node, Values output_grads, std::vector<bool> needs);

  const Node& node() const { return node_; }
  const Attrs& attrs() const { return node_.attrs; }
  Graph& graph() { return graph_; }
  size_t input_count() const { return node_.inputs().size(); }
  /// Operand i (empty if absent), output i, gradient of output i (empty if none arrives).
  Handle x(size_t i = 0) const;
  Handle y(size_t i = 0) const;
  Handle dy(size_t i = 0) const;
  /// The gradient of output i, zeros if none arrives.
  Handle dy_or_zero(size_t i);
  /// Whether a gradient for operand i is wanted; rules may skip expensive ones.
  bool needs(size_t i) const { return i < needs_.size() && needs_[i]; }

  Handle emit(std::string_view op, std::vector<Handle> inputs, Attrs attrs = {});
  std::vector<Handle> emit_all(std::string_view op, std::vector<Handle> inputs, Attrs attrs = {},
                               size_t outputs = 0);
  Handle literal(double value, DType dtype);
  /// A size used as data, such as the number of elements a mean runs over.
  Handle size_literal(const DimExpr& size, DType dtype);
  /// Tensor of `dims` filled with `value`.
  Handle full(double value, const Dims& dims, DType dtype);
  /// Zeros of operand i's shape that go with dy, as of an op that is constant almost everywhere.
  Handle zeros_for(size_t i);
  Handle cast(Handle value, DType dtype);
  Handle reshape(Handle value, const Dims& dims);
  Handle transpose(Handle value, std::vector<int64_t> perm);
  /// Sums `value` over the dimensions in which `dims` (right-aligned) is smaller.
  Handle sum_to(Handle value, const Dims& dims);

 private:
  Graph& graph_;
  const Node& node_;
  Values output_grads_;
  std::vector<bool> needs_;
};

/// Sums `value` to the broadcast-compatible shape `dims` and reshapes to it.
Value* emit_sum_to(Graph& graph, Value* value, const Dims& dims);

}  // namespace ortmodule
