// Import of operators that repeat elements or make them: Expand, Tile, ConstantOfShape, Range.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "base/layout.h"
#include "ops/known_arithmetic.h"
#include "ops/op_def.h"

namespace ortmodule {
namespace {

using Known = std::optional<std::vector<KnownValue>>;

Known one(KnownValue value) { return std::vector{std::move(value)}; }

// The shape that x and `wanted` broadcast to.
Dims expanded(OnnxCall& c, const Dims& x, Dims wanted) {
  while (wanted.size() < x.size()) wanted.insert(wanted.begin(), DimExpr(1));
  for (size_t back = 1; back <= x.size(); ++back) {
    DimExpr& dim = wanted.at(wanted.size() - back);
    const DimExpr& own = x[x.size() - back];
    if (c.sizes().equal(dim, 1) || c.sizes().equal(dim, own)) dim = own;
  }
  return wanted;
}

// Whether a tensor is rather data, whose sizes are not fixed so that its content is known, than one
// that sizes are read from.
bool is_data(const Dims& dims) {
  return dims.size() > 1 && !std::ranges::all_of(dims, &DimExpr::is_constant);
}

Values import_expand(OnnxCall& c) {
  Value* x = c.in(0);
  return {c.expand(x, expanded(c, x->dims, c.content_sizes(1)))};
}

Known known_expand(OnnxCall& c) {
  const KnownValue *x = c.known(0), *shape = c.known(1);
  if (!x || !shape || x->elements.size() != 1) return std::nullopt;
  const Dims wanted = expanded(c, c.dims(0), c.content_sizes(1));
  if (is_data(wanted)) return std::nullopt;
  const auto sizes = c.known_size_of(wanted);
  if (!sizes) return std::nullopt;
  return one({x->dtype, *sizes,
              std::vector(static_cast<size_t>(element_count(*sizes)), x->elements.at(0))});
}

Values import_tile(OnnxCall& c) {
  Value* x = c.in(0);
  const Dims dims = x->dims;
  Dims repeats;
  if (c.opset() >= 6) {
    repeats = c.content_sizes(1);
  } else {  // one number of tiles along one axis
    repeats.assign(dims.size(), 1);
    repeats.at(static_cast<size_t>(c.fixed_integers(2).at(0))) = c.content_sizes(1).at(0);
  }
  if (repeats.size() != dims.size()) c.refuse("there must be a number of repeats for each axis");
  Dims split, wide, result;
  for (size_t i = 0; i < dims.size(); ++i) {
    result.push_back(repeats.at(i) * dims.at(i));
    if (repeats.at(i) == DimExpr(1)) {
      split.push_back(dims.at(i));
      wide.push_back(dims.at(i));
      continue;
    }
    split.insert(split.end(), {DimExpr(1), dims.at(i)});
    wide.insert(wide.end(), {repeats.at(i), dims.at(i)});
  }
  if (split == wide) return {c.emit("Identity", {x})};
  Value* spread = c.emit("Expand", {c.reshape(x, split)}, {{"shape", wide}});
  return {c.reshape(spread, result)};
}

double filler(OnnxCall& c, DType& dtype) {
  const OnnxTensor* value = c.tensor_attr("value");
  if (!value) return 0.0;
  dtype = value->dtype;
  if (is_wide_unsigned(dtype) && element_count(value->dims) == 1) {
    uint64_t number = 0;  // little-endian, as the data of a file
    std::memcpy(&number, value->bytes.data(), static_cast<size_t>(size_of(dtype)));
    return static_cast<double>(number);
  }
  const std::optional<KnownValue> content = known_content(*value);
  if (!content || content->elements.size() != 1) c.refuse("value must have one element");
  return content->elements.at(0).value();
}

Values import_constant_of_shape(OnnxCall& c) {
  DType dtype = DType::Float32;
  const double value = filler(c, dtype);
  return {c.full(value, c.content_sizes(0), dtype)};
}

Known known_constant_of_shape(OnnxCall& c) {
  DType dtype = DType::Float32;
  if (!c.known(0)) return std::nullopt;
  const double value = filler(c, dtype);
  const Dims shape = c.content_sizes(0);
  if (is_data(shape) || is_floating(dtype) || shape.size() > 1) return std::nullopt;
  const auto sizes = c.known_size_of(shape);
  if (!sizes) return std::nullopt;
  return one({dtype, *sizes,
              std::vector(static_cast<size_t>(element_count(*sizes)),
                          KnownNumber(static_cast<int64_t>(value)))});
}

// The integer that a bound is, also one of a range of floats, which may then be symbolic.
std::optional<DimExpr> integer_bound(const KnownNumber& number) {
  constexpr double kExact = 1 << 24;  // of float32
  if (number.is_integer()) return number.numerator();
  if (!number.is_real() || std::trunc(number.real()) != number.real()) return std::nullopt;
  if (std::abs(number.real()) > kExact) return std::nullopt;
  return DimExpr(static_cast<int64_t>(number.real()));
}

Values import_range(OnnxCall& c) {
  std::vector<std::optional<DimExpr>> bounds;
  const DType dtype = c.dtype(0);
  for (size_t i = 0; i < 3; ++i) {
    const KnownValue& content = c.content(i);
    if (content.elements.size() != 1) c.refuse("start, limit and delta must be scalars");
    bounds.push_back(integer_bound(content.elements.at(0)));
  }
  if (!std::ranges::all_of(bounds, &std::optional<DimExpr>::has_value)) {
    std::vector<double> numbers;
    for (size_t i = 0; i < 3; ++i) numbers.push_back(c.fixed_numbers(i).at(0));
    return {c.emit("Range", {},
                   {{"start", numbers.at(0)},
                    {"limit", numbers.at(1)},
                    {"delta", numbers.at(2)},
                    {"dtype", dtype}})};
  }
  const int64_t delta = c.sizes().fix(*bounds[2]);
  const DimExpr start = *bounds[0];
  DimExpr limit = *bounds[1];
  const bool empty = delta > 0 ? c.sizes().less(limit, start) : c.sizes().less(start, limit);
  if (empty) limit = start;
  return {
      c.emit("Range", {},
             {{"start", start}, {"limit", limit}, {"delta", DimExpr(delta)}, {"dtype", dtype}})};
}

// Only short ranges of constants: axes, for example.
Known known_range(OnnxCall& c) {
  int64_t bounds[3];
  for (size_t i = 0; i < 3; ++i) {
    const KnownValue* value = c.known(i);
    if (!value || !value->is_constant() || is_floating(value->dtype)) return std::nullopt;
    bounds[i] = static_cast<int64_t>(value->elements.at(0).value());
  }
  constexpr int64_t kMostAxes = 64;
  if (bounds[2] == 0) c.refuse("delta must not be 0");
  KnownValue result{c.dtype(0), {0}, {}};
  for (int64_t i = bounds[0]; bounds[2] > 0 ? i < bounds[1] : i > bounds[1]; i += bounds[2]) {
    if (result.elements.size() >= kMostAxes) return std::nullopt;
    result.elements.emplace_back(i);
  }
  result.dims = {static_cast<int64_t>(result.elements.size())};
  return one(std::move(result));
}

REGISTER_ONNX({{"Expand", 8, import_expand, known_expand, "", nullptr, moves_texts()},
               {"Tile", 1, import_tile, nullptr, "", nullptr, moves_texts()},
               {"ConstantOfShape", 9, import_constant_of_shape, known_constant_of_shape},
               {"Range", 11, import_range, known_range}});

}  // namespace
}  // namespace ortmodule
