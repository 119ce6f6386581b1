#include "kernels/convolution_problem.h"

#include <algorithm>
#include <limits>
#include <mutex>
#include <numeric>
#include <set>
#include <string>
#include <utility>

namespace ortmodule {
namespace {

constexpr int64_t kLeastWorkspaceBytes = int64_t{512} << 10;
constexpr int64_t kMostWorkspaceBytes = int64_t{64} << 20;

struct Tensors {
  const OperandFacts& x;
  const OperandFacts& w;
  const OperandFacts& y;  // or its gradient

  explicit Tensors(const StepFacts& facts)
      : x(facts.inputs[is_grad(facts) ? 1 : 0]),
        w(facts.inputs[is_grad(facts) ? 2 : 1]),
        y(is_grad(facts) ? facts.inputs[0] : facts.outputs[0]) {}

  static bool is_grad(const StepFacts& facts) { return facts.node().op == "ConvGrad"; }
};

/// Channels-last, and no row-major tensor at the same time.
bool only_channels_last(const Layout& layout) {
  return is_channels_last(layout) && !is_contiguous(layout);
}

bool wants_channels_last(const StepFacts& facts) {
  const Tensors t(facts);
  const bool dy_too = Tensors::is_grad(facts) && only_channels_last(t.y.layout);
  return only_channels_last(t.x.layout) || only_channels_last(t.w.layout) || dy_too;
}

bool lies_so(const Layout& layout, bool channels_last) {
  return channels_last ? is_channels_last(layout) : is_contiguous(layout);
}

std::vector<int> narrowed(const Sizes& sizes) {
  std::vector<int> narrow(sizes.begin(), sizes.end());
  if (narrow.size() == 3) narrow.insert(narrow.begin() + 2, 1);
  return narrow;
}

/// One number per spatial dimension; `neutral` for the one that is added.
std::vector<int> window_numbers(std::vector<int64_t> numbers, int neutral) {
  std::vector<int> narrow(numbers.begin(), numbers.end());
  if (narrow.size() == 1) narrow.insert(narrow.begin(), neutral);
  return narrow;
}

bool fits_in_int(const Sizes& sizes) {
  return element_count(sizes) <= std::numeric_limits<int>::max();
}

int64_t bytes_of(const std::vector<int>& sizes, DType dtype) {
  return std::accumulate(sizes.begin(), sizes.end(), static_cast<int64_t>(size_of(dtype)),
                         [](int64_t a, int b) { return a * b; });
}

Sizes strides_for(const Sizes& sizes, bool channels_last) {
  if (!channels_last) return contiguous_strides(sizes);
  const std::vector<int> strides = dense_strides({sizes.begin(), sizes.end()}, true);
  return {strides.begin(), strides.end()};
}

/// Problems without an algorithm, by op.
struct Refused {
  std::mutex mutex;
  std::set<std::pair<std::string, ConvolutionProblem>> problems;
};

Refused& refused() {
  static Refused all;
  return all;
}

}  // namespace

ConvolutionProblem convolution_problem(const StepFacts& facts) {
  const Tensors t(facts);
  const Attrs& attrs = facts.node().attrs;
  ConvolutionProblem problem;
  problem.dtype = t.x.dtype;
  problem.channels_last = wants_channels_last(facts);
  problem.groups = static_cast<int>(attrs.integer("group"));
  problem.x = narrowed(t.x.layout.sizes);
  problem.w = narrowed(t.w.layout.sizes);
  problem.y = narrowed(t.y.layout.sizes);
  std::vector<int64_t> pads = attrs.integers("pads");
  pads.resize(pads.size() / 2);
  problem.pads = window_numbers(std::move(pads), 0);
  problem.strides = window_numbers(attrs.integers("strides"), 1);
  problem.dilations = window_numbers(attrs.integers("dilations"), 1);
  return problem;
}

Reason convolution_unsupported(const StepFacts& facts) {
  const Tensors t(facts);
  const size_t rank = t.x.layout.sizes.size();
  if (rank == 0) return {};  // sizes are not known yet
  if (rank < 3 || rank > 5) return str("it has ", rank - 2, " spatial dimensions");
  const std::vector<int64_t> pads = facts.node().attrs.integers("pads");
  for (size_t i = 0; i < pads.size() / 2; ++i)
    if (pads[i] != pads[i + pads.size() / 2]) return "padding must be equal on both sides";
  const bool channels_last = wants_channels_last(facts);
  for (const OperandFacts* tensor : {&t.x, &t.w, &t.y}) {
    if (element_count(tensor->layout.sizes) == 0) return "a tensor is empty";
    if (!fits_in_int(tensor->layout.sizes)) return "a tensor is too large for 32-bit sizes";
    const bool result = !Tensors::is_grad(facts) && tensor == &t.y;
    if (!result && !lies_so(tensor->layout, channels_last))
      return "some operands are channels-last, others row-major";
  }
  const std::lock_guard lock(refused().mutex);
  const auto& problems = refused().problems;
  if (!problems.empty() && problems.contains({facts.node().op, convolution_problem(facts)}))
    return "the library had no algorithm for it in a run, took clearly longer than torch, or was "
           "switched off";
  return {};
}

void refuse_convolution(const StepFacts& facts) {
  const std::lock_guard lock(refused().mutex);
  refused().problems.emplace(facts.node().op, convolution_problem(facts));
}

std::vector<int> dense_strides(const std::vector<int>& sizes, bool channels_last) {
  std::vector<int> strides(sizes.size());
  int step = 1;
  const auto take = [&](size_t d) {
    strides[d] = step;
    step *= sizes[d];
  };
  if (channels_last) take(1);
  for (size_t d = sizes.size(); d-- > 2;) take(d);
  if (!channels_last) take(1);
  take(0);
  return strides;
}

std::vector<Sizes> convolution_strides(const StepFacts& facts) {
  const bool channels_last = wants_channels_last(facts);
  const size_t results = Tensors::is_grad(facts) ? 2 : 1;  // the bias gradient is a vector
  std::vector<Sizes> strides;
  for (size_t i = 0; i < results; ++i)
    strides.push_back(strides_for(facts.outputs[i].layout.sizes, channels_last));
  return strides;
}

size_t convolution_workspace_bytes(const ConvolutionProblem& problem) {
  int64_t bytes = 0;
  for (const std::vector<int>* sizes : {&problem.x, &problem.w, &problem.y})
    bytes += bytes_of(*sizes, problem.dtype);
  const int64_t most = std::clamp(bytes, kLeastWorkspaceBytes, kMostWorkspaceBytes);
  return static_cast<size_t>((most + 255) / 256 * 256);
}

OperandFacts by_channel(const std::vector<int>& sizes, const ConvolutionProblem& problem) {
  const int64_t images = sizes[0], channels = sizes[1];
  const int64_t pixels = std::accumulate(sizes.begin() + 2, sizes.end(), int64_t{1},
                                         [](int64_t a, int b) { return a * b; });
  Sizes seen = {images, channels, pixels};
  if (problem.channels_last) seen = {images * pixels, channels};
  return {problem.dtype, {seen, contiguous_strides(seen), 0}};
}

}  // namespace ortmodule
