#include <gtest/gtest.h>

#include "base/dtype.h"
#include "base/error.h"
#include "base/layout.h"

namespace ortmodule {
namespace {

Layout row_major(Sizes sizes) {
  Sizes strides = contiguous_strides(sizes);
  return {std::move(sizes), std::move(strides), 0};
}

TEST(Layout, ContiguousStrides) {
  EXPECT_EQ(contiguous_strides({2, 3, 4}), (Sizes{12, 4, 1}));
  EXPECT_EQ(contiguous_strides({}), Sizes{});
  EXPECT_EQ(contiguous_strides({2, 0, 4}), (Sizes{4, 4, 1}));
}

TEST(Layout, Contiguous) {
  EXPECT_TRUE(is_contiguous(row_major({2, 3})));
  EXPECT_TRUE(is_contiguous({{2, 1, 3}, {3, 77, 1}, 5}));
  EXPECT_FALSE(is_contiguous({{2, 3}, {1, 2}, 0}));
  EXPECT_FALSE(is_contiguous({{2, 3}, {0, 1}, 0}));
  EXPECT_TRUE(is_contiguous({{0, 3}, {9, 9}, 0}));
}

TEST(Layout, Dense) {
  EXPECT_TRUE(is_dense({{2, 3}, {1, 2}, 0}));
  EXPECT_TRUE(is_dense({{2, 3, 4, 5}, {60, 1, 15, 3}, 0}));  // channels last
  EXPECT_FALSE(is_dense({{2, 3}, {4, 1}, 0}));
  EXPECT_FALSE(is_dense({{2, 3}, {0, 1}, 0}));
}

TEST(Layout, InnerContiguous) {
  EXPECT_TRUE(is_inner_contiguous({{2, 3}, {100, 1}, 0}));
  EXPECT_FALSE(is_inner_contiguous({{2, 3}, {1, 2}, 0}));
  EXPECT_TRUE(is_inner_contiguous({{2, 1}, {1, 9}, 0}));
  EXPECT_TRUE(is_inner_contiguous({}));
}

TEST(Layout, Extent) {
  EXPECT_EQ(extent(row_major({2, 3})), 6);
  EXPECT_EQ(extent({{2, 3}, {10, 2}, 7}), 15);
  EXPECT_EQ(extent({{2, 3}, {0, 0}, 0}), 1);
  EXPECT_EQ(extent({{2, 0}, {1, 1}, 0}), 0);
}

TEST(Layout, StridesLike) {
  const Layout channels_last{{2, 3, 4, 5}, {60, 1, 15, 3}, 0};
  EXPECT_EQ(strides_like({2, 3, 4, 5}, channels_last), channels_last.strides);
  EXPECT_EQ(strides_like({2, 3}, {{2, 3}, {1, 2}, 0}), (Sizes{1, 2}));
  EXPECT_EQ(strides_like({2, 3}, {{2, 3}, {8, 1}, 0}), (Sizes{3, 1}));
}

TEST(DType, NamesAndSizes) {
  for (DType dtype : {DType::Float32, DType::BFloat16, DType::Int64, DType::Bool}) {
    EXPECT_EQ(parse_dtype(name_of(dtype)), dtype);
    EXPECT_EQ(parse_dtype(torch_name_of(dtype)), dtype);
  }
  EXPECT_EQ(size_of(DType::BFloat16), 2u);
  EXPECT_THROW(parse_dtype("float8"), Error);
}

TEST(DType, Promotion) {
  EXPECT_EQ(promote(DType::Float16, DType::BFloat16), DType::Float32);
  EXPECT_EQ(promote(DType::Int64, DType::Float16), DType::Float16);
  EXPECT_EQ(promote(DType::UInt8, DType::Int8), DType::Int16);
  EXPECT_EQ(promote(DType::Bool, DType::UInt8), DType::UInt8);
  EXPECT_EQ(promote(DType::Complex64, DType::Float64), DType::Complex128);
  EXPECT_EQ(compute_dtype(DType::BFloat16), DType::Float32);
}

// A convolution's result may be larger where its operand has one element.
TEST(Layout, StridesLikeNeverOverlap) {
  const Layout like{{2, 3, 3, 1}, {9, 1, 3, 1}, 0};
  const Layout result{{2, 3, 5, 3}, strides_like({2, 3, 5, 3}, like), 0};
  EXPECT_TRUE(is_dense(result));
}

}  // namespace
}  // namespace ortmodule
