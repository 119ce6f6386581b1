// Conv and ConvGrad through cuDNN into planned memory: row-major or channels-last, one to three
// spatial dimensions, groups, dilation. Scratch is planned and bounded (convolution_problem.h), the
// algorithm is deterministic and chosen within the bound (algorithm_choice.h), or a plan of the
// graph API where that is on (graph_plan.h). The bias and its
// gradient are steps of our own kernels. What is refused here is ATen's, and so is what turns out
// to have no algorithm, to be clearly slower than cuDNN's graph API, which torch calls, or has
// cuDNN switched off: copied into planned memory by plans that did not know, which is why runs are
// measured (`inexact`), and by ATen's own kernel in later plans.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <exception>
#include <mutex>
#include <set>
#include <string>
#include <tuple>

#include "kernels/cudnn/algorithm_choice.h"
#include "kernels/cudnn/graph_choice.h"
#include "kernels/library_workspace.h"
#include "kernels/step_part.h"

namespace ortmodule::cudnn {
namespace {

/// ATen's kernel, which allocates its results.
class Fallback {
 public:
  explicit Fallback(const StepFacts& facts) {
    for (const KernelDef* other : kernels_of(facts.node().op))
      if (!kernel_ && other->device == Device::CUDA && other->allocates_outputs &&
          !(other->unsupported && other->unsupported(facts)))
        kernel_ = other;
    if (kernel_ && kernel_->prepare) prepared_ = kernel_->prepare(facts);
  }

  explicit operator bool() const { return kernel_; }

  /// The results, in memory of their own.
  std::vector<Buffer> compute(const KernelArgs& args) const {
    std::vector<Buffer> results(args.out.size());
    kernel_->run({.facts = args.facts,
                  .in = args.in,
                  .out = args.out,
                  .prepared = prepared_.get(),
                  .context = args.context,
                  .results = results});
    return results;
  }

  void run(const KernelArgs& args) const {
    ORTM_CHECK(kernel_, "[convolution] cuDNN must have an algorithm, but found none for ",
               args.facts.node().op, " of ", name_of(args.facts.inputs[0].dtype));
    const std::vector<Buffer> results = compute(args);
    for (size_t i = 0; i < results.size(); ++i) {
      if (!results[i] || !args.out[i].data) continue;
      const cudaError_t status =
          cudaMemcpyAsync(args.out[i].data, results[i].data(), args.out[i].byte_count(),
                          cudaMemcpyDeviceToDevice, static_cast<cudaStream_t>(args.context.stream));
      ORTM_CHECK(status == cudaSuccess, "[convolution] a copy must succeed, but found ",
                 cudaGetErrorString(status));
    }
  }

 private:
  const KernelDef* kernel_ = nullptr;
  std::shared_ptr<const void> prepared_;
};

/// y += bias, by channel.
StepPart bias_part(const StepFacts& facts) {
  const OperandFacts& y = facts.outputs[0];
  const int64_t channels = y.layout.sizes[1];
  Sizes sizes(y.layout.sizes.size() - 1, 1);
  sizes[0] = channels;
  Sizes strides(sizes.size(), 0);
  strides[0] = 1;
  const OperandFacts bias{y.dtype, {sizes, strides, 0}};
  return StepPart("PointwiseGroup", Device::CUDA, facts_of_node("Add", {}, {y, bias}, {y}));
}

/// Sums of dy by channel.
StepPart bias_grad_part(const StepFacts& facts, const ConvolutionProblem& problem) {
  const Dims axes = problem.channels_last ? Dims{0} : Dims{0, 2};
  return StepPart("ReduceSum", Device::CUDA,
                  facts_of_node("ReduceSum", {{"axes", axes}, {"keepdims", 0}},
                                {by_channel(problem.y, problem)}, {facts.outputs[2]}));
}

bool has_bias(const StepFacts& facts) {
  return facts.inputs.size() > 2 && facts.inputs[2].dtype != DType::Undefined;
}

struct Prepared {
  ConvolutionProblem problem;
  /// Of the graph API, null where the classic calls are taken.
  std::shared_ptr<const GraphPlans> forward, data, filter;
  size_t workspace_bytes;
  Fallback fallback;
  std::optional<StepPart> bias;  // or its gradient

  explicit Prepared(const StepFacts& facts)
      : problem(convolution_problem(facts)),
        workspace_bytes(convolution_workspace_bytes(problem)),
        fallback(facts) {
    const std::vector<bool>& used = facts.node().output_used;
    const bool grad = facts.node().op == "ConvGrad";
    if (grad && used[2]) bias = bias_grad_part(facts, problem);
    if (!grad && has_bias(facts)) bias = bias_part(facts);
    if (!grad) {
      forward = graph_plans(problem, Forward::kGraph);
    } else {
      if (used[0]) data = graph_plans(problem, BackwardData::kGraph);
      if (used[1]) filter = graph_plans(problem, BackwardFilter::kGraph);
    }
    const bool known = grad ? (data || !used[0]) && (filter || !used[1]) : forward != nullptr;
    if (known)
      workspace_bytes = std::max({most_bytes(forward), most_bytes(data), most_bytes(filter)});
  }

  size_t declared_bytes() const {
    const size_t own = declared_workspace_bytes(workspace_bytes);
    return std::max(own, bias ? bias->workspace_bytes() : 0);
  }
};

/// The view of `tensor` that a part was prepared for.
TensorView seen_as(const TensorView& tensor, const OperandFacts& facts) {
  return {tensor.data, facts.dtype, static_cast<int>(facts.layout.sizes.size()),
          facts.layout.sizes.data(), facts.layout.strides.data()};
}

Call call_of(const Prepared& prepared, const Descriptors& descriptors, const KernelArgs& args,
             Addresses at) {
  return {.problem = prepared.problem,
          .descriptors = descriptors,
          .at = at,
          .workspace = aligned_workspace(args.workspace),
          .workspace_bytes = prepared.workspace_bytes,
          .context = args.context,
          .handle = static_cast<cudnnHandle_t>(args.context.dnn())};
}

/// Of the time of `own`, once per problem, device and flags: ATen's kernel must take less than that
/// to be preferred.
constexpr float kClearlyLess = 0.8F;

/// Whether ATen's kernel takes clearly less time than `own`, which has just run. Measured in the
/// first run that an exhaustive search allows to measure; the results of both are the same ones,
/// but for rounding.
template <class Own>
bool is_beaten(const Prepared& prepared, const KernelArgs& args, const Own& own) {
  using Key = std::tuple<std::string, int, bool, ConvolutionProblem>;
  static std::mutex mutex;
  static std::set<Key> measured;
  const KernelContext& context = args.context;
  if (context.convolution_search != ConvolutionSearch::Exhaustive || !prepared.fallback ||
      is_captured(context.stream))
    return false;
  // There both take the same kernels, and making ATen's plans takes time.
  if (prepared.problem.channels_last && size_of(prepared.problem.dtype) == 2) return false;
  const std::lock_guard lock(mutex);  // others would disturb the measurement
  if (!measured
           .emplace(args.facts.node().op, context.device_index, context.allow_convolution_tf32,
                    prepared.problem)
           .second)
    return false;
  const float own_ms = stream_ms(context.stream, own);
  try {
    prepared.fallback.compute(args);  // makes its plans
    return stream_ms(context.stream, [&] { prepared.fallback.compute(args); }) <
           kClearlyLess * own_ms;
  } catch (const std::exception&) {
    return false;  // it takes more memory than there is
  }
}

/// By a plan of the graph API if there is one, as the scratch is that of the plan; else by a
/// classic call.
template <class Direction>
bool compute(const Prepared& prepared, const std::shared_ptr<const GraphPlans>& plans,
             const KernelArgs& args, Addresses at) {
  if (plans) return execute(*plans, Direction::kGraph, prepared.problem, args, at);
  const Descriptors descriptors(prepared.problem);
  return compute<Direction>(call_of(prepared, descriptors, args, at));
}

void fall_back(const KernelArgs& args) {
  refuse_convolution(args.facts);
  static_cast<const Prepared*>(args.prepared)->fallback.run(args);
}

/// Whether all that is wanted could be computed.
bool compute_result(const Prepared& prepared, const KernelArgs& args) {
  const Addresses at{args.in[0].data, args.in[1].data, args.out[0].data};
  if (!compute<Forward>(prepared, prepared.forward, args, at)) return false;
  if (!prepared.bias) return true;
  // As bias_part described it.
  Sizes sizes(static_cast<size_t>(args.out[0].rank) - 1, 1), strides(sizes.size(), 0);
  sizes[0] = args.out[0].sizes[1];
  strides[0] = 1;
  const TensorView bias{args.in[2].data, args.in[2].dtype, args.out[0].rank - 1, sizes.data(),
                        strides.data()};
  const TensorView operands[] = {args.out[0], bias};
  prepared.bias->run(operands, args.out, nullptr, args.context);
  return true;
}

/// Whether all that is wanted could be computed.
bool compute_gradients(const Prepared& prepared, const KernelArgs& args) {
  const std::vector<bool>& used = args.facts.node().output_used;
  const TensorView &dy = args.in[0], &x = args.in[1], &w = args.in[2];
  if (used[0] &&
      !compute<BackwardData>(prepared, prepared.data, args, {args.out[0].data, w.data, dy.data}))
    return false;
  if (used[1] && !compute<BackwardFilter>(prepared, prepared.filter, args,
                                          {x.data, args.out[1].data, dy.data}))
    return false;
  if (!prepared.bias) return true;
  const OperandFacts by = by_channel(prepared.problem.y, prepared.problem);
  const TensorView operands[] = {seen_as(dy, by)};
  prepared.bias->run(operands, args.out.subspan(2, 1), args.workspace, args.context);
  return true;
}

template <bool (*compute)(const Prepared&, const KernelArgs&)>
void run(const KernelArgs& args) {
  const auto& prepared = *static_cast<const Prepared*>(args.prepared);
  const auto own = [&] { return args.context.dnn && compute(prepared, args); };
  if (!own() || is_beaten(prepared, args, own)) fall_back(args);
}

KernelDef convolution(std::string_view op, std::string_view name, void (*run)(const KernelArgs&)) {
  return {
      .op = op,
      .name = name,
      .device = Device::CUDA,
      .dtypes = kAllFloats,
      .run = run,
      .unsupported = convolution_unsupported,
      .workspace_bytes = [](const StepFacts& facts) { return Prepared(facts).declared_bytes(); },
      .output_strides = convolution_strides,
      .prepare = [](const StepFacts& facts) -> std::shared_ptr<const void> {
        return std::make_shared<Prepared>(facts);
      },
      .layout = LayoutRule::MemoryFormat,
      .leaves_out_unused = true,
      .inexact = true};
}

KernelDef forward() {
  KernelDef def = convolution("Conv", "conv_cudnn", run<compute_result>);
  def.input_rules = {LayoutRule::MemoryFormat, LayoutRule::MemoryFormat, LayoutRule::Contiguous};
  return def;
}

const KernelRegistrar kConv(forward());
const KernelRegistrar kConvGrad(convolution("ConvGrad", "conv_grad_cudnn", run<compute_gradients>));

}  // namespace
}  // namespace ortmodule::cudnn
