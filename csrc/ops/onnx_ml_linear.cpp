// Import of ai.onnx.ml's linear models.
#include <algorithm>

#include "base/error.h"
#include "ops/onnx_ml.h"
#include "ops/op_def.h"

namespace ortmodule {
namespace {

// x coefficients^T + intercepts: [rows, targets]
Value* linear(OnnxCall& c, int64_t targets) {
  Value* x = ml_float_rows(c);
  std::vector<double> coefficients = c.numbers("coefficients");
  const std::vector<double> intercepts = c.numbers("intercepts");
  const auto count = static_cast<int64_t>(coefficients.size());
  if (targets <= 0) c.refuse("there must be a target");
  // Of more than there are columns, onnxruntime takes the first; it comes with such a model.
  const bool fits = count % targets == 0 && c.sizes().equal(x->dims.at(1), count / targets);
  const int64_t columns = fits ? count / targets : c.sizes().fix(x->dims.at(1));
  if (columns > count / targets) c.refuse("there must be a coefficient for each target and column");
  coefficients.resize(static_cast<size_t>(targets * columns));
  Value* weights = ml_numbers(c, coefficients, {targets, columns});
  Value* y = c.emit("MatMul", {x, c.transpose(weights, {1, 0})});
  if (intercepts.empty()) return y;
  if (static_cast<int64_t>(intercepts.size()) != targets)
    c.refuse("there must be an intercept for each target");
  return c.emit("Add", {y, ml_numbers(c, intercepts, {targets})});
}

Values import_linear_regressor(OnnxCall& c) {
  Value* y = linear(c, c.integer("targets", 1));
  return {ml_transformed(c, y, c.string("post_transform", "NONE"))};
}

// The label of the largest score, and scores after a transform. One row of coefficients gives the
// score of the second label.
Values import_linear_classifier(OnnxCall& c) {
  MlLabels labels = ml_labels(c, "classlabels_ints", "classlabels_strings");
  const auto targets = static_cast<int64_t>(std::max<size_t>(c.numbers("intercepts").size(), 1));
  const std::string transform = c.string("post_transform", "NONE");
  Value* scores = linear(c, targets);
  if (targets > 1) {
    if (targets > labels.count()) c.refuse("there must be a label for each row of coefficients");
    Value* index = c.emit("ArgMax", {scores}, {{"axis", 1}, {"keepdims", 0}});
    return {ml_label_output(c, labels, index), ml_transformed(c, scores, transform)};
  }
  Value* second = c.emit("Greater", {scores, c.literal(0, scores->dtype)});
  Value* index = c.reshape(c.cast(second, DType::Int64), {scores->dims.at(0)});
  const bool both = labels.count() == 2;
  if (!both) {
    if (labels.texts) c.refuse("there must be two labels for one row of coefficients");
    labels.numbers = {0, 1};
  }
  Value* y = both ? ml_two_scores(c, scores, SecondScore::Probability, transform)
                  : ml_transformed(c, scores, transform);
  return {ml_label_output(c, labels, index), y};
}

REGISTER_ONNX({{"LinearRegressor", 1, import_linear_regressor, nullptr, kMlDomain},
               {"LinearClassifier", 1, import_linear_classifier, nullptr, kMlDomain}});

}  // namespace
}  // namespace ortmodule
