#include "kernels/philox.h"
#include "test_kernels_harness.h"

namespace ortmodule::testing {
namespace {

TEST(KernelRegistry, HoldsOneCopyPerInstructionSet) {
  std::vector<const KernelDef*> defs = kernels_of("PointwiseGroup");
  std::erase_if(defs, [](const KernelDef* def) { return def->device != Device::CPU; });
  size_t available = 0;
  for (Isa isa : {Isa::Baseline, Isa::Avx2, Isa::Avx512}) available += isa_available(isa);
  EXPECT_GE(defs.size(), 1u);
  EXPECT_LE(defs.size(), available);
}

TEST(KernelRegistry, SaysWhyThereIsNone) {
  std::string why;
  EXPECT_EQ(select_kernel("NoSuchOp", Device::CPU, {}, &why), nullptr);
  EXPECT_EQ(why, "no kernel for NoSuchOp on CPU: none is registered");

  Tensor x(DType::Complex64, {2}), y(DType::Complex64, {2});
  StepFacts facts = facts_of({node_of("Add", {}, {&x, &x}, {&y})}, {&x}, {&y});
  EXPECT_EQ(select_kernel("PointwiseGroup", Device::CPU, facts, &why), nullptr);
  EXPECT_EQ(why,
            "no kernel for PointwiseGroup on CPU:\n  - pointwise_group_cpu: it does not take c64");
}

TEST(Philox, MatchesTheKnownAnswersOfRandom123) {
  const PhiloxBlock zero = philox({{0, 0, 0, 0}}, 0, 0);
  EXPECT_EQ(zero.word[0], 0x6627e8d5u);
  EXPECT_EQ(zero.word[1], 0xe169c58du);
  EXPECT_EQ(zero.word[2], 0xbc57ac4cu);
  EXPECT_EQ(zero.word[3], 0x9b00dbd8u);
  const uint32_t ones = 0xffffffffu;
  const PhiloxBlock full = philox({{ones, ones, ones, ones}}, ones, ones);
  EXPECT_EQ(full.word[0], 0x408f276du);
  EXPECT_EQ(full.word[1], 0x41c83b0eu);
  EXPECT_EQ(full.word[2], 0xa20bc7c6u);
  EXPECT_EQ(full.word[3], 0x6d5451fdu);
  const PhiloxBlock pi =
      philox({{0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u}}, 0xa4093822u, 0x299f31d0u);
  EXPECT_EQ(pi.word[0], 0xd16cfe09u);
  EXPECT_EQ(pi.word[1], 0x94fdccebu);
  EXPECT_EQ(pi.word[2], 0x5001e420u);
  EXPECT_EQ(pi.word[3], 0x24126ea1u);
}

}  // namespace
}  // namespace ortmodule::testing
