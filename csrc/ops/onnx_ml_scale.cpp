// Import of ai.onnx.ml's operators that give one number for one number.
#include <cmath>

#include "base/error.h"
#include "ops/onnx_ml.h"
#include "ops/op_def.h"

namespace ortmodule {
namespace {

Value* vector_of(OnnxCall& c, const std::vector<double>& numbers, DType dtype) {
  return ml_numbers(c, numbers, {static_cast<int64_t>(numbers.size())}, dtype);
}

// (x - offset) * scale, each one number or one for each column
Values import_scaler(OnnxCall& c) {
  Value* y = c.cast(c.in(0), DType::Float32);
  for (const auto& [name, op] :
       {std::pair<const char*, const char*>("offset", "Sub"), {"scale", "Mul"}}) {
    const std::vector<double> numbers = c.numbers(name);
    if (!numbers.empty()) y = c.pointwise(op, {y, vector_of(c, numbers, DType::Float32)});
  }
  return {y == c.in(0) ? c.emit("Identity", {y}) : y};
}

Values import_binarizer(OnnxCall& c) {
  Value* x = c.in(0);
  return {c.cast(c.emit("Greater", {x, number(c, c.number("threshold", 0.0), x)}), x->dtype)};
}

// Each row over its largest element, sum of sizes, or length; rows of zeros stay.
Values import_normalizer(OnnxCall& c) {
  Value* x = c.cast(c.in(0), DType::Float32);
  const int64_t last = static_cast<int64_t>(x->rank()) - 1;
  if (last < 0 || last > 1) c.refuse("x must have rank 1 or 2");
  const std::string norm = c.word("norm", {"MAX", "L1", "L2"});
  Value* size;
  if (norm == "MAX") {
    size = c.reduce("ReduceMax", x, {last}, true);
  } else if (norm == "L1") {
    size = c.reduce("ReduceSum", c.emit("Abs", {x}), {last}, true);
  } else {
    size = c.emit("Sqrt", {c.reduce("ReduceSum", c.emit("Mul", {x, x}), {last}, true)});
  }
  Value* zero = c.emit("Equal", {size, number(c, 0, size)});
  return {c.emit("Div", {x, c.emit("Where", {zero, number(c, 1, size), size})})};
}

// Elements that are `replaced`, or no numbers if that is none, become those of a list.
Values import_imputer(OnnxCall& c) {
  Value* x = c.in(0);
  if (is_floating(x->dtype)) {
    const std::vector<double> imputed = c.numbers("imputed_value_floats");
    if (imputed.empty()) c.refuse("there must be imputed_value_floats");
    const double replaced = c.number("replaced_value_float", 0.0);
    Value* hit =
        std::isnan(replaced) ? c.emit("IsNaN", {x}) : c.emit("Equal", {x, number(c, replaced, x)});
    return {c.pointwise("Where", {hit, vector_of(c, imputed, x->dtype), x})};
  }
  const std::vector<int64_t> imputed = ml_exact_integers(c, "imputed_value_int64s");
  if (imputed.empty()) c.refuse("there must be imputed_value_int64s");
  Value* replaced = ml_integers(c, {ml_exact_integer(c, "replaced_value_int64", 0)});
  Value* hit = c.pointwise("Equal", {x, c.cast(replaced, x->dtype)});
  return {c.pointwise("Where", {hit, c.cast(ml_integers(c, imputed), x->dtype), x})};
}

REGISTER_ONNX({{"Scaler", 1, import_scaler, nullptr, kMlDomain},
               {"Binarizer", 1, import_binarizer, nullptr, kMlDomain},
               {"Normalizer", 1, import_normalizer, nullptr, kMlDomain},
               {"Imputer", 1, import_imputer, nullptr, kMlDomain}});

}  // namespace
}  // namespace ortmodule
