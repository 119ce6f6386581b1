// Import of support vector machines: the kernel between rows and support vectors, then products
// with coefficients. Votes and coupled probabilities are those of libsvm.
#include <algorithm>
#include <utility>

#include "base/error.h"
#include "ops/onnx_ml.h"
#include "ops/op_def.h"

namespace ortmodule {
namespace {

// Elements of matrices that are made of lists of the file, which may be much shorter.
constexpr int64_t kMostWeights = int64_t{1} << 26, kMostVotes = int64_t{1} << 28;

/// The kernel of each row of x with each of `count` vectors: [rows, count]
Value* kernel_matrix(OnnxCall& c, Value* x, const std::vector<double>& vectors, int64_t count,
                     const std::string& kind) {
  const auto size = static_cast<int64_t>(vectors.size());
  if (count <= 0 || size % count != 0 || !c.sizes().equal(x->dims.at(1), size / count))
    c.refuse("each vector must have a number for each column of x");
  const std::vector<double> params = c.numbers("kernel_params");
  const auto param = [&](size_t i) { return i < params.size() ? params[i] : 0.0; };
  const auto number = [&](double value) { return c.literal(value, DType::Float32); };
  Value* turned = c.transpose(ml_numbers(c, vectors, {count, size / count}), {1, 0});
  if (kind == "RBF") {
    Value* distances = c.emit("PowerDistances", {x, turned}, {{"p", 2.0}});
    return c.emit("Exp", {c.emit("Mul", {distances, number(-param(0))})});
  }
  Value* product = c.emit("MatMul", {x, turned});
  if (kind == "LINEAR") return product;
  Value* scaled = c.emit("Add", {c.emit("Mul", {product, number(param(0))}), number(param(1))});
  if (kind == "POLY") return c.emit("Pow", {scaled, number(param(2))});
  if (kind == "SIGMOID") return c.emit("Tanh", {scaled});
  c.refuse(str("kernel_type must be LINEAR, POLY, RBF or SIGMOID, but found ", kind));
}

Values import_svm_regressor(OnnxCall& c) {
  Value* x = ml_float_rows(c);
  const std::vector<double> coefficients = c.numbers("coefficients"), rho = c.numbers("rho");
  if (rho.empty()) c.refuse("there must be a rho");
  const int64_t vectors = c.integer("n_supports", 0);
  Value* y;
  if (vectors > 0) {
    if (static_cast<int64_t>(coefficients.size()) != vectors)
      c.refuse("there must be a coefficient for each support vector");
    Value* kernel = kernel_matrix(c, x, c.numbers("support_vectors"), vectors,
                                  c.string("kernel_type", "LINEAR"));
    y = c.emit("MatMul", {kernel, ml_numbers(c, coefficients, {vectors, 1})});
  } else {
    y = kernel_matrix(c, x, coefficients, 1, "LINEAR");
  }
  y = c.emit("Add", {y, c.literal(rho.front(), y->dtype)});
  if (c.flag("one_class")) {
    Value* inside = c.emit("Greater", {y, c.literal(0, y->dtype)});
    y = c.emit("Where", {inside, c.literal(1, y->dtype), c.literal(-1, y->dtype)});
  }
  return {ml_transformed(c, y, c.string("post_transform", "NONE"))};
}

/// The pairs of classes, (0, 1), (0, 2) ... (1, 2) ...
std::vector<std::pair<int64_t, int64_t>> pairs_of(int64_t classes) {
  std::vector<std::pair<int64_t, int64_t>> pairs;
  for (int64_t i = 0; i < classes; ++i)
    for (int64_t j = i + 1; j < classes; ++j) pairs.emplace_back(i, j);
  return pairs;
}

/// The decision of each pair of classes, from the vectors of both: [rows, pairs]
Value* decisions(OnnxCall& c, Value* kernel, const std::vector<int64_t>& per_class,
                 int64_t vectors) {
  const auto classes = static_cast<int64_t>(per_class.size());
  const int64_t count = classes * (classes - 1) / 2;
  const std::vector<double> coefficients = c.numbers("coefficients"), rho = c.numbers("rho");
  if (static_cast<int64_t>(coefficients.size()) < (classes - 1) * vectors)
    c.refuse("there must be a coefficient for each vector and other class");
  if (static_cast<int64_t>(rho.size()) < count)
    c.refuse("there must be a rho for each pair of classes");
  if (count > kMostWeights / std::max<int64_t>(vectors, 1) || count > kMostVotes / classes)
    c.refuse("there are too many classes and support vectors");
  const auto pairs = pairs_of(classes);
  std::vector<int64_t> first{0};  // vector of each class
  for (int64_t each : per_class) first.push_back(first.back() + each);
  std::vector<double> weights(static_cast<size_t>(vectors * count), 0.0);
  const auto add = [&](int64_t of, int64_t row, int64_t pair) {
    for (int64_t m = first[static_cast<size_t>(of)]; m < first[static_cast<size_t>(of) + 1]; ++m)
      weights[static_cast<size_t>(m * count + pair)] =
          coefficients[static_cast<size_t>(row * vectors + m)];
  };
  for (int64_t pair = 0; pair < count; ++pair) {
    const auto [i, j] = pairs[static_cast<size_t>(pair)];
    add(i, j - 1, pair);
    add(j, i, pair);
  }
  Value* y = c.emit("MatMul", {kernel, ml_numbers(c, weights, {vectors, count})});
  return c.emit("Add", {y, ml_numbers(c, {rho.begin(), rho.begin() + count}, {count})});
}

/// The class that most pairs decide for, the first of several.
Value* voted(OnnxCall& c, Value* scores, int64_t classes) {
  const auto pairs = pairs_of(classes);
  const auto count = static_cast<int64_t>(pairs.size());
  // A decision for i is one more vote for i and one less for j than one for j.
  std::vector<double> change(static_cast<size_t>(count * classes), 0.0);
  std::vector<double> least(static_cast<size_t>(classes), 0.0);
  for (int64_t pair = 0; pair < count; ++pair) {
    const auto [i, j] = pairs[static_cast<size_t>(pair)];
    change[static_cast<size_t>(pair * classes + i)] = 1;
    change[static_cast<size_t>(pair * classes + j)] = -1;
    least[static_cast<size_t>(j)] += 1;
  }
  Value* first = c.cast(c.emit("Greater", {scores, c.literal(0, scores->dtype)}), DType::Float32);
  Value* votes = c.emit("Add", {c.emit("MatMul", {first, ml_numbers(c, change, {count, classes})}),
                                ml_numbers(c, least, {classes})});
  return c.emit("ArgMax", {votes}, {{"axis", 1}, {"keepdims", 0}});
}

/// The probability of the first class of each pair, of Platt's sigmoid.
Value* pair_probabilities(OnnxCall& c, Value* scores, const std::vector<double>& a,
                          const std::vector<double>& b) {
  const int64_t count = scores->dims.at(1).value();
  if (static_cast<int64_t>(std::min(a.size(), b.size())) < count)
    c.refuse("there must be prob_a and prob_b for each pair of classes");
  Value* value = c.emit("Mul", {scores, ml_numbers(c, {a.begin(), a.begin() + count}, {count})});
  value = c.emit("Add", {value, ml_numbers(c, {b.begin(), b.begin() + count}, {count})});
  return c.emit("Sigmoid", {c.emit("Neg", {value})});
}

/// One score for each class: scores without support vectors
Values linear_classes(OnnxCall& c, const MlLabels& labels) {
  const std::vector<double> coefficients = c.numbers("coefficients"), rho = c.numbers("rho");
  if (rho.empty() || coefficients.empty()) c.refuse("there must be coefficients and a rho");
  Value* scores = kernel_matrix(c, ml_float_rows(c), coefficients, labels.count(), "LINEAR");
  scores = c.emit("Add", {scores, c.literal(rho.front(), scores->dtype)});
  Value* index = c.emit("ArgMax", {scores}, {{"axis", 1}, {"keepdims", 0}});
  if (labels.count() == 2) {  // as onnxruntime decides
    const bool positive = std::all_of(coefficients.begin(), coefficients.end(),
                                      [](double weight) { return weight >= 0; });
    Value* most = c.reduce("ReduceMax", scores, {1}, false);
    Value* second = c.emit(positive ? "GreaterOrEqual" : "Greater",
                           {most, c.literal(positive ? 0.5 : 0, most->dtype)});
    index = c.emit("Where", {second, c.literal(1, DType::Int64), index});
  }
  return {ml_label_output(c, labels, index),
          ml_transformed(c, scores, c.string("post_transform", "NONE"))};
}

Values import_svm_classifier(OnnxCall& c) {
  const MlLabels labels = ml_labels(c, "classlabels_ints", "classlabels_strings");
  const std::vector<int64_t> per_class = c.integers("vectors_per_class");
  int64_t vectors = 0;
  for (int64_t each : per_class) {
    if (each < 0 || each > kMostWeights - vectors)
      c.refuse(str("vectors_per_class must be from 0 on and add up to at most ", kMostWeights));
    vectors += each;
  }
  if (vectors == 0) return linear_classes(c, labels);
  if (static_cast<int64_t>(per_class.size()) != labels.count() || labels.count() < 2)
    c.refuse("there must be a number of vectors for each label");
  Value* kernel = kernel_matrix(c, ml_float_rows(c), c.numbers("support_vectors"), vectors,
                                c.string("kernel_type", "LINEAR"));
  Value* scores = decisions(c, kernel, per_class, vectors);
  Value* label = ml_label_output(c, labels, voted(c, scores, labels.count()));
  const std::string transform = c.string("post_transform", "NONE");
  if (c.has_attr("prob_a") && !c.numbers("prob_a").empty()) {
    Value* pairs = pair_probabilities(c, scores, c.numbers("prob_a"), c.numbers("prob_b"));
    scores = c.emit("CoupledProbabilities", {pairs}, {{"classes", labels.count()}});
    return {label, ml_transformed(c, scores, transform)};
  }
  if (labels.count() > 2) return {label, ml_transformed(c, scores, transform)};
  const SecondScore kind = transform == "NONE" ? SecondScore::Margin : SecondScore::Probability;
  return {label, ml_two_scores(c, scores, kind, transform)};
}

REGISTER_ONNX({{"SVMRegressor", 1, import_svm_regressor, nullptr, kMlDomain},
               {"SVMClassifier", 1, import_svm_classifier, nullptr, kMlDomain}});

}  // namespace
}  // namespace ortmodule
