// Import of com.microsoft.nchwc: convolutions and pools whose channels lie in blocks, as
// onnxruntime writes them into optimized models for the processor that it runs on. Here images are
// N, C, H, W, with channels of zeros up to whole blocks; only weights are stored in blocks.
#include "base/error.h"
#include "ops/onnx_nested.h"
#include "ops/op_def.h"
#include "ops/torch_rules.h"

namespace ortmodule {
namespace {

constexpr std::string_view kNchwc = "com.microsoft.nchwc";

// Channels of a block. It stands in no attribute: onnxruntime takes what suits the processor.
int64_t nchwc_block() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx512f") ? 16 : 8;
#else
  return 16;
#endif
}

// Stored as outputs / block, inputs / block, H, W, block of inputs, block of outputs; without
// blocks of inputs where there are fewer.
Value* row_major_weights(OnnxCall& c) {
  const Dims dims = c.dims(1);
  if (dims.size() != 4) c.refuse(str("w must have rank 4, but found ", dims.size()));
  const int64_t block = nchwc_block(), outputs = c.sizes().fix(dims[0]),
                inputs = c.sizes().fix(dims[1]);
  const bool blocked_inputs = inputs >= block;
  if (outputs % block != 0 || (blocked_inputs && inputs % block != 0))
    c.unsupported(str("channels must be multiples of ", block, ", as onnxruntime stores them on ",
                      "this processor, but w has ", outputs, " outputs and ", inputs, " inputs"));
  const DimExpr lanes(block), outer(outputs / block);
  if (!blocked_inputs) {
    Value* w = c.reshape(c.in(1), {outer, dims[1], dims[2], dims[3], lanes});
    return c.reshape(c.transpose(w, {0, 4, 1, 2, 3}), dims);
  }
  Value* w = c.reshape(c.in(1), {outer, DimExpr(inputs / block), dims[2], dims[3], lanes, lanes});
  return c.reshape(c.transpose(w, {0, 5, 1, 4, 2, 3}), dims);
}

// X, W, B?, what is added before the activation?
Values import_nchwc_conv(OnnxCall& c) {
  Value* y = call_nested(
      c, "Conv", {c.in(0), row_major_weights(c), c.optional(2)},
      pick_attrs(c, {"auto_pad", "dilations", "group", "kernel_shape", "pads", "strides"}))[0];
  if (c.has(3)) y = c.pointwise("Add", {y, c.in(3)});
  return {activated(c, y, c.string("activation", ""), c.numbers("activation_params"))};
}

std::vector<int64_t> last_to_second(size_t rank) {
  std::vector<int64_t> order{0, static_cast<int64_t>(rank) - 1};
  for (size_t i = 1; i + 1 < rank; ++i) order.push_back(static_cast<int64_t>(i));
  return order;
}

std::vector<int64_t> second_to_last(size_t rank) {
  std::vector<int64_t> order{0};
  for (size_t i = 2; i < rank; ++i) order.push_back(static_cast<int64_t>(i));
  order.push_back(1);
  return order;
}

Values import_reorder_input(OnnxCall& c) {
  Value* x = c.in(0);
  if (x->rank() < 3) c.refuse(str("X must be images, but found rank ", x->rank()));
  if (c.flag("channels_last")) x = c.transpose(x, last_to_second(x->rank()));
  const int64_t block = nchwc_block(), channels = c.sizes().fix(x->dims.at(1));
  const int64_t missing = (block - channels % block) % block;
  if (missing == 0) return {x};
  Dims dims = x->dims;
  dims.at(1) = DimExpr(missing);
  return {c.concat({x, c.full(0.0, dims, x->dtype)}, 1)};
}

Values import_reorder_output(OnnxCall& c) {
  Value* x = c.in(0);
  if (x->rank() < 3) c.refuse(str("X must be images, but found rank ", x->rank()));
  const int64_t channels = c.integer("channels");
  if (channels < 1 || channels > c.sizes().fix(x->dims.at(1)))
    c.refuse(str("channels must be those of X or fewer, but found ", channels));
  x = c.slice(x, 1, 0, DimExpr(channels));
  return {c.flag("channels_last") ? c.transpose(x, second_to_last(x->rank())) : x};
}

template <OpName op>
Values import_nchwc_pool(OnnxCall& c) {
  return call_nested(c, op.text, {c.in(0)},
                     pick_attrs(c, {"auto_pad", "ceil_mode", "count_include_pad", "dilations",
                                    "kernel_shape", "pads", "strides"}));
}

template <OpName op>
Values import_nchwc_global_pool(OnnxCall& c) {
  return call_nested(c, op.text, {c.in(0)});
}

// By whole factors.
Values import_nchwc_upsample(OnnxCall& c) {
  Value* x = c.in(0);
  const std::vector<int64_t> scales = c.integers("scales");
  if (x->rank() != 4 || scales.size() != 4 || scales[0] != 1 || scales[1] != 1 || scales[2] < 1 ||
      scales[3] < 1)
    c.refuse("scales must be 1, 1 and two positive numbers, of images");
  const Dims sizes{x->dims.at(2) * DimExpr(scales[2]), x->dims.at(3) * DimExpr(scales[3])};
  Attrs attrs{{"mode", c.word("mode", {"nearest", "linear"})},
              {"sizes", sizes},
              {"scales", std::vector<double>{static_cast<double>(scales[2]),
                                             static_cast<double>(scales[3])}}};
  attrs.set(
      "coordinate_transformation_mode",
      c.word("coordinate_transformation_mode", {"asymmetric", "align_corners", "half_pixel"}));
  if (attrs.string("mode") == "nearest") attrs.set("nearest_mode", "floor");
  return {c.emit("Resize", {x}, std::move(attrs))};
}

REGISTER_ONNX({{"Conv", 1, import_nchwc_conv, nullptr, kNchwc},
               {"ReorderInput", 1, import_reorder_input, nullptr, kNchwc},
               {"ReorderOutput", 1, import_reorder_output, nullptr, kNchwc},
               {"MaxPool", 1, import_nchwc_pool<"MaxPool">, nullptr, kNchwc},
               {"AveragePool", 1, import_nchwc_pool<"AveragePool">, nullptr, kNchwc},
               {"GlobalMaxPool", 1, import_nchwc_global_pool<"GlobalMaxPool">, nullptr, kNchwc},
               {"GlobalAveragePool", 1, import_nchwc_global_pool<"GlobalAveragePool">, nullptr,
                kNchwc},
               {"Upsample", 1, import_nchwc_upsample, nullptr, kNchwc}});

}  // namespace
}  // namespace ortmodule
