// The context of a gradient rule. build_gradient does the rest: accumulation over several uses,
// sums over broadcast dimensions, casts to the operand's type. Unused gradients are removed later.
#pragma once

#include <string_view>
#include <vector>

#include "ops/emit.h"

namespace ortmodule {

/// A value of the joint graph with arithmetic operators; an empty handle means no gradient.
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

/// Gradients by operand; empty handles for operands without one.
using Grads = std::vector<Handle>;

/// The node to differentiate, the gradients of its outputs, and helpers that emit nodes.
class GradContext {
 public:
  GradContext(Graph& graph, const Node& node, Values output_grads, std::vector<bool> needs);

  const Node& node() const { return node_; }
  const Attrs& attrs() const { return node_.attrs; }
  Graph& graph() { return graph_; }
  size_t input_count() const { return node_.inputs().size(); }
  /// Operand i (empty if absent), output i, and the gradient of output i (empty if it has none).
  Handle x(size_t i = 0) const;
  Handle y(size_t i = 0) const;
  Handle dy(size_t i = 0) const;
  /// The first output whose gradient flows to a needed operand, but that the rule has not read:
  /// -1 if there is none.
  int unread_output() const;
  /// The gradient of output i, or zeros if it has none.
  Handle dy_or_zero(size_t i);
  /// Whether the gradient of operand i is needed. Rules may compute others, but at a cost.
  bool needs(size_t i) const { return i < needs_.size() && needs_[i]; }

  Handle emit(std::string_view op, std::vector<Handle> inputs, Attrs attrs = {});
  std::vector<Handle> emit_all(std::string_view op, std::vector<Handle> inputs, Attrs attrs = {},
                               size_t outputs = 0);
  Handle literal(double value, DType dtype);
  /// A size as data, such as the number of elements of a mean.
  Handle size_literal(const DimExpr& size, DType dtype);
  /// A tensor of `dims` filled with `value`.
  Handle full(double value, const Dims& dims, DType dtype);
  /// A zero gradient of operand i, absent if dy is absent at run time: for ops that are constant
  /// almost everywhere.
  Handle zeros_for(size_t i);
  Handle cast(Handle value, DType dtype);
  /// The same, but nothing for an absent value.
  Handle cast_if(Handle value, DType dtype) { return value ? cast(value, dtype) : value; }
  Handle reshape(Handle value, const Dims& dims);
  Handle transpose(Handle value, std::vector<int64_t> perm);
  /// Sums `value` over the dimensions in which `dims` (right-aligned) is smaller.
  Handle sum_to(Handle value, const Dims& dims);

 private:
  Graph& graph_;
  const Node& node_;
  Values output_grads_;
  std::vector<bool> needs_;
  mutable std::vector<bool> read_;  // by output: dy() was called
};

/// Sums `value` to the broadcast-compatible shape `dims` and reshapes to it.
Value* emit_sum_to(Graph& graph, Value* value, const Dims& dims);

}  // namespace ortmodule
