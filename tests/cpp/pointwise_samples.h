// Pointwise groups that models consist of, by name: what generated code is compiled and counted
// for.
#pragma once

#include <map>
#include <string>

#include "random_pointwise_groups.h"

namespace ortmodule::testing {

/// Builds a group node by node, over tensors of rows x 1024.
class SampleGroup {
 public:
  static constexpr int64_t kRows = 64, kColumns = 1024;

  OperandRef input(DType dtype, bool row_only = false) {
    const Sizes sizes = row_only ? Sizes{kColumns} : Sizes{kRows, kColumns};
    example_.inputs.push_back(std::make_unique<Tensor>(dtype, sizes));
    return {OperandRef::Kind::Input, static_cast<int>(example_.inputs.size()) - 1};
  }

  OperandRef node(const std::string& op, const std::vector<OperandRef>& in, DType dtype,
                  Attrs attrs = {}) {
    NodeFacts node;
    node.op = op;
    node.attrs = std::move(attrs);
    node.inputs = in;
    for (const OperandRef& ref : in) node.input_dtypes.push_back(dtype_of(ref));
    node.outputs = {-1};
    node.output_dtypes = {dtype};
    node.output_sizes = {{kRows, kColumns}};
    example_.nodes.push_back(std::move(node));
    return {OperandRef::Kind::Register, static_cast<int>(example_.nodes.size()) - 1};
  }

  /// With the last node's result as the output.
  PointwiseExample take() {
    NodeFacts& last = example_.nodes.back();
    last.outputs = {0};
    example_.outputs.push_back(
        std::make_unique<Tensor>(last.output_dtypes[0], Sizes{kRows, kColumns}));
    return std::move(example_);
  }

 private:
  DType dtype_of(const OperandRef& ref) const {
    const auto at = static_cast<size_t>(ref.index);
    return ref.kind == OperandRef::Kind::Input ? example_.inputs[at]->dtype()
                                               : example_.nodes[at].output_dtypes[0];
  }

  PointwiseExample example_;
};

inline std::map<std::string, PointwiseExample> pointwise_samples() {
  constexpr DType kHalf = DType::BFloat16, kFull = DType::Float32;
  std::map<std::string, PointwiseExample> samples;
  {
    SampleGroup g;
    g.node("Add", {g.input(kHalf), g.input(kHalf)}, kHalf);
    samples["add_bf16"] = g.take();
  }
  {
    SampleGroup g;
    const OperandRef kept =
        g.node("Dropout", {g.input(kFull)}, kFull, {{"ratio", 0.1}, {"rng", 7}});
    g.node("Add", {kept, g.input(kFull)}, kFull);
    samples["dropout_residual_f32"] = g.take();
  }
  {
    SampleGroup g;
    const OperandRef gate = g.node("Silu", {g.input(kHalf)}, kHalf);
    g.node("Mul", {gate, g.input(kHalf)}, kHalf);
    samples["silu_mul_bf16"] = g.take();
  }
  {
    SampleGroup g;
    const OperandRef sum = g.node("Add", {g.input(kHalf), g.input(kHalf, true)}, kHalf);
    g.node("Gelu", {sum}, kHalf);
    samples["bias_gelu_bf16"] = g.take();
  }
  {
    SampleGroup g;
    const OperandRef dy = g.input(kHalf);
    const OperandRef sum = g.node("Add", {g.input(kHalf), g.input(kHalf, true)}, kHalf);
    g.node("GeluGrad", {dy, sum}, kHalf);
    samples["gelu_grad_bias_bf16"] = g.take();
  }
  {
    SampleGroup g;
    g.node("Cast", {g.input(kFull)}, kHalf);
    samples["cast_f32_bf16"] = g.take();
  }
  return samples;
}

}  // namespace ortmodule::testing
