// A captured ATen call, for the conversions of OpDef::from_torch: typed access to its arguments,
// and emission of nodes.
#pragma once

#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/error.h"
#include "ops/emit.h"

namespace ortmodule {

/// A device, layout, memory_format or generator, as text.
struct TorchOpaque {
  std::string text;
};

struct TorchArg;
using TorchArgList = std::vector<TorchArg>;

/// An argument: None, tensor, int or SymInt, bool, float, string, dtype, opaque, or a list.
struct TorchArg {
  std::variant<std::monostate, Value*, DimExpr, bool, double, std::string, DType, TorchOpaque,
               TorchArgList>
      value;
};

/// Type of an output as traced. The strides are those of eager PyTorch.
struct TorchOutput {
  bool present = true;  // false for outputs that are None
  DType dtype = DType::Undefined;
  Dims dims;
  Dims strides;
};

/// Range of an expression; infinite bounds are unknown.
struct ValueRange {
  double least = -std::numeric_limits<double>::infinity();
  double greatest = std::numeric_limits<double>::infinity();
};

/// Ranges of the symbols bound by Python ints; other symbols are sizes and at least 1.
using SymbolRanges = std::map<std::string, ValueRange, std::less<>>;

/// The capturing torch version: the results or gradients of some operators depend on it.
struct TorchVersion {
  int major = 2;
  int minor = 13;
  bool at_least(int wanted_major, int wanted_minor) const {
    return major > wanted_major || (major == wanted_major && minor >= wanted_minor);
  }
};

/// A captured call during its conversion.
class TorchCall {
 public:
  TorchCall(Graph& graph, std::string target, std::vector<std::pair<std::string, TorchArg>> args,
            std::vector<TorchOutput> outputs, SymbolRanges ranges = {}, TorchVersion torch = {});

  Graph& graph() { return graph_; }
  const std::string& target() const { return target_; }
  const std::vector<std::pair<std::string, TorchArg>>& args() const { return args_; }
  const std::vector<TorchOutput>& outputs() const { return outputs_; }
  TorchVersion torch() const { return torch_; }
  const TorchOutput& output(size_t i = 0) const { return outputs_.at(i); }

  bool has(std::string_view name) const;      // the schema has it
  bool is_none(std::string_view name) const;  // missing or None
  const TorchArg& arg(std::string_view name) const;
  /// A tensor argument. Throws InternalError if it is not a tensor.
  Value* tensor(std::string_view name) const;
  /// The same, but null for None.
  Value* optional_tensor(std::string_view name) const;
  Values tensors(std::string_view name) const;
  /// A tensor argument cast to `dtype`, or a number as a literal of that type. Refuses a number
  /// that the type cannot represent.
  Value* operand(std::string_view name, DType dtype);
  /// The same, but a number is rounded to `dtype`, for operators that store it in a tensor. torch's
  /// arithmetic does not round numbers to 16-bit floats.
  Value* element(std::string_view name, DType dtype);
  bool is_tensor(std::string_view name) const;
  /// An integer constant. Refuses a symbolic one.
  int64_t integer(std::string_view name) const;
  int64_t integer_or(std::string_view name, int64_t fallback) const;
  DimExpr dim(std::string_view name) const;
  Dims dims(std::string_view name) const;
  std::vector<int64_t> integers(std::string_view name) const;
  double number(std::string_view name) const;
  double number_or(std::string_view name, double fallback) const;
  bool flag(std::string_view name, bool fallback = false) const;
  std::string string(std::string_view name, std::string_view fallback = "") const;
  DType dtype_or(std::string_view name, DType fallback) const;
  /// A dim as a non-negative axis for a tensor of that rank; a scalar has dim 0, as in torch.
  int64_t axis(std::string_view name, size_t rank, int64_t fallback = 0) const;
  /// A dim or a list of dims as non-negative axes; empty for None.
  std::vector<int64_t> axes(std::string_view name, size_t rank) const;
  /// Whether the argument is a Python float.
  bool is_float_number(std::string_view name) const;

  /// Emits a node. Refuses the conversion if the op does not support the shapes or types.
  Value* emit(std::string_view op, Values inputs, Attrs attrs = {});
  Values emit_all(std::string_view op, Values inputs, Attrs attrs = {}, size_t outputs = 0);
  Value* cast(Value* value, DType dtype);
  Value* literal(double value, DType dtype);
  /// A size as data.
  Value* size_literal(const DimExpr& size, DType dtype);
  Value* reshape(Value* value, const Dims& dims);
  /// A tensor of `dims` filled with `value`.
  Value* full(double value, Dims dims, DType dtype);

  /// The numbers that a size can be.
  ValueRange range_of(const DimExpr& expression) const;

  /// A new random stream number, in program order.
  int64_t next_rng_stream();

  /// Throws Refused: the call becomes an ATen node, and `why` is reported.
  [[noreturn]] void refuse(const std::string& why) const;

 private:
  Graph& graph_;
  std::string target_;
  std::vector<std::pair<std::string, TorchArg>> args_;
  std::vector<TorchOutput> outputs_;
  SymbolRanges ranges_;
  TorchVersion torch_;
};

/// Thrown by TorchCall::refuse and caught by the exporter.
class Refused : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Thrown by OnnxCall::unsupported: the model is valid, but the engine lacks what it asks for.
class Unsupported : public Refused {
 public:
  using Refused::Refused;
};

}  // namespace ortmodule
