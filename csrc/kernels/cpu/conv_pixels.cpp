// Conv and FusedConv of float images in channels-last layout, [N, H, W, C] in memory, that
// prefer_channels_last marked: y is channels-last, too. Weights are packed into workspace first,
// unless they come packed (PackConvWeights).
#include "kernels/cpu/conv_pixels.h"

#include "kernels/cpu/conv_by_channel.h"
#include "kernels/cpu/conv_plan.h"
#include "kernels/cpu/conv_run.h"
#include "kernels/cpu/conv_step.h"

namespace ortmodule {
inline namespace ORTM_ISA {
namespace {

ConvStep pixel_step(const StepFacts& facts) {
  ConvStep step = conv_step(facts);
  const Layout& x = facts.inputs[0].layout;
  is_by_channel(step.shape) ? plan_channels(step.shape, x, slots(facts))
                            : plan_pixels(step.shape, x, slots(facts));
  return step;
}

std::shared_ptr<const void> prepare_pixels(const StepFacts& facts) {
  return std::make_shared<const ConvStep>(pixel_step(facts));
}

int64_t scratch_of(const ConvShape& s) {
  return is_by_channel(s) ? ConvByChannel::scratch_elements(s) : ConvPixels::scratch_elements(s);
}

/// Blocks of packed weights, and elements of each.
int64_t weight_blocks(const ConvShape& s) {
  return is_by_channel(s) ? ceil_div(s.groups, kPackedOutputs)
                          : s.groups * ceil_div(s.outputs, kPackedOutputs);
}
int64_t block_elements(const ConvShape& s) { return s.inner() * kPackedOutputs; }

/// Windows of one channel have few weights, which are widened before all bands.
bool widens_first(const ConvShape& s) { return s.half_weights && is_by_channel(s); }

size_t pixel_workspace(const StepFacts& facts) {
  const ConvStep step = pixel_step(facts);
  const ConvShape& s = step.shape;
  const bool reads = step.packed && !widens_first(s);
  const int64_t packed = reads ? 0 : weight_blocks(s) * block_elements(s);
  return static_cast<size_t>(slots(facts) * scratch_of(s) + packed) * sizeof(float);
}

Reason not_pixels(const StepFacts& facts) {
  if (Reason reason = pixels_unsupported(facts)) return reason;
  const bool adds = facts.inputs.size() > 3 && facts.inputs[3].dtype != DType::Undefined;
  if (adds && !is_channels_last(facts.inputs[3].layout)) return "z is not a channels-last image";
  return {};
}

/// The weights as the methods read them.
PackedWeights packed_weights(const KernelArgs& args, const ConvStep& step) {
  const ConvShape& s = step.shape;
  float* packed = static_cast<float*>(args.workspace) + slots(args.facts) * scratch_of(s);
  if (widens_first(s)) {
    widen_row(args.in[1].as<Float16>(), weight_blocks(s) * block_elements(s), packed);
    return {packed};
  }
  if (s.half_weights) return {nullptr, args.in[1].as<Float16>()};
  const float* w = args.in[1].as<float>();
  if (step.packed) return {w};
  const int64_t per_group = ceil_div(s.outputs, kPackedOutputs);
  parallel_ranges(args.context, weight_blocks(s), grain_for(block_elements(s)),
                  [&](int64_t begin, int64_t end) {
                    for (int64_t i = begin; i < end; ++i) {
                      float* to = packed + i * block_elements(s);
                      if (is_by_channel(s))
                        pack_channel_block(w, s.groups, s.patches.places, i, to);
                      else
                        pack_weight_block<float>(w + i / per_group * s.outputs * s.inner(),
                                                 s.outputs, s.channels, s.patches.places,
                                                 i % per_group, to);
                    }
                  });
  return {packed};
}

void conv_pixels(const KernelArgs& args) {
  if (args.out[0].element_count() == 0) return;
  const auto& step = *static_cast<const ConvStep*>(args.prepared);
  const auto operand = [&](size_t i) {
    return args.in.size() > i ? args.in[i].as<float>() : nullptr;
  };
  const ConvFinish<float> finish(operand(2), operand(3), args.out[0].as<float>(), step.activation);
  const PackedWeights weights = packed_weights(args, step);
  auto* memory = static_cast<float*>(args.workspace);
  const ConvShape& s = step.shape;
  if (is_by_channel(s))
    run_units(args, s, ConvByChannel(s, operand(0), weights.wide, finish), memory);
  else
    run_units(args, s, ConvPixels(s, operand(0), weights, finish), memory);
}

REGISTER_CPU_KERNEL({.op = "Conv",
                     .name = "conv_pixels_cpu",
                     .dtypes = {DType::Float32},
                     .run = conv_pixels,
                     .unsupported = not_pixels,
                     .workspace_bytes = pixel_workspace,
                     .output_strides = pixel_strides,
                     .prepare = prepare_pixels,
                     .input_rules = {LayoutRule::Any},
                     .priority = 1});
REGISTER_CPU_KERNEL({.op = "FusedConv",
                     .name = "fused_conv_pixels_cpu",
                     .dtypes = {DType::Float32},
                     .run = conv_pixels,
                     .unsupported = not_pixels,
                     .workspace_bytes = pixel_workspace,
                     .output_strides = pixel_strides,
                     .prepare = prepare_pixels,
                     .input_rules = {LayoutRule::Any, LayoutRule::Contiguous,
                                     LayoutRule::Contiguous, LayoutRule::MemoryFormat},
                     .inplace = true,
                     .inplace_operand = 3,
                     .priority = 1});

}  // namespace
}  // namespace ORTM_ISA
}  // namespace ortmodule
