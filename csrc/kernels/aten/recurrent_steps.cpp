// The recurrent ops step by step, as operators of torch's dispatcher that consist of ATen's own, so
// that autograd differentiates them. Only gradients of gradients call them: the kernels of the ops
// have formulas for first gradients alone (`ops/recurrent.h`).
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <functional>
#include <optional>
#include <utility>
#include <vector>

namespace ortmodule {
namespace {

using Tensors = std::vector<at::Tensor>;
using MaybeTensor = std::optional<at::Tensor>;
/// From the gates of a step, without the product of the state, and the states to the next states;
/// the first is the step's result.
using Cell = std::function<Tensors(const at::Tensor&, const Tensors&)>;

struct Direction {
  bool batch_first = false;
  bool reverse = false;
};

/// All steps of a padded batch, from these states on; the results behind y are the last states.
Tensors run_padded(const at::Tensor& pre, Tensors states, Direction direction, const Cell& cell) {
  const int64_t time = direction.batch_first ? 1 : 0;
  const Tensors steps = pre.unbind(time);
  Tensors results(steps.size());
  for (size_t i = 0; i < steps.size(); ++i) {
    const size_t t = direction.reverse ? steps.size() - 1 - i : i;
    states = cell(steps[t], states);
    results[t] = states[0];
  }
  states.insert(states.begin(), at::stack(results, time));
  return states;
}

/// The same of a packed batch: `sizes` are the rows of each step, which never grow.
Tensors run_packed(const at::Tensor& pre, const at::Tensor& sizes, const Tensors& initial,
                   bool reverse, const Cell& cell) {
  const at::Tensor counts = sizes.to(at::kCPU, at::kLong).contiguous();
  const std::vector<int64_t> rows(counts.data_ptr<int64_t>(),
                                  counts.data_ptr<int64_t>() + counts.numel());
  const Tensors steps = pre.split_with_sizes(rows);
  const auto narrowed = [](const Tensors& states, int64_t begin, int64_t end) {
    Tensors parts;
    for (const at::Tensor& state : states) parts.push_back(state.narrow(0, begin, end - begin));
    return parts;
  };
  const auto joined = [](const Tensors& first, const Tensors& second) {
    Tensors both;
    for (size_t i = 0; i < first.size(); ++i) both.push_back(at::cat({first[i], second[i]}));
    return both;
  };
  int64_t live = reverse ? rows.back() : rows.front();
  Tensors states = narrowed(initial, 0, live), ended = narrowed(initial, live, live);
  Tensors results(steps.size());
  for (size_t i = 0; i < steps.size(); ++i) {
    const size_t t = reverse ? steps.size() - 1 - i : i;
    if (rows[t] < live) {  // sequences that have ended
      ended = joined(narrowed(states, rows[t], live), ended);
      states = narrowed(states, 0, rows[t]);
    } else if (rows[t] > live) {  // backwards, sequences that begin
      states = joined(states, narrowed(initial, live, rows[t]));
    }
    live = rows[t];
    states = cell(steps[t], states);
    results[t] = states[0];
  }
  states = joined(states, ended);
  states.insert(states.begin(), at::cat(results));
  return states;
}

at::Tensor widened(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kDouble ? tensor : tensor.to(at::kFloat);
}

at::Tensor plus_bias(const at::Tensor& gates, const MaybeTensor& bias) {
  return bias ? gates + widened(*bias) : gates;
}

at::Tensor state_product(const at::Tensor& state, const at::Tensor& r, const MaybeTensor& bias) {
  return plus_bias(at::matmul(state, widened(r).t()), bias);
}

/// Runs the steps in wide types; absent states, of these widths, are zeros.
Tensors run_steps(const at::Tensor& pre, const std::vector<MaybeTensor>& initial,
                  const std::vector<int64_t>& widths, const MaybeTensor& batch_sizes,
                  Direction direction, const Cell& cell) {
  const at::Tensor gates = widened(pre);
  Tensors states;
  for (size_t i = 0; i < initial.size(); ++i)
    states.push_back(initial[i] ? widened(*initial[i])
                                : at::zeros({pre.size(direction.batch_first ? 0 : 1), widths[i]},
                                            gates.options()));
  Tensors results = batch_sizes ? run_packed(gates, *batch_sizes, states, direction.reverse, cell)
                                : run_padded(gates, std::move(states), direction, cell);
  for (at::Tensor& result : results) result = result.to(pre.scalar_type());
  return results;
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> lstm_steps(
    const at::Tensor& pre, const at::Tensor& r, const MaybeTensor& input_bias,
    const MaybeTensor& recurrent_bias, const MaybeTensor& initial_h, const MaybeTensor& initial_c,
    const MaybeTensor& batch_sizes, const MaybeTensor& projection, bool batch_first, bool reverse) {
  const Cell cell = [&](const at::Tensor& given, const Tensors& states) -> Tensors {
    const Tensors parts =
        (plus_bias(given, input_bias) + state_product(states[0], r, recurrent_bias)).chunk(4, 1);
    const at::Tensor c =
        at::sigmoid(parts[1]) * states[1] + at::sigmoid(parts[0]) * parts[2].tanh();
    const at::Tensor h = at::sigmoid(parts[3]) * c.tanh();
    return {projection ? state_product(h, *projection, std::nullopt) : h, c};
  };
  const Tensors results = run_steps(pre, {initial_h, initial_c}, {r.size(1), r.size(0) / 4},
                                    batch_sizes, {batch_first, reverse}, cell);
  return {results[0], results[1], results[2]};
}

std::tuple<at::Tensor, at::Tensor> gru_steps(const at::Tensor& pre, const at::Tensor& r,
                                             const MaybeTensor& input_bias,
                                             const MaybeTensor& recurrent_bias,
                                             const MaybeTensor& initial_h,
                                             const MaybeTensor& batch_sizes, bool batch_first,
                                             bool reverse) {
  const Cell cell = [&](const at::Tensor& given, const Tensors& states) -> Tensors {
    const Tensors a = plus_bias(given, input_bias).chunk(3, 1);
    const Tensors b = state_product(states[0], r, recurrent_bias).chunk(3, 1);
    const at::Tensor kept = at::sigmoid(a[1] + b[1]);
    const at::Tensor fresh = (a[2] + at::sigmoid(a[0] + b[0]) * b[2]).tanh();
    return {fresh + kept * (states[0] - fresh)};
  };
  const Tensors results =
      run_steps(pre, {initial_h}, {r.size(1)}, batch_sizes, {batch_first, reverse}, cell);
  return {results[0], results[1]};
}

std::tuple<at::Tensor, at::Tensor> rnn_steps(const at::Tensor& pre, const at::Tensor& r,
                                             const MaybeTensor& input_bias,
                                             const MaybeTensor& recurrent_bias,
                                             const MaybeTensor& initial_h,
                                             const MaybeTensor& batch_sizes, bool batch_first,
                                             bool reverse, bool relu) {
  const Cell cell = [&](const at::Tensor& given, const Tensors& states) -> Tensors {
    const at::Tensor gates =
        plus_bias(given, input_bias) + state_product(states[0], r, recurrent_bias);
    return {relu ? gates.relu() : gates.tanh()};
  };
  const Tensors results =
      run_steps(pre, {initial_h}, {r.size(1)}, batch_sizes, {batch_first, reverse}, cell);
  return {results[0], results[1]};
}

TORCH_LIBRARY_FRAGMENT(ortmodule_py, m) {
  m.def(
      "lstm_steps(Tensor pre, Tensor r, Tensor? input_bias, Tensor? recurrent_bias, "
      "Tensor? initial_h, Tensor? initial_c, Tensor? batch_sizes, Tensor? projection, "
      "bool batch_first, bool reverse) -> (Tensor, Tensor, Tensor)",
      lstm_steps);
  m.def(
      "gru_steps(Tensor pre, Tensor r, Tensor? input_bias, Tensor? recurrent_bias, "
      "Tensor? initial_h, Tensor? batch_sizes, bool batch_first, bool reverse) "
      "-> (Tensor, Tensor)",
      gru_steps);
  m.def(
      "rnn_steps(Tensor pre, Tensor r, Tensor? input_bias, Tensor? recurrent_bias, "
      "Tensor? initial_h, Tensor? batch_sizes, bool batch_first, bool reverse, bool relu) "
      "-> (Tensor, Tensor)",
      rnn_steps);
}

}  // namespace
}  // namespace ortmodule
