// DynamicQuantizeLinear in two passes over x: its range, then the bytes.
#include "kernels/cpu/dynamic_bytes.h"

namespace ortmodule {
inline namespace ORTM_ISA {
namespace {

/// Elements that a thread takes at once; each part has a minimum and a maximum.
constexpr int64_t kPart = 1 << 15;

size_t workspace_bytes(const StepFacts& facts) {
  const int64_t count = element_count(facts.inputs[0].layout.sizes);
  return static_cast<size_t>(ceil_div(count, kPart)) * sizeof(FloatRange);
}

void dynamic_quantize(const KernelArgs& args) {
  const auto* x = args.in[0].as<float>();
  const int64_t count = args.in[0].element_count(), parts = ceil_div(count, kPart);
  auto* ranges = static_cast<FloatRange*>(args.workspace);
  const auto each_part = [&](const auto& body) {
    parallel_ranges(args.context, parts, 1, [&](int64_t begin, int64_t end) {
      for (int64_t part = begin; part < end; ++part)
        body(part, part * kPart, std::min(kPart, count - part * kPart));
    });
  };
  each_part(
      [&](int64_t part, int64_t begin, int64_t size) { ranges[part] = range_of(x + begin, size); });
  FloatRange range;
  for (int64_t part = 0; part < parts; ++part) {
    range.least = std::min(range.least, ranges[part].least);
    range.most = std::max(range.most, ranges[part].most);
  }
  const DynamicScale bytes(range);
  *args.out[1].as<float>() = bytes.scale;
  *args.out[2].as<uint8_t>() = static_cast<uint8_t>(bytes.zero);
  auto* y = args.out[0].as<uint8_t>();
  each_part(
      [&](int64_t, int64_t begin, int64_t size) { bytes.quantize(x + begin, size, y + begin); });
}

REGISTER_CPU_KERNEL({.op = "DynamicQuantizeLinear",
                     .name = "dynamic_quantize_linear_cpu",
                     .dtypes = {DType::Float32},
                     .run = dynamic_quantize,
                     .workspace_bytes = workspace_bytes});

}  // namespace
}  // namespace ORTM_ISA
}  // namespace ortmodule
