// The hash that stands for contents, by the vectors of its authors.
#include <gtest/gtest.h>

#include <string>

#include "base/keyed_hash.h"
#include "inference/loaded_model.h"
#include "test_inference_models.h"

namespace ortmodule::testing {
namespace {

TEST(KeyedHash, IsSipHash) {
  constexpr std::array<uint64_t, 2> kKey = {0x0706050403020100, 0x0f0e0d0c0b0a0908};
  std::string bytes;
  for (char i = 0; i < 15; ++i) bytes += i;
  EXPECT_EQ(sip_hash(kKey, ""), 0x726fdb47dd0e0e31);
  EXPECT_EQ(sip_hash(kKey, bytes.substr(0, 8)), 0x93f5f5799a932462);
  EXPECT_EQ(sip_hash(kKey, bytes), 0xa129ca6149be45e5);
}

TEST(KeyedHash, StandsForComputedWeightsInKeys) {
  const OnnxTensor weight = constant<float>(DType::Float32, {2}, {1, 2});
  const std::string hash = keyed_hash(weight.bytes.view());
  EXPECT_EQ(hash.size(), 32);
  EXPECT_NE(LoadedModel::key_of(weight).find(hash), std::string::npos);
  EXPECT_NE(keyed_hash("1"), keyed_hash("2"));
}

}  // namespace
}  // namespace ortmodule::testing
