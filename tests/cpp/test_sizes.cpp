// Sizes against std::vector, below and above the six integers that it has room for.
#include <gtest/gtest.h>

#include <numeric>
#include <random>
#include <vector>

#include "base/sizes.h"

namespace ortmodule {
namespace {

std::vector<int64_t> counted(size_t count) {
  std::vector<int64_t> values(count);
  std::iota(values.begin(), values.end(), 10);
  return values;
}

TEST(Sizes, HasRoomForSixIntegers) {
  EXPECT_EQ(Sizes(6).heap_bytes(), 0u);
  EXPECT_GT(Sizes(7).heap_bytes(), 0u);
}

TEST(Sizes, IsCopiedAndMoved) {
  for (size_t count : {0, 1, 6, 7, 20}) {
    const std::vector<int64_t> values = counted(count);
    Sizes a = values, copy = a, other{1, 2, 3, 4, 5, 6, 7, 8};
    EXPECT_EQ(copy.vector(), values);
    other = a;
    EXPECT_EQ(other.vector(), values);
    copy.push_back(1);
    EXPECT_EQ(a.vector(), values) << "the copy has memory of its own";
    const Sizes moved = std::move(a);
    EXPECT_EQ(moved.vector(), values);
    EXPECT_TRUE(a.empty());  // NOLINT: it can be used again
    a = values;
    a = static_cast<const Sizes&>(a);
    EXPECT_EQ(a, moved);
    other = std::move(a);
    EXPECT_EQ(other, moved);
  }
}

TEST(Sizes, ChangesAsAVectorDoes) {
  std::mt19937 random(1);
  const auto below = [&](size_t end) { return static_cast<std::ptrdiff_t>(random() % end); };
  Sizes sizes;
  std::vector<int64_t> vector;
  const std::vector<int64_t> more = counted(3);
  for (int64_t step = 0; step < 2000; ++step) {
    const std::ptrdiff_t at = below(vector.size() + 1);
    switch (vector.size() > 15 ? 3 + below(3) : below(6)) {
      case 0: sizes.push_back(step), vector.push_back(step); break;
      case 1:
        sizes.insert(sizes.begin() + at, step), vector.insert(vector.begin() + at, step);
        break;
      case 2:
        sizes.insert(sizes.begin() + at, more.begin(), more.end());
        vector.insert(vector.begin() + at, more.begin(), more.end());
        break;
      case 3:
        sizes.erase(sizes.begin() + at, sizes.end()),
            vector.erase(vector.begin() + at, vector.end());
        break;
      case 4: {
        const auto size = static_cast<size_t>(below(10));
        sizes.resize(size, step), vector.resize(size, step);
        break;
      }
      default:
        if (at < std::ssize(vector))
          sizes.erase(sizes.begin() + at), vector.erase(vector.begin() + at);
    }
    ASSERT_EQ(sizes.vector(), vector) << "after step " << step;
  }
}

TEST(Sizes, RefusesADimensionThatIsNotThere) { EXPECT_THROW(Sizes{1}.at(1), std::out_of_range); }

}  // namespace
}  // namespace ortmodule
