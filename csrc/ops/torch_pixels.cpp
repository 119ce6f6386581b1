// Channels as blocks of pixels (pixel_shuffle) and back, or in another order (channel_shuffle):
// views, and one copy
#include "ops/op_def.h"
#include "ops/torch_rules.h"

namespace ortmodule {
namespace {

/// x with its last three dimensions as `parts`, five of them, in the order `order`.
Value* reordered(TorchCall& t, const Dims& parts, const std::vector<int64_t>& order) {
  Value* x = t.tensor("self");
  const size_t before = x->rank() - 3;
  Dims dims(x->dims.begin(), x->dims.begin() + static_cast<std::ptrdiff_t>(before));
  Dims perm;
  for (size_t d = 0; d < before; ++d) perm.emplace_back(static_cast<int64_t>(d));
  for (int64_t place : order) perm.emplace_back(static_cast<int64_t>(before) + place);
  dims.insert(dims.end(), parts.begin(), parts.end());
  Value* moved = t.emit("Transpose", {t.reshape(x, dims)}, {{"perm", perm}});
  return t.reshape(moved, t.output().dims);
}

Values convert_pixel_shuffle(TorchCall& t) {
  const Dims &x = t.tensor("self")->dims, &y = t.output().dims;
  const int64_t factor = t.integer("upscale_factor");
  const Dims parts = {y[y.size() - 3], factor, factor, x[x.size() - 2], x[x.size() - 1]};
  return {reordered(t, parts, {0, 3, 1, 4, 2})};
}

Values convert_pixel_unshuffle(TorchCall& t) {
  const Dims &x = t.tensor("self")->dims, &y = t.output().dims;
  const int64_t factor = t.integer("downscale_factor");
  const Dims parts = {x[x.size() - 3], y[y.size() - 2], factor, y[y.size() - 1], factor};
  return {reordered(t, parts, {0, 2, 4, 1, 3})};
}

Values convert_channel_shuffle(TorchCall& t) {
  Value* x = t.tensor("self");
  const DimExpr groups = t.dim("groups"), each = DimExpr::floor_div(x->dims.at(1), groups);
  Dims parts = x->dims, perm = {0, 2, 1};
  parts[1] = each;
  parts.insert(parts.begin() + 1, groups);
  for (size_t d = 3; d < parts.size(); ++d) perm.emplace_back(static_cast<int64_t>(d));
  Value* moved = t.emit("Transpose", {t.reshape(x, parts)}, {{"perm", perm}});
  return {t.reshape(moved, x->dims)};
}

REGISTER_TORCH({{"aten.channel_shuffle.default", convert_channel_shuffle},
                {"aten.pixel_shuffle.default", convert_pixel_shuffle},
                {"aten.pixel_unshuffle.default", convert_pixel_unshuffle}});

}  // namespace
}  // namespace ortmodule
