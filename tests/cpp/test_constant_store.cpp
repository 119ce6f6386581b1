// What imports share of the tensors that are computed from weights.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory_resource>
#include <string>
#include <vector>

#include "inference/constant_store.h"
#include "runtime/host_memory.h"

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

// A block of the heap that stays would keep its page resident.
TEST(ConstantStore, SmallTensorsLieInItsMemory) {
  std::vector<std::byte> bytes(64 << 10);
  const auto lies_there = [&](const HostTensor& tensor) {
    const auto* at = static_cast<const std::byte*>(tensor.memory.data());
    return at >= bytes.data() && at < bytes.data() + bytes.size();
  };
  HostMemory memory;
  const std::vector<int64_t> sizes = {20'000, 3, 70'000};
  ConstantStore store(true, std::make_shared<std::pmr::monotonic_buffer_resource>(
                                bytes.data(), bytes.size(), std::pmr::null_memory_resource()));
  const auto found = store.find({"a"}, [&](const std::vector<size_t>&) {
    std::vector<std::vector<HostTensor>> made(1);
    for (int64_t size : sizes) {
      HostTensor& tensor = made[0].emplace_back();
      tensor.dtype = DType::UInt8;
      tensor.sizes = {size};
      tensor.memory = memory.allocate(size);
      std::memset(tensor.memory.data(), static_cast<int>(size % 251), static_cast<size_t>(size));
    }
    return made;
  });
  for (size_t i = 0; i < sizes.size(); ++i) {
    const HostTensor& tensor = found[0]->at(i);
    EXPECT_EQ(lies_there(tensor), i < 2);
    const auto* elements = static_cast<const uint8_t*>(tensor.memory.data());
    EXPECT_TRUE(std::all_of(elements, elements + sizes[i],
                            [&](uint8_t element) { return element == sizes[i] % 251; }));
  }
  EXPECT_EQ(memory.held_bytes(), 70'000);
}

}  // namespace
}  // namespace ortmodule::testing
