// One captured ATen call, as an op's `from_torch` row sees it: typed access to the arguments and
// emission of nodes that carry the call's origin.
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

/// device, layout, memory_format, generator: kept as text.
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

/// Type of an output as the tracer saw it. Strides are what eager would give.
struct TorchOutput {
  bool present = true;  // false for outputs that are None
  DType dtype = DType::Undefined;
  Dims dims;
  Dims strides;
};

/// What an expression may be; infinite where nothing is known.
struct ValueRange {
  double least = -std::numeric_limits<double>::infinity();
  double greatest = std::numeric_limits<double>::infinity();
};

/// Ranges of the symbols that Python ints bind; all others are sizes, at least 1.
using SymbolRanges = std::map<std::string, ValueRange, std::less<>>;

/// The torch that captured the program: some operators changed their values or gradients.
struct TorchVersion {
  int major = 2;
  int minor = 13;
  bool at_least(int wanted_major, int wanted_minor) const {
    return major > wanted_major || (major == wanted_major && minor >= wanted_minor);
  }
};

class TorchCall {
 public:
  TorchCall(Graph& graph, std::string target, std::vector<std::pair<std::string, TorchArg>> args,
            std::vector<TorchOutput> outputs, SymbolRanges ranges = {}, TorchVersion torch = {});

  Graph& graph() { return graph_; }
  const std::string& target() const { return target_; }
  const std::vector<std::pair<std::string, TorchArg>>& args() const { return args_; }
  const std::vector<TorchOutput>& outputs() const { return outputs_; }
  const SymbolRanges& symbol_ranges() const { return ranges_; }
  TorchVersion torch() const { return torch_; }
  const TorchOutput& output(size_t i = 0) const { return outputs_.at(i); }

  bool has(std::string_view name) const;      // the schema has it
  bool is_none(std::string_view name) const;  // missing or None
  const TorchArg& arg(std::string_view name) const;
  /// A tensor argument; InternalError if it is none. `optional_tensor` gives null for None.
  Value* tensor(std::string_view name) const;
  Value* optional_tensor(std::string_view name) const;
  Values tensors(std::string_view name) const;
  /// A tensor cast to `dtype`, or a number as a literal of that type. Refuses a number that the
  /// type cannot hold exactly.
  Value* operand(std::string_view name, DType dtype);
  /// The same where the operation sees a number only as an element of type `dtype`: 16-bit floats
  /// are rounded, which torch's arithmetic does not do with a number.
  Value* element(std::string_view name, DType dtype);
  bool is_tensor(std::string_view name) const;
  /// An integer known at capture; refuses (Refused) if it is symbolic.
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
  /// `dim` counted from the front for a tensor of that rank; torch lets a scalar have dim 0.
  int64_t axis(std::string_view name, size_t rank, int64_t fallback = 0) const;
  /// A list of dims (a single one reads as a list) counted from the front; empty for None.
  std::vector<int64_t> axes(std::string_view name, size_t rank) const;
  /// Whether the argument is a Python number that is a float (not an int or bool).
  bool is_float_number(std::string_view name) const;

  /// Emission. A shape or type that the op cannot take refuses the conversion.
  Value* emit(std::string_view op, Values inputs, Attrs attrs = {});
  Values emit_all(std::string_view op, Values inputs, Attrs attrs = {}, size_t outputs = 0);
  Value* cast(Value* value, DType dtype);
  Value* literal(double value, DType dtype);
  /// A size used as data.
  Value* size_literal(const DimExpr& size, DType dtype);
  Value* reshape(Value* value, const Dims& dims);
  /// `dims` filled with `value`.
  Value* full(double value, Dims dims, DType dtype);

  /// A fresh stream number for a random op: its place in program order.
  int64_t next_rng_stream();

  /// Gives up the conversion: the call becomes an ATen node, and `why` is reported.
  [[noreturn]] void refuse(const std::string& why) const;

 private:
  Graph& graph_;
  std::string target_;
  std::vector<std::pair<std::string, TorchArg>> args_;
  std::vector<TorchOutput> outputs_;
  SymbolRanges ranges_;
  TorchVersion torch_;
};

/// Thrown by TorchCall::refuse and caught by the exporter alone.
class Refused : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace ortmodule
