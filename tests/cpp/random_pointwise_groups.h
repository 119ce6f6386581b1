// Random pointwise groups: every op, type, layout and kind of operand.
#pragma once

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/pointwise_table.h"
#include "test_kernels_harness.h"

namespace ortmodule::testing {

/// A row of the table of pointwise ops.
struct OpRow {
  const char* name;
  Compute in, out;
  PointwiseLoop loop;
};
#define ORTM_OP_ROW(name, loop, F, In, Out) \
  {name, kComputeOf<In>, kComputeOf<Out>, PointwiseLoop::loop},
inline constexpr OpRow kOpRows[] = {ORTM_POINTWISE_OPS(ORTM_OP_ROW)};
#undef ORTM_OP_ROW

/// A group with its tensors, which stay where they are.
struct PointwiseExample {
  std::vector<NodeFacts> nodes;
  std::vector<std::unique_ptr<Tensor>> inputs, outputs;

  static std::vector<Tensor*> pointers(const std::vector<std::unique_ptr<Tensor>>& tensors) {
    std::vector<Tensor*> all;
    for (const auto& t : tensors) all.push_back(t.get());
    return all;
  }
  std::vector<Tensor*> in() const { return pointers(inputs); }
  std::vector<Tensor*> out() const { return pointers(outputs); }
  StepFacts facts() const { return facts_of(nodes, in(), out()); }
};

class RandomGroups {
 public:
  explicit RandomGroups(unsigned seed) : random_(seed) {}

  /// One node of each of these rows, in a chain where types allow it.
  PointwiseExample group_of(const std::vector<OpRow>& rows) {
    example_ = {};
    values_.clear();
    sizes_ = any_sizes();
    for (const OpRow& row : rows) {
      add(row);
      if (one_of(3) == 0) add_cast();
    }
    finish();
    return std::move(example_);
  }

 private:
  struct Produced {
    OperandRef ref;
    DType dtype;
  };

  int one_of(int count) { return std::uniform_int_distribution<int>(0, count - 1)(random_); }
  template <class T>
  T any(const std::vector<T>& choices) {
    return choices[static_cast<size_t>(one_of(static_cast<int>(choices.size())))];
  }

  Sizes any_sizes() {
    return any<Sizes>(
        {{64}, {4099}, {3, 5, 7}, {24, 64}, {6, 40, 8}, {33, 17}, {2, 3, 16, 24}, {1031, 8}});
  }

  DType any_type(Compute type) {
    switch (type) {
      case Compute::F32: return any<DType>({DType::Float32, DType::BFloat16, DType::Float16});
      case Compute::Bool: return DType::Bool;
      default:
        return any<DType>({DType::Int64, DType::Int32, DType::Int16, DType::Int8, DType::UInt8});
    }
  }

  // Row-major, the last two dimensions swapped, or rows with gaps.
  Sizes any_strides(const Sizes& sizes) {
    Sizes strides = contiguous_strides(sizes);
    const size_t rank = sizes.size();
    const int kind = one_of(4);
    if (rank < 2 || kind < 2) return strides;
    if (kind == 2) {
      strides[rank - 1] = sizes[rank - 2];
      strides[rank - 2] = 1;
    } else {
      const int64_t gap = any<int64_t>({3, 8});
      for (size_t d = rank - 1; d-- > 0;)
        strides[d] = (d + 2 == rank ? sizes[d + 1] + gap : strides[d + 1] * sizes[d + 1]);
    }
    return strides;
  }

  OperandRef new_input(DType dtype) {
    Sizes sizes = sizes_;
    const int kind = one_of(4);
    if (kind == 0)
      for (int64_t& size : sizes) size = one_of(2) ? size : 1;
    if (kind == 1 && sizes.size() > 1) sizes.erase(sizes.begin());
    const unsigned seed = static_cast<unsigned>(one_of(1 << 30));
    example_.inputs.push_back(
        std::make_unique<Tensor>(Tensor::random(dtype, sizes, seed, -6, 6, any_strides(sizes))));
    return {OperandRef::Kind::Input, static_cast<int>(example_.inputs.size()) - 1};
  }

  // An earlier value, an earlier operand, a literal or a new operand of this computation type.
  Produced operand(Compute type) {
    std::vector<Produced> fitting;
    for (const Produced& value : values_)
      if (compute_of(value.dtype) == type) fitting.push_back(value);
    const int kind = one_of(6);
    if (kind < 4 && !fitting.empty()) return kind < 2 ? fitting.back() : any(fitting);
    const DType dtype = any_type(type);
    if (kind == 4)
      return {{OperandRef::Kind::Literal, 0, type == Compute::Bool ? 1.0 : 0.5 + one_of(5)}, dtype};
    values_.push_back({new_input(dtype), dtype});
    return values_.back();
  }

  static int arity(PointwiseLoop loop) {
    switch (loop) {
      case PointwiseLoop::where: return 3;
      case PointwiseLoop::binary:
      case PointwiseLoop::binary_formula:
      case PointwiseLoop::binary_long_formula:
      case PointwiseLoop::binary_library: return 2;
      case PointwiseLoop::uniform: return 0;
      default: return 1;
    }
  }

  void add(const OpRow& row) {
    NodeFacts node;
    node.op = row.name;
    node.attrs = {{"alpha", 0.3},
                  {"beta", 2.0},
                  {"threshold", 3.0},
                  {"min", -1.5},
                  {"max", 2.25},
                  {"ratio", 0.25},
                  {"rng", DimExpr(int64_t{5} + one_of(1000))}};
    name_variant(node);
    for (int i = 0; i < arity(row.loop); ++i) {
      const bool condition = row.loop == PointwiseLoop::where && i == 0;
      take(node, operand(condition ? Compute::Bool : row.in));
    }
    if (std::string_view(row.name).starts_with("Pow.")) take(node, exponent(row));
    give(node, any_type(row.out));
  }

  // The attribute behind ".variant".
  static void name_variant(NodeFacts& node) {
    const size_t dot = node.op.find('.');
    if (dot == std::string::npos) return;
    const std::string variant = node.op.substr(dot + 1);
    node.op.resize(dot);
    if (variant == "tanh") node.attrs.set("approximate", std::string("tanh"));
    if (variant == "fmod") node.attrs.set("fmod", 1);
  }

  static Produced exponent(const OpRow& row) {
    const std::string variant = std::string(row.name).substr(4);
    const double value = variant == "2"            ? 2
                         : variant == "3"          ? 3
                         : variant == "half"       ? 0.5
                         : variant == "minus_half" ? -0.5
                         : variant == "minus_1"    ? -1
                                                   : -2;
    return {{OperandRef::Kind::Literal, 0, value},
            row.in == Compute::F32 ? DType::Float32 : DType::Int64};
  }

  void add_cast() {
    NodeFacts node;
    node.op = "Cast";
    take(node, operand(any<Compute>({Compute::F32, Compute::I64, Compute::Bool})));
    give(node, any_type(any<Compute>({Compute::F32, Compute::I64, Compute::Bool})));
  }

  static void take(NodeFacts& node, const Produced& value) {
    node.inputs.push_back(value.ref);
    node.input_dtypes.push_back(value.dtype);
  }

  void give(NodeFacts& node, DType dtype) {
    node.output_dtypes = {dtype};
    node.output_sizes = {sizes_};
    node.outputs = {-1};
    if (one_of(3) == 0) add_output(node);
    example_.nodes.push_back(std::move(node));
    values_.push_back(
        {{OperandRef::Kind::Register, static_cast<int>(example_.nodes.size()) - 1}, dtype});
  }

  void add_output(NodeFacts& node) {
    node.outputs = {static_cast<int>(example_.outputs.size())};
    example_.outputs.push_back(
        std::make_unique<Tensor>(node.output_dtypes[0], sizes_, any_strides(sizes_)));
  }

  void finish() {
    if (example_.nodes.back().outputs[0] < 0) add_output(example_.nodes.back());
  }

  std::mt19937 random_;
  PointwiseExample example_;
  std::vector<Produced> values_;
  Sizes sizes_;
};

}  // namespace ortmodule::testing
