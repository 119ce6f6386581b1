// What imports share of the tensors that are computed from weights.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "inference/constant_store.h"

namespace ortmodule::testing {
namespace {

// Computes a tensor of one, two, three ... floats for the keys that are missing.
struct Counted {
  std::vector<size_t> asked;

  ConstantStore::Compute compute() {
    return [this](const std::vector<size_t>& places) {
      std::vector<std::vector<HostTensor>> made(places.size());
      for (size_t i = 0; i < places.size(); ++i) {
        HostTensor& tensor = made[i].emplace_back();
        tensor.dtype = DType::Float32;
        tensor.sizes = {static_cast<int64_t>(places[i]) + 1};
      }
      asked = places;
      return made;
    };
  }
};

TEST(ConstantStore, ComputesWhatIsMissingInOneCall) {
  ConstantStore store;
  Counted first, second;
  const auto one = store.find({"a", "b"}, first.compute());
  const auto other = store.find({"c", "b", "c", "d"}, second.compute());
  EXPECT_EQ(first.asked, (std::vector<size_t>{0, 1}));
  EXPECT_EQ(second.asked, (std::vector<size_t>{0, 3})) << "b is known, and c is asked for once";
  EXPECT_EQ(other[1], one[1]);
  EXPECT_EQ(other[0], other[2]);
  EXPECT_EQ(store.bytes(), 4 * (1 + 2) + 4 * (1 + 4));
}

TEST(ConstantStore, ForgetsWhatNobodyHolds) {
  Counted counted;
  std::vector<ConstantStore::Tensors> longest;
  {
    ConstantStore store;
    auto held = store.find({"a", "b"}, counted.compute());
    held.pop_back();
    EXPECT_EQ(store.bytes(), 4);
    counted.asked.clear();
    longest = store.find({"a", "b"}, counted.compute());
    EXPECT_EQ(counted.asked, (std::vector<size_t>{1}));
    EXPECT_EQ(longest[0], held[0]);
  }
  EXPECT_EQ(longest[1]->at(0).sizes, (Sizes{2})) << "they may be there longer than the store";
}

}  // namespace
}  // namespace ortmodule::testing
