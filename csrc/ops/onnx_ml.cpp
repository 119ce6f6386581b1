// Import of ai.onnx.ml's operators on numbers: scaling, encoding and linear models.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "ops/onnx_call.h"
#include "ops/op_def.h"

namespace ortmodule {
namespace {

Value* number(OnnxCall& c, double value, const Value* like) {
  return c.literal(value, like->dtype);
}

KnownValue real_list(const std::vector<double>& numbers, DType dtype) {
  KnownValue value{dtype, {static_cast<int64_t>(numbers.size())}, {}};
  for (double each : numbers) value.elements.push_back(KnownNumber::real(each));
  return value;
}

KnownValue integer_list(const std::vector<int64_t>& numbers) {
  KnownValue value{DType::Int64, {static_cast<int64_t>(numbers.size())}, {}};
  for (int64_t each : numbers) value.elements.emplace_back(each);
  return value;
}

// ---- one number for one number -----------------------------------------------------------------

// (x - offset) * scale, each one number or one for each column
Values import_scaler(OnnxCall& c) {
  Value* y = c.cast(c.in(0), DType::Float32);
  for (const auto& [name, op] :
       {std::pair<const char*, const char*>("offset", "Sub"), {"scale", "Mul"}}) {
    const std::vector<double> numbers = c.numbers(name);
    if (numbers.empty()) continue;
    y = c.pointwise(op, {y, c.constant(real_list(numbers, DType::Float32))});
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
  const std::string norm = c.string("norm", "MAX");
  Value* size;
  if (norm == "MAX") {
    size = c.reduce("ReduceMax", x, {last}, true);
  } else if (norm == "L1") {
    size = c.reduce("ReduceSum", c.emit("Abs", {x}), {last}, true);
  } else if (norm == "L2") {
    size = c.emit("Sqrt", {c.reduce("ReduceSum", c.emit("Mul", {x, x}), {last}, true)});
  } else {
    c.refuse(str("norm must be MAX, L1 or L2, but found ", norm));
  }
  Value* zero = c.emit("Equal", {size, number(c, 0, size)});
  return {c.emit("Div", {x, c.emit("Where", {zero, number(c, 1, size), size})})};
}

// Elements that are `replaced`, or no numbers if that is none, become those of a list.
Values import_imputer(OnnxCall& c) {
  Value* x = c.in(0);
  const bool real = is_floating(x->dtype);
  KnownValue imputed = real ? real_list(c.numbers("imputed_value_floats"), x->dtype)
                            : integer_list(c.integers("imputed_value_int64s"));
  if (imputed.elements.empty()) c.refuse("there must be an imputed value");
  const double replaced = real ? c.number("replaced_value_float", 0.0)
                               : static_cast<double>(c.integer("replaced_value_int64", 0));
  Value* hit =
      std::isnan(replaced) ? c.emit("IsNaN", {x}) : c.emit("Equal", {x, number(c, replaced, x)});
  return {c.pointwise("Where", {hit, c.constant(imputed), x})};
}

// ---- features ----------------------------------------------------------------------------------

// Columns of x
Values import_array_feature_extractor(OnnxCall& c) {
  Value* x = c.in(0);
  if (x->rank() == 0) c.refuse("x must have a dimension");
  if (x->rank() == 1) x = c.reshape(x, {1, x->dims.at(0)});
  Value* columns = c.reshape(c.cast(c.in(1), DType::Int64), {product(c.dims(1))});
  return {c.emit("Gather", {x, columns}, {{"axis", static_cast<int64_t>(x->rank()) - 1}})};
}

// All columns of all operands, as float32
Values import_feature_vectorizer(OnnxCall& c) {
  const std::vector<int64_t> sizes = c.integers("inputdimensions");
  Values parts;
  for (size_t i = 0; i < c.input_count(); ++i) {
    Value* x = c.in(i);
    if (x->rank() == 1) x = c.reshape(x, {1, x->dims.at(0)});
    if (x->rank() != 2) c.refuse("operands must have rank 1 or 2");
    if (i < sizes.size() && !c.sizes().equal(x->dims.at(1), sizes.at(i)))
      c.refuse(
          str("operand ", i, " must have ", sizes.at(i), " columns, but found ", x->dims.at(1)));
    parts.push_back(c.cast(x, DType::Float32));
  }
  if (parts.empty()) c.refuse("there must be an operand");
  return {parts.size() == 1 ? c.emit("Identity", parts) : c.concat(parts, 1)};
}

// 1 where x is the category, in one more dimension
Values import_one_hot_encoder(OnnxCall& c) {
  const std::vector<int64_t> categories = c.integers("cats_int64s");
  if (categories.empty()) c.refuse("categories must be integers");
  if (!c.flag("zeros", true))
    c.refuse("zeros must be 1: an error that depends on data is not supported");
  Value* x = c.cast(c.in(0), DType::Int64);
  Dims dims = x->dims;
  dims.push_back(1);
  Value* hit = c.pointwise("Equal", {c.reshape(x, dims), c.constant(integer_list(categories))});
  return {c.cast(hit, DType::Float32)};
}

// A list of numbers by one of two attributes, or a tensor; nullopt if there is neither.
std::optional<KnownValue> number_list(OnnxCall& c, const std::string& stem) {
  if (c.has_attr(stem + "_int64s")) return integer_list(c.integers(stem + "_int64s"));
  if (c.has_attr(stem + "_floats")) return real_list(c.numbers(stem + "_floats"), DType::Float32);
  const OnnxTensor* tensor = c.tensor_attr(stem + "_tensor");
  return tensor ? known_content(*tensor) : std::nullopt;
}

double fallback_value(OnnxCall& c, bool real) {
  if (const OnnxTensor* tensor = c.tensor_attr("default_tensor")) {
    const std::optional<KnownValue> content = known_content(*tensor);
    if (!content || content->elements.size() != 1) c.refuse("default_tensor must have one number");
    return content->elements.at(0).value();
  }
  return real ? c.number("default_float", -0.0)
              : static_cast<double>(c.integer("default_int64", -1));
}

// values.at(i) where x is keys[i], the first of equal keys
Values import_label_encoder(OnnxCall& c) {
  Value* x = c.in(0);
  const std::optional<KnownValue> keys = number_list(c, "keys"), values = number_list(c, "values");
  if (!keys || !values) c.refuse("keys and values must be at most 1024 numbers each");
  if (keys->elements.size() != values->elements.size() || keys->elements.empty())
    c.refuse("there must be a value for each key");
  if (keys->dtype != x->dtype) c.refuse("keys must have the type of x");
  Dims dims = x->dims;
  dims.push_back(1);
  Value* wide = c.reshape(x, dims);
  Value* hit = c.pointwise("Equal", {wide, c.constant(*keys)});
  if (is_floating(x->dtype)) {  // NaN is a key, too
    KnownValue unordered{DType::Bool, keys->dims, {}};
    bool any = false;
    for (const KnownNumber& key : keys->elements) {
      unordered.elements.emplace_back(int64_t{std::isnan(key.value())});
      any = any || std::isnan(key.value());
    }
    if (any)
      hit =
          c.emit("Or", {hit, c.pointwise("And", {c.emit("IsNaN", {wide}), c.constant(unordered)})});
  }
  const auto last = static_cast<int64_t>(x->rank());
  Value* counts = c.cast(hit, DType::Int32);
  Value* index = c.emit("ArgMax", {counts}, {{"axis", last}, {"keepdims", 0}});
  Value* any =
      c.emit("Greater", {c.reduce("ReduceMax", counts, {last}, false), c.literal(0, DType::Int32)});
  Value* y = c.emit("Gather", {c.constant(*values), index}, {{"axis", 0}});
  return {c.emit("Where", {any, y, number(c, fallback_value(c, is_floating(y->dtype)), y)})};
}

// ---- linear models -----------------------------------------------------------------------------

Value* linear(OnnxCall& c, int64_t targets) {
  Value* x = c.cast(c.in(0), DType::Float32);
  if (x->rank() == 1) x = c.reshape(x, {1, x->dims.at(0)});
  if (x->rank() != 2) c.refuse("x must have rank 1 or 2");
  const std::vector<double> coefficients = c.numbers("coefficients"),
                            intercepts = c.numbers("intercepts");
  const auto count = static_cast<int64_t>(coefficients.size());
  if (targets <= 0 || count % targets != 0 || !c.sizes().equal(x->dims.at(1), count / targets))
    c.refuse("there must be a coefficient for each target and column");
  KnownValue weights = real_list(coefficients, DType::Float32);
  weights.dims = {targets, count / targets};
  Value* y = c.emit("MatMul", {x, c.transpose(c.constant(weights), {1, 0})});
  if (intercepts.empty()) return y;
  if (static_cast<int64_t>(intercepts.size()) != targets)
    c.refuse("there must be an intercept for each target");
  return c.emit("Add", {y, c.constant(real_list(intercepts, DType::Float32))});
}

Value* after_transform(OnnxCall& c, Value* scores) {
  const std::string transform = c.string("post_transform", "NONE");
  if (transform == "NONE") return scores;
  if (transform == "LOGISTIC") return c.emit("Sigmoid", {scores});
  if (transform == "SOFTMAX") return c.emit("Softmax", {scores}, {{"axis", 1}});
  c.refuse(str("post_transform ", transform, " is not supported"));
}

Values import_linear_regressor(OnnxCall& c) {
  return {after_transform(c, linear(c, c.integer("targets", 1)))};
}

// The label of the largest score, and scores after a transform. One row of coefficients for two
// labels gives the score of the second.
Values import_linear_classifier(OnnxCall& c) {
  const std::vector<int64_t> labels = c.integers("classlabels_ints");
  if (labels.empty()) c.refuse("labels must be integers");
  const size_t targets = std::max<size_t>(c.numbers("intercepts").size(), 1);
  Value* scores = linear(c, static_cast<int64_t>(targets));
  Value* index;
  if (targets == 1 && labels.size() == 2) {
    if (c.string("post_transform", "NONE") == "SOFTMAX")
      c.refuse("SOFTMAX of one score is not supported");
    Value* second = c.emit("Greater", {scores, number(c, 0, scores)});
    index = c.reshape(c.cast(second, DType::Int64), {scores->dims.at(0)});
    Value* y = after_transform(c, scores);
    // onnxruntime's first score is 1 less the second, even without a transform.
    Value* first = c.emit("Sub", {number(c, 1, y), y});
    scores = c.concat({first, y}, 1);
  } else if (targets == labels.size()) {
    index = c.emit("ArgMax", {scores}, {{"axis", 1}, {"keepdims", 0}});
    scores = after_transform(c, scores);
  } else {
    c.refuse("there must be a label for each row of coefficients");
  }
  return {c.emit("Gather", {c.constant(integer_list(labels)), index}, {{"axis", 0}}), scores};
}

REGISTER_ONNX({{"Scaler", 1, import_scaler, nullptr, "ai.onnx.ml"},
               {"Binarizer", 1, import_binarizer, nullptr, "ai.onnx.ml"},
               {"Normalizer", 1, import_normalizer, nullptr, "ai.onnx.ml"},
               {"Imputer", 1, import_imputer, nullptr, "ai.onnx.ml"},
               {"ArrayFeatureExtractor", 1, import_array_feature_extractor, nullptr, "ai.onnx.ml"},
               {"FeatureVectorizer", 1, import_feature_vectorizer, nullptr, "ai.onnx.ml"},
               {"OneHotEncoder", 1, import_one_hot_encoder, nullptr, "ai.onnx.ml"},
               {"LabelEncoder", 2, import_label_encoder, nullptr, "ai.onnx.ml"},
               {"LinearRegressor", 1, import_linear_regressor, nullptr, "ai.onnx.ml"},
               {"LinearClassifier", 1, import_linear_classifier, nullptr, "ai.onnx.ml"}});

}  // namespace
}  // namespace ortmodule
