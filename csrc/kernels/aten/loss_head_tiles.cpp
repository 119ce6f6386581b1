#include "kernels/aten/loss_head_tiles.h"

#include <utility>

#include "kernels/mixed_product.h"

namespace ortmodule::loss_head {
namespace {

OperandFacts scores_of(const HeadShape& s) {
  return {s.scored, {{s.tile_rows, s.classes}, {s.row_stride, 1}, 0}};
}

OperandFacts dense(DType dtype, Sizes sizes) {
  Sizes strides = contiguous_strides(sizes);
  return {dtype, {std::move(sizes), std::move(strides), 0}};
}

/// The product of an op that mixes types, or null.
const KernelDef* mixing_kernel(const std::string& op) {
  for (const KernelDef* kernel : kernels_of(op))
    if (kernel->name == kMixedMatMul || kernel->name == kMixedGemm) return kernel;
  return nullptr;
}

/// `kernel` or, without one, the best.
TileKernel tile_kernel(Device device, const std::string& op, const Attrs& attrs,
                       std::vector<OperandFacts> inputs, std::vector<OperandFacts> outputs,
                       const KernelDef* kernel = nullptr) {
  TileKernel tile;
  NodeFacts& node = tile.facts.nodes.emplace_back();
  node.op = op;
  node.attrs = attrs;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const bool present = inputs[i].dtype != DType::Undefined;
    node.inputs.push_back(
        {present ? OperandRef::Kind::Input : OperandRef::Kind::Absent, static_cast<int>(i), 0.0});
    node.input_dtypes.push_back(inputs[i].dtype);
  }
  for (size_t i = 0; i < outputs.size(); ++i) {
    node.outputs.push_back(static_cast<int>(i));
    node.output_dtypes.push_back(outputs[i].dtype);
    node.output_sizes.push_back(outputs[i].layout.sizes);
    node.output_used.push_back(true);
  }
  tile.facts.inputs = std::move(inputs);
  tile.facts.outputs = std::move(outputs);
  std::string why;
  tile.kernel = kernel ? kernel : select_kernel(op, device, tile.facts, &why);
  ORTM_ASSERT(tile.kernel, "no kernel of ", op, " for a tile: ", why);
  if (tile.kernel->prepare) tile.prepared = tile.kernel->prepare(tile.facts);
  return tile;
}

std::vector<TileProducts> of_products(Device device, const StepFacts& facts, const HeadShape& s) {
  if (device != Device::CPU || (s.widens() && !s.mixes) || s.rows == 0) return {};
  std::vector<TileProducts> products;
  for (int64_t rows = s.step; rows < s.tile_rows; rows += s.step)
    products.emplace_back(facts, s, rows);
  products.emplace_back(facts, s, s.tile_rows);
  const int64_t last = s.rows % s.tile_rows;
  if (last % s.step != 0) products.emplace_back(facts, s, last);
  return products;
}

Attrs tile_attrs(const StepFacts& facts, const char* reduction) {
  const Attrs& given = facts.node().attrs;
  return {{"ignore_index", given.integer("ignore_index")},
          {"label_smoothing", given.number("label_smoothing")},
          {"reduction", reduction}};
}

TileKernel of_loss(Device device, const StepFacts& facts, const HeadShape& s) {
  const OperandFacts rows = dense(s.wide, {s.tile_rows});
  return tile_kernel(device, "SoftmaxCrossEntropyLoss", tile_attrs(facts, "none"),
                     {scores_of(s), dense(facts.inputs[kLabels].dtype, {s.tile_rows}),
                      operand_or_absent(facts, kWeights)},
                     {rows, rows});
}

TileKernel of_gradient(Device device, const StepFacts& facts, const HeadShape& s) {
  const OperandFacts scores = scores_of(s);
  return tile_kernel(device, "SoftmaxCrossEntropyLossGrad", tile_attrs(facts, "sum"),
                     {dense(s.wide, {}), scores, dense(facts.inputs[kLabels].dtype, {s.tile_rows}),
                      operand_or_absent(facts, kWeights), dense(s.wide, {s.tile_rows})},
                     {scores});
}

/// Whether the processor multiplies that type several times faster than float32.
bool multiplies_fast(DType dtype) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (dtype == DType::BFloat16) return __builtin_cpu_supports("avx512bf16");
  return dtype == DType::Float16 && __builtin_cpu_supports("avx512fp16");
#else
  static_cast<void>(dtype);
  return false;
#endif
}

}  // namespace

HeadShape::HeadShape(const StepFacts& facts, Device device)
    : rows(facts.inputs[kX].layout.sizes[0]),
      channels(facts.inputs[kX].layout.sizes[1]),
      trans_b(facts.node().attrs.flag("transB")),
      dtype(facts.inputs[kX].dtype),
      wide(compute_dtype(dtype)) {
  classes = facts.inputs[kW].layout.sizes[trans_b ? 0 : 1];
  row_stride = whole_classes = classes;
  scored = wide;
  if (device == Device::CPU) {
    mixes = dtype == DType::BFloat16 && multiplies_fast(dtype) && trans_b && channels > 0 &&
            classes > 0 && mixing_kernel("Gemm") && mixing_kernel("FusedMatMul");
    // A 32nd of the scores, but enough rows for the products to pay; those of 16 bits are faster.
    tile_rows = rows_of_tile(32, mixes ? 192 : 128, 512);
    // The fewer numbers of rows there are, the fewer shapes a library has code for.
    step = std::max<int64_t>(1, (tile_rows + 3) / 4);
    constexpr int64_t kMostClasses = 512;
    if (widens() && !mixes && multiplies_fast(dtype)) dw_classes = std::min(classes, kMostClasses);
    return;
  }
  // A GPU has more to fill, and each tile reads and writes all of unit_dw.
  tile_rows = rows_of_tile(8, 256, 1024);
  scored = dtype;
  if (dtype == DType::Float16) unit = 64;
  const auto aligned = static_cast<int64_t>(128 / size_of(dtype));
  row_stride = (classes + aligned - 1) / aligned * aligned;
  if (widens()) whole_classes = classes / 8 * 8;
}

Workspace::Workspace(const HeadShape& s, size_t scratch_bytes, bool needs_x) {
  const auto tile = static_cast<size_t>(s.tile_rows);
  const size_t scores_count = tile * static_cast<size_t>(s.row_stride);
  const size_t x_count = tile * static_cast<size_t>(s.channels);
  const size_t thin = size_of(s.dtype), thick = size_of(s.wide);
  narrow = add(s.copies() ? scores_count * thin : 0);
  scores = add(scores_count * size_of(s.scored));
  narrow_dx = add(s.copies() ? x_count * thin : 0);
  wide_x = add(s.copies() && s.dw_classes == 0 ? x_count * thick : 0);
  narrow_dw = add(static_cast<size_t>(s.dw_classes * s.channels) * thin);
  losses = add(tile * thick);
  log_sum_exp = add(tile * thick);
  ones = add(tile * thick);
  dloss = add(thick);
  row_scratch = add(scratch_bytes);
  gathered_x = add(needs_x ? x_count * thin : 0);
  gathered_labels = add(tile * sizeof(int64_t));
}

TileProducts::TileProducts(const StepFacts& facts, const HeadShape& s, int64_t rows_)
    : rows(rows_) {
  OperandFacts x = facts.inputs[kX];
  x.layout.sizes[0] = rows;
  const OperandFacts w = facts.inputs[kW], tile = dense(s.wide, {rows, s.classes});
  const OperandFacts bias = operand_or_absent(facts, kBias);
  const OperandFacts whole = dense(s.wide, w.layout.sizes);
  const bool adds = bias.dtype != DType::Undefined;
  const auto product = [&](bool sum, const Attrs& attrs, std::vector<OperandFacts> in,
                           const OperandFacts& out) {
    const char* op = sum ? "Gemm" : "FusedMatMul";
    return tile_kernel(Device::CPU, op, attrs, std::move(in), {out},
                       s.mixes ? mixing_kernel(op) : nullptr);
  };
  const Attrs flipped{{"transB", int64_t{s.trans_b}}}, back{{"transB", int64_t{!s.trans_b}}};
  scores =
      adds ? product(true, flipped, {x, w, bias}, tile) : product(false, flipped, {x, w}, tile);
  dx = product(false, back, {tile, w}, dense(s.wide, {rows, s.channels}));
  const OperandFacts &left = s.trans_b ? tile : x, &right = s.trans_b ? x : tile;
  const Attrs transposed{{"transA", int64_t{1}}};
  dw = product(false, transposed, {left, right}, whole);
  more_dw = product(true, transposed, {left, right, whole}, whole);
}

Prepared::Prepared(const StepFacts& facts, Device device_)
    : device(device_),
      shape(facts, device_),
      mean(facts.node().attrs.string("reduction") == "mean"),
      ignore_index(facts.node().attrs.integer("ignore_index")),
      loss(of_loss(device, facts, shape)),
      gradient(of_gradient(device, facts, shape)),
      products(of_products(device, facts, shape)),
      workspace(shape, scratch_bytes(),
                device == Device::CPU && !facts.node().output_used[kUnitDx]) {}

size_t Prepared::scratch_bytes() const {
  size_t bytes = std::max(loss.workspace_bytes(), gradient.workspace_bytes());
  for (const TileProducts& each : products) bytes = std::max(bytes, each.workspace_bytes());
  return bytes;
}

}  // namespace ortmodule::loss_head
