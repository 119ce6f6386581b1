// The order of a traced tensor's dims in memory, from sizes and strides alone.
#include <gtest/gtest.h>

#include "exporter/memory_order.h"

namespace ortmodule {
namespace {

using Order = std::vector<int64_t>;

Dims dims(const std::vector<std::string>& texts) {
  Dims parsed;
  for (const std::string& text : texts) parsed.push_back(DimExpr::parse(text));
  return parsed;
}

TEST(MemoryOrder, OfDenseTensors) {
  EXPECT_EQ(dense_order(dims({"2", "3", "4"}), dims({"12", "4", "1"})), Order({0, 1, 2}));
  EXPECT_EQ(dense_order(dims({"n", "3", "h", "w"}), dims({"3*h*w", "1", "3*w", "3"})),
            Order({0, 2, 3, 1}));
}

TEST(MemoryOrder, OfATensorWithGapsOrExpandedIsEmpty) {
  EXPECT_TRUE(dense_order(dims({"2", "3"}), dims({"4", "1"})).empty());
  EXPECT_TRUE(dense_order(dims({"2", "3"}), dims({"0", "1"})).empty());
  EXPECT_TRUE(dense_order(dims({"2", "3"}), {}).empty());
}

// As torch.empty_like's strides say for the same sizes and strides.
TEST(MemoryOrder, OfALikenessFollowsStrides) {
  EXPECT_EQ(order_in_likeness(dims({"2", "3"}), dims({"4", "1"})), Order({0, 1}));
  EXPECT_EQ(order_in_likeness(dims({"n", "3", "4"}), dims({"2", "8*n", "2*n"})), Order({1, 2, 0}));
  EXPECT_EQ(order_in_likeness(dims({"2", "1", "4"}), dims({"1", "7", "4"})), Order({1, 2, 0}));
}

TEST(MemoryOrder, OfALikenessOfAnExpandedTensor) {
  // A stride of 0 compares with nothing: dim 1 stays where row-major order has it.
  EXPECT_EQ(order_in_likeness(dims({"2", "3", "4"}), dims({"8", "0", "2"})), Order({0, 1, 2}));
  EXPECT_EQ(order_in_likeness(dims({"2", "3", "4"}), dims({"2", "0", "8"})), Order({2, 1, 0}));
}

TEST(MemoryOrder, OfALikenessWithEqualStridesIsEmpty) {
  EXPECT_TRUE(order_in_likeness(dims({"2", "3", "4"}), dims({"1", "1", "8"})).empty());
}

}  // namespace
}  // namespace ortmodule
