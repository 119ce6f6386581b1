#include "ops/torch_call.h"

#include <algorithm>
#include <cmath>

#include "base/element_value.h"
#include "ops/op_def.h"

namespace ortmodule {
namespace {

const TorchArg kNone{};

const TorchArgList* as_list(const TorchArg& arg) { return std::get_if<TorchArgList>(&arg.value); }

bool is_none_arg(const TorchArg& arg) { return std::holds_alternative<std::monostate>(arg.value); }

// The argument as a size expression, if it is an integer, a size or a bool.
std::optional<DimExpr> as_dim(const TorchArg& arg) {
  if (const auto* dim = std::get_if<DimExpr>(&arg.value)) return *dim;
  if (const auto* flag = std::get_if<bool>(&arg.value)) return DimExpr(*flag ? 1 : 0);
  return std::nullopt;
}

// Whether double represents the integer exactly.
bool fits_double(int64_t value) {
  constexpr int64_t limit = int64_t{1} << 53;
  if (value >= -limit && value <= limit) return true;
  const double rounded = static_cast<double>(value);
  return rounded < 9223372036854775808.0 && static_cast<int64_t>(rounded) == value;
}

}  // namespace

TorchCall::TorchCall(Graph& graph, std::string target,
                     std::vector<std::pair<std::string, TorchArg>> args,
                     std::vector<TorchOutput> outputs, SymbolRanges ranges, TorchVersion torch)
    : graph_(graph),
      target_(std::move(target)),
      args_(std::move(args)),
      outputs_(std::move(outputs)),
      ranges_(std::move(ranges)),
      torch_(torch) {}

bool TorchCall::has(std::string_view name) const {
  return std::any_of(args_.begin(), args_.end(),
                     [&](const auto& entry) { return entry.first == name; });
}

bool TorchCall::is_none(std::string_view name) const { return is_none_arg(arg(name)); }

const TorchArg& TorchCall::arg(std::string_view name) const {
  for (const auto& [key, value] : args_)
    if (key == name) return value;
  return kNone;
}

Value* TorchCall::tensor(std::string_view name) const {
  Value* value = optional_tensor(name);
  ORTM_ASSERT(value, "argument '", name, "' of ", target_, " is not a tensor");
  return value;
}

Value* TorchCall::optional_tensor(std::string_view name) const {
  Value* const* value = std::get_if<Value*>(&arg(name).value);
  return value ? *value : nullptr;
}

Values TorchCall::tensors(std::string_view name) const {
  const TorchArgList* list = as_list(arg(name));
  ORTM_ASSERT(list, "argument '", name, "' of ", target_, " is not a list");
  Values values;
  for (const TorchArg& item : *list) {
    Value* const* value = std::get_if<Value*>(&item.value);
    values.push_back(value ? *value : nullptr);
  }
  return values;
}

bool TorchCall::is_tensor(std::string_view name) const {
  return std::holds_alternative<Value*>(arg(name).value);
}

bool TorchCall::is_float_number(std::string_view name) const {
  return std::holds_alternative<double>(arg(name).value);
}

Value* TorchCall::operand(std::string_view name, DType dtype) {
  if (is_complex(dtype)) refuse("complex types have no op");
  if (is_tensor(name)) {
    if (is_complex(tensor(name)->dtype)) refuse("complex types have no op");
    return cast(tensor(name), dtype);
  }
  const TorchArg& given = arg(name);
  if (const auto* number = std::get_if<double>(&given.value)) {
    if (!is_floating(dtype) && !(std::trunc(*number) == *number))
      refuse(str("a number of type ", name_of(dtype), " must be an integer, but found ", *number));
    return literal(*number, dtype);
  }
  const std::optional<DimExpr> size = as_dim(given);
  if (!size) refuse(str("'", name, "' must be a tensor or a real number"));
  if (!size->is_constant()) return size_literal(*size, dtype);
  if (!fits_double(size->value()))
    refuse(str("an integer must be exact in 53 bits, but found ", size->value()));
  const double value = static_cast<double>(size->value());
  return literal(is_floating(dtype) ? value : element_value(value, dtype), dtype);
}

Value* TorchCall::element(std::string_view name, DType dtype) {
  Value* value = operand(name, dtype);
  if (!value->is_literal()) return value;
  if (const auto* number = std::get_if<double>(&value->literal()))
    return literal(element_value(*number, dtype), dtype);
  // A size is rounded at run time, when it is stored in memory of that type.
  if (compute_dtype(dtype) == dtype) return value;
  return emit(
      "ConstantOfShape", {},
      {{"value", std::get<DimExpr>(value->literal())}, {"shape", Dims{}}, {"dtype", dtype}});
}

int64_t TorchCall::integer(std::string_view name) const {
  const std::optional<DimExpr> size = as_dim(arg(name));
  if (!size || !size->is_constant())
    refuse(str("'", name, "' must be an integer known at capture"));
  return size->value();
}

int64_t TorchCall::integer_or(std::string_view name, int64_t fallback) const {
  return is_none(name) ? fallback : integer(name);
}

DimExpr TorchCall::dim(std::string_view name) const {
  const std::optional<DimExpr> size = as_dim(arg(name));
  if (!size) refuse(str("'", name, "' must be an integer"));
  return *size;
}

Dims TorchCall::dims(std::string_view name) const {
  Dims dims;
  const TorchArgList* list = as_list(arg(name));
  if (!list) return is_none(name) ? dims : Dims{dim(name)};
  for (const TorchArg& item : *list) {
    const std::optional<DimExpr> size = as_dim(item);
    if (!size) refuse(str("'", name, "' must be a list of integers"));
    dims.push_back(*size);
  }
  return dims;
}

std::vector<int64_t> TorchCall::integers(std::string_view name) const {
  std::vector<int64_t> values;
  for (const DimExpr& dim : dims(name)) {
    if (!dim.is_constant()) refuse(str("'", name, "' must be integers known at capture"));
    values.push_back(dim.value());
  }
  return values;
}

double TorchCall::number(std::string_view name) const {
  if (const auto* number = std::get_if<double>(&arg(name).value)) return *number;
  const int64_t value = integer(name);
  if (!fits_double(value)) refuse(str("'", name, "' must be exact in 53 bits, but found ", value));
  return static_cast<double>(value);
}

double TorchCall::number_or(std::string_view name, double fallback) const {
  return is_none(name) ? fallback : number(name);
}

bool TorchCall::flag(std::string_view name, bool fallback) const {
  return is_none(name) ? fallback : integer(name) != 0;
}

std::string TorchCall::string(std::string_view name, std::string_view fallback) const {
  const auto* text = std::get_if<std::string>(&arg(name).value);
  return text ? *text : std::string(fallback);
}

DType TorchCall::dtype_or(std::string_view name, DType fallback) const {
  const auto* dtype = std::get_if<DType>(&arg(name).value);
  return dtype ? *dtype : fallback;
}

int64_t TorchCall::axis(std::string_view name, size_t rank, int64_t fallback) const {
  const int64_t range = std::max<int64_t>(static_cast<int64_t>(rank), 1);
  const int64_t given = integer_or(name, fallback);
  const int64_t axis = given < 0 ? given + range : given;
  if (axis < 0 || axis >= range)
    refuse(str("'", name, "' must be within rank ", rank, ", but found ", given));
  return axis;
}

std::vector<int64_t> TorchCall::axes(std::string_view name, size_t rank) const {
  const int64_t range = std::max<int64_t>(static_cast<int64_t>(rank), 1);
  std::vector<int64_t> axes = integers(name);
  for (int64_t& axis : axes) {
    if (axis < 0) axis += range;
    if (axis < 0 || axis >= range) refuse(str("'", name, "' must be within rank ", rank));
  }
  return axes;
}

Value* TorchCall::emit(std::string_view op, Values inputs, Attrs attrs) {
  return emit_all(op, std::move(inputs), std::move(attrs)).front();
}

Values TorchCall::emit_all(std::string_view op, Values inputs, Attrs attrs, size_t outputs) {
  try {
    return emit_node(graph_, op, std::move(inputs), std::move(attrs), outputs)->outputs();
  } catch (const Error& error) {
    refuse(error.what());
  }
}

Value* TorchCall::cast(Value* value, DType dtype) { return emit_cast(graph_, value, dtype); }

Value* TorchCall::literal(double value, DType dtype) { return graph_.literal(value, dtype); }

Value* TorchCall::size_literal(const DimExpr& size, DType dtype) {
  if (size.is_constant()) return literal(static_cast<double>(size.value()), dtype);
  return graph_.literal(size, dtype);
}

Value* TorchCall::reshape(Value* value, const Dims& dims) {
  return value->dims == dims ? value : emit("Reshape", {value}, {{"shape", dims}});
}

Value* TorchCall::full(double value, Dims dims, DType dtype) {
  return emit("ConstantOfShape", {},
              {{"value", value}, {"shape", std::move(dims)}, {"dtype", dtype}});
}

namespace {

constexpr double kInfiniteScalar = std::numeric_limits<double>::infinity();

/// Algebra that computes the range of an expression.
struct RangeOf {
  using Result = ValueRange;
  const SymbolRanges& ranges;

  static Result constant(int64_t value) {
    return {static_cast<double>(value), static_cast<double>(value)};
  }
  Result symbol(const std::string& name) const {
    const auto found = ranges.find(name);
    return found == ranges.end() ? Result{1.0, kInfiniteScalar} : found->second;
  }
  static Result add(const Result& a, const Result& b) {
    return {a.least + b.least, a.greatest + b.greatest};
  }
  static Result multiply(const Result& a, const Result& b) {
    const double ends[] = {times(a.least, b.least), times(a.least, b.greatest),
                           times(a.greatest, b.least), times(a.greatest, b.greatest)};
    return {*std::min_element(ends, ends + 4), *std::max_element(ends, ends + 4)};
  }
  Result apply(DimAtom::Kind kind, const DimExpr& a, const DimExpr& b) {
    const Result x = a.rebuild(*this);
    const Result y = b.rebuild(*this);
    switch (kind) {
      case DimAtom::Kind::Max:
        return {std::max(x.least, y.least), std::max(x.greatest, y.greatest)};
      case DimAtom::Kind::Min:
        return {std::min(x.least, y.least), std::min(x.greatest, y.greatest)};
      default: return {x.least >= 0 && y.least > 0 ? 0.0 : -kInfiniteScalar, kInfiniteScalar};
    }
  }

 private:
  static double times(double a, double b) { return a == 0 || b == 0 ? 0 : a * b; }
};

}  // namespace

ValueRange TorchCall::range_of(const DimExpr& expression) const {
  RangeOf range{ranges_};
  return expression.rebuild(range);
}

int64_t TorchCall::next_rng_stream() {
  int64_t next = 0;
  for (const auto& node : graph_.nodes())
    if (node->attrs.has("rng") && op_def(node->op).random)
      next = std::max(next, node->attrs.integer("rng") + 1);
  return next;
}

void TorchCall::refuse(const std::string& why) const { throw Refused(why); }

}  // namespace ortmodule
