#include "ops/onnx_ml.h"

#include <cstring>
#include <utility>

#include "base/error.h"
#include "onnx/onnx_builder.h"
#include "ops/op_def.h"

namespace ortmodule {

Value* ml_rows(OnnxCall& c) {
  Value* x = c.in(0);
  if (x->rank() == 1) x = c.reshape(x, {1, x->dims.at(0)});
  if (x->rank() != 2) c.refuse(str("x must have rank 1 or 2, but found ", x->rank()));
  return x;
}

Value* ml_float_rows(OnnxCall& c) { return c.cast(ml_rows(c), DType::Float32); }

Value* ml_numbers(OnnxCall& c, const std::vector<double>& numbers, std::vector<int64_t> dims,
                  DType dtype) {
  std::string bytes;
  for (double number : numbers) bytes += encode_scalar(number, dtype);
  return c.weight({dtype, std::move(dims), std::move(bytes)});
}

Value* ml_integers(OnnxCall& c, const std::vector<int64_t>& numbers) {
  std::string bytes(reinterpret_cast<const char*>(numbers.data()),
                    numbers.size() * sizeof(int64_t));
  return c.weight({DType::Int64, {static_cast<int64_t>(numbers.size())}, std::move(bytes)});
}

namespace {

template <class T>
std::vector<double> elements_of(std::string_view bytes) {
  std::vector<double> numbers;
  for (size_t at = 0; at + sizeof(T) <= bytes.size(); at += sizeof(T)) {
    T number;
    std::memcpy(&number, bytes.data() + at, sizeof(T));
    numbers.push_back(static_cast<double>(number));
  }
  return numbers;
}

}  // namespace

std::vector<double> ml_tensor_numbers(OnnxCall& c, const OnnxTensor& tensor) {
  if (tensor.dtype == DType::Float32) return elements_of<float>(tensor.bytes.view());
  if (tensor.dtype == DType::Float64) return elements_of<double>(tensor.bytes.view());
  if (tensor.dtype == DType::Float16) return elements_of<_Float16>(tensor.bytes.view());
  c.refuse(str("a list of numbers must be float32, float64 or float16, but found ",
               name_of(tensor.dtype)));
}

int64_t ml_exact_integer(OnnxCall& c, std::string_view name, int64_t fallback) {
  const OnnxAttr* attr = c.find(name);
  if (!attr) return fallback;
  const auto* integer = std::get_if<int64_t>(attr);
  if (!integer) c.refuse(str("attribute '", name, "' must be an integer"));
  return *integer;
}

std::vector<int64_t> ml_exact_integers(OnnxCall& c, std::string_view name) {
  const OnnxAttr* attr = c.find(name);
  if (!attr) return {};
  const auto* list = std::get_if<std::vector<int64_t>>(attr);
  if (!list) c.refuse(str("attribute '", name, "' must be a list of integers"));
  return *list;
}

std::vector<int64_t> ml_text_numbers(OnnxCall& c, const std::vector<std::string>& texts) {
  std::vector<int64_t> numbers;
  for (const std::string& text : texts) numbers.push_back(c.text_number(text));
  return numbers;
}

MlLabels ml_labels(OnnxCall& c, std::string_view integers, std::string_view strings,
                   bool required) {
  MlLabels labels;
  labels.numbers = ml_text_numbers(c, c.strings(strings));
  labels.texts = labels.count() > 0;
  if (!labels.texts) labels.numbers = ml_exact_integers(c, integers);
  if (labels.count() == 0 && required)
    c.refuse(str("there must be labels in ", integers, " or ", strings));
  return labels;
}

Value* ml_label_output(OnnxCall& c, const MlLabels& labels, Value* index) {
  if (labels.texts) c.set_meaning(0, OnnxMeaning::Texts);
  return c.emit("Gather", {ml_integers(c, labels.numbers), index}, {{"axis", 0}});
}

namespace {

// exp(x - max) over their sum, where scores of about zero count as zeros.
Value* softmax_zero(OnnxCall& c, Value* scores) {
  Value* most = c.reduce("ReduceMax", scores, {1}, true);
  Value* size = c.emit("Abs", {scores});
  Value* large = c.emit("Greater", {size, c.literal(1e-7, scores->dtype)});
  Value* raised = c.emit("Exp", {c.emit("Sub", {scores, most})});
  Value* small = c.emit("Mul", {scores, c.emit("Exp", {c.emit("Neg", {most})})});
  Value* sum = c.reduce("ReduceSum", c.emit("Where", {large, raised, c.literal(0, scores->dtype)}),
                        {1}, true);
  return c.emit("Div", {c.emit("Where", {large, raised, small}), sum});
}

// sqrt(2) erfinv(2 x - 1) with the inverse of Winitzki, "A handy approximation for the error
// function and its inverse" (2008), as in onnxruntime.
Value* probit(OnnxCall& c, Value* x) {
  const auto number = [&](double value) { return c.literal(value, x->dtype); };
  Value* centered = c.emit("Sub", {c.emit("Mul", {x, number(2)}), number(1)});
  Value* below = c.emit("Sub", {number(1), centered});
  Value* above = c.emit("Add", {number(1), centered});
  Value* log = c.emit("Log", {c.emit("Mul", {below, above})});
  Value* v = c.emit("Add", {c.emit("Mul", {log, number(0.5)}), number(2 / (3.14159 * 0.147))});
  Value* square = c.emit("Sub", {c.emit("Mul", {v, v}), c.emit("Mul", {log, number(1 / 0.147)})});
  Value* size = c.emit("Sqrt", {c.emit("Sub", {c.emit("Sqrt", {square}), v})});
  Value* negative = c.emit("Less", {centered, number(0)});
  Value* inverse = c.emit("Where", {negative, c.emit("Neg", {size}), size});
  return c.emit("Mul", {inverse, number(1.41421356)});
}

}  // namespace

Value* ml_transformed(OnnxCall& c, Value* scores, std::string_view transform) {
  if (transform == "NONE") return scores;
  if (transform == "LOGISTIC") return c.emit("Sigmoid", {scores});
  if (transform == "SOFTMAX") return c.emit("Softmax", {scores}, {{"axis", 1}});
  if (transform == "SOFTMAX_ZERO") return softmax_zero(c, scores);
  if (transform == "PROBIT") return probit(c, scores);
  c.refuse(str("post_transform must be NONE, LOGISTIC, SOFTMAX, SOFTMAX_ZERO or PROBIT, but found ",
               transform));
}

Value* ml_two_scores(OnnxCall& c, Value* score, SecondScore kind, std::string_view transform) {
  if (kind == SecondScore::Probability && transform != "LOGISTIC")
    return c.concat({c.emit("Sub", {c.literal(1, score->dtype), score}), score}, 1);
  Value* both = c.concat({c.emit("Neg", {score}), score}, 1);
  return transform == "LOGISTIC" ? c.emit("Sigmoid", {both}) : both;
}

}  // namespace ortmodule
