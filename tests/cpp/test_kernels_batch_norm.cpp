// The gradient at the end of a residual block: the bits of its parts, whichever operands' memory
// the results take.
#include "test_kernels_harness.h"

namespace ortmodule::testing {
namespace {

void run_named(std::string_view name, const std::string& op, const std::vector<Tensor*>& in,
               const std::vector<Tensor*>& out) {
  const StepFacts facts = facts_of({node_of(op, {}, in, out)}, in, out);
  for (const KernelDef* def : kernels_of(op)) {
    if (def->name != name) continue;
    ASSERT_FALSE(def->unsupported(facts)) << *def->unsupported(facts);
    return run_kernel(*def, facts, in, out);
  }
  FAIL() << "no kernel is called " << name;
}

/// Operands [3, channels, pixels, pixels], and the results of the parts.
struct BlockEnd {
  Tensor dy, more, y, x, scale, mean, inv;
  Tensor dz, dx, dscale, dbias;

  BlockEnd(DType dtype, int64_t channels, int64_t pixels, bool last) {
    const Sizes sizes{3, channels, pixels, pixels};
    const Sizes strides = last ? channels_last_strides(sizes) : contiguous_strides(sizes);
    unsigned seed = 0;
    for (Tensor* t : {&dy, &more, &y, &x})
      *t = Tensor::random(dtype, sizes, ++seed, -2, 2, strides);
    for (Tensor* t : {&scale, &mean, &inv})
      *t = Tensor::random(DType::Float32, {channels}, ++seed, 0.5, 2);
    dz = Tensor(dtype, sizes, strides);
    for (int64_t i = 0; i < y.count(); ++i) dz.set(i, y.get(i) > 0 ? dy.get(i) + more.get(i) : 0);
    dx = Tensor(dtype, sizes, strides);
    dscale = dbias = Tensor(DType::Float32, {channels});
    run_named("batch_norm_grad_cuda", "BatchNormInternalGrad", {&dz, &x, &scale, &mean, &inv},
              {&dx, &dscale, &dbias});
  }

  /// `dz_over`, `dx_over`: the operands whose memory the results take; null: none.
  void expect_fused(Tensor BlockEnd::*dz_over, Tensor BlockEnd::*dx_over) const {
    BlockEnd at = *this;
    for (Tensor* t : {&at.dz, &at.dx, &at.dscale, &at.dbias}) t->forget();
    Tensor& found_dz = dz_over ? at.*dz_over : at.dz;
    Tensor& found_dx = dx_over ? at.*dx_over : at.dx;
    run_named("batch_norm_add_relu_grad_cuda", "BatchNormAddReluGrad",
              {&at.dy, &at.more, &at.y, &at.x, &at.scale, &at.mean, &at.inv},
              {&found_dz, &found_dx, &at.dscale, &at.dbias});
    EXPECT_TRUE(found_dz.same_bits(dz)) << "dz";
    EXPECT_TRUE(found_dx.same_bits(dx)) << "dx";
    EXPECT_TRUE(at.dscale.same_bits(dscale)) << "dscale";
    EXPECT_TRUE(at.dbias.same_bits(dbias)) << "dbias";
  }
};

TEST(BatchNormAddReluGrad, HasTheBitsOfItsParts) {
  using Place = Tensor BlockEnd::*;
  const std::pair<Place, Place> places[] = {
      {nullptr, nullptr},           {&BlockEnd::dy, &BlockEnd::more}, {&BlockEnd::more, nullptr},
      {&BlockEnd::y, &BlockEnd::x}, {&BlockEnd::x, &BlockEnd::y},     {&BlockEnd::x, nullptr},
      {&BlockEnd::x, &BlockEnd::dy}};
  for (const DType dtype : {DType::Float32, DType::BFloat16})
    for (const bool last : {false, true})
      // One block for whole channels, many blocks, and no vectors.
      for (const auto& [channels, pixels] : {std::pair(64, 4), {2, 48}, {7, 5}, {3, 45}}) {
        const BlockEnd end(dtype, channels, pixels, last);
        for (const auto& place : places) {
          SCOPED_TRACE(str(name_of(dtype), last ? " channels-last " : " ", channels, " x ", pixels,
                           ", places ", &place - places));
          end.expect_fused(place.first, place.second);
        }
      }
}

}  // namespace
}  // namespace ortmodule::testing
