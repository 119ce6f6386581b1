// Feeds with strides, outputs in memory of the caller, and bindings.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <future>
#include <numeric>
#include <thread>
#include <vector>

#include "base/error.h"
#include "inference/copy_elements.h"
#include "inference/io_binding.h"
#include "test_inference_models.h"

namespace ortmodule::testing {
namespace {

// s = x + w, y = relu(s), z = y * x: z reads x after y is written.
OnnxModel chain() {
  return model_of({{"x", tensor_type(DType::Float32, {std::string("n"), int64_t{2}})}},
                  {"y", "z", "x_again"},
                  {node("Add", {"x", "w"}, {"s"}), node("Relu", {"s"}, {"y"}),
                   node("Mul", {"y", "x"}, {"z"}), node("Identity", {"x"}, {"x_again"})},
                  {{"w", constant<float>(DType::Float32, {2}, {-1, 1})}});
}

struct Expected {
  std::vector<float> y, z;
};

Expected expected(const std::vector<float>& x) {
  Expected made;
  for (size_t i = 0; i < x.size(); ++i) {
    made.y.push_back(std::max(0.0f, x[i] + (i % 2 ? 1.0f : -1.0f)));
    made.z.push_back(made.y[i] * x[i]);
  }
  return made;
}

HostTarget target(float* data, Sizes sizes, Sizes strides = {}) {
  return {DType::Float32, std::move(sizes), data, std::move(strides)};
}

SharedTensor tensor(std::vector<float>& values, Sizes sizes) {
  SharedTensor made;
  made.element_type = 1;
  made.sizes = std::move(sizes);
  made.data = values.data();
  return made;
}

std::vector<float> floats(const SharedValue& value) {
  const SharedTensor dense = copy_of(value.tensor());
  const auto* data = static_cast<const float*>(dense.data);
  return {data, data + element_count(dense.sizes)};
}

template <class Call>
std::string error_of(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(BoundOutputs, StepsWriteToMemoryOfTheCaller) {
  InferenceSession session = session_of(chain());
  const std::vector<float> x = {1, 2, -3, 4, 0.5, -6};
  const std::vector<HostFeed> feeds = {view(x, {3, 2})};
  session.run(feeds);
  const int64_t allocated = session.last_peak_bytes();
  std::vector<float> y(6), z(6);
  const std::vector<HostResult> results =
      session.run(feeds, {target(y.data(), {3, 2}), target(z.data(), {3, 2}), std::nullopt});
  EXPECT_EQ(y, expected(x).y);
  EXPECT_EQ(z, expected(x).z);
  EXPECT_FALSE(results[0].tensors[0].memory);
  EXPECT_EQ(results[0].tensors[0].sizes, (Sizes{3, 2}));
  EXPECT_TRUE(results[2].tensors[0].memory);
  EXPECT_EQ(session.copied_bytes(), 0);
  EXPECT_EQ(session.last_peak_bytes(), allocated - 2 * 24);
}

// Models of a square x whose steps read x in many ways, some of them after an output is written.
std::vector<std::pair<std::vector<std::string>, std::vector<OnnxNode>>> square_models() {
  return {
      {{"y", "z"},
       {node("Add", {"x", "x"}, {"s"}), node("Relu", {"s"}, {"y"}),
        node("MatMul", {"y", "x"}, {"z"})}},
      {{"y"}, {node("Abs", {"x"}, {"y"})}},
      {{"y"}, {node("Transpose", {"x"}, {"y"})}},
      {{"y"}, {node("Transpose", {"x"}, {"t"}), node("Sub", {"x", "t"}, {"y"})}},
      {{"y", "z"}, {node("Softmax", {"x"}, {"y"}), node("Mul", {"y", "x"}, {"z"})}},
      {{"y"}, {node("MatMul", {"x", "x"}, {"y"})}},
      {{"y", "z"}, {node("Identity", {"x"}, {"y"}), node("Neg", {"x"}, {"z"})}},
      {{"y"}, {node("Concat", {"x", "x"}, {"y"}, {{"axis", int64_t{1}}})}},
      {{"y"}, {node("Gather", {"x", "backwards"}, {"y"})}},
      {{"y"}, {node("Slice", {"x", "zero", "one"}, {"row"}), node("Sub", {"x", "row"}, {"y"})}}};
}

TEST(BoundOutputs, MayOverlapInputsAnywhere) {
  constexpr int64_t kSide = 160,  // several tiles of pointwise steps
      kCount = kSide * kSide;
  std::vector<float> values(kCount);
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<float>((i * 37) % 101) / 16 - 3;
  std::vector<int64_t> backwards;
  for (int64_t i = kSide - 1; i >= 0; --i) backwards.push_back(i);
  int number = 0;
  for (auto& [outputs, nodes] : square_models()) {
    InferenceSession session = session_of(model_of(
        {{"x", tensor_type(DType::Float32, {std::string("n"), std::string("n")})}}, outputs, nodes,
        {{"zero", constant<int64_t>(DType::Int64, {1}, {0})},
         {"one", constant<int64_t>(DType::Int64, {1}, {1})},
         {"backwards", constant(DType::Int64, {kSide}, backwards)}}));
    const std::vector<HostResult> right = session.run({view(values, {kSide, kSide})});
    for (size_t bound = 0; bound < right.size(); ++bound)
      for (int64_t offset : {-kCount, -kCount / 2, -kSide, -1l, 0l, 1l, 3l, kSide, kCount / 2}) {
        std::vector<float> memory(4 * kCount, 9.0f);
        std::copy(values.begin(), values.end(), memory.begin() + kCount);
        const HostTensorView x{DType::Float32, {kSide, kSide}, memory.data() + kCount};
        HostTargets targets(right.size());
        targets[bound] = target(memory.data() + kCount + offset, right[bound].tensors[0].sizes);
        const std::vector<HostResult> results = session.run({x}, targets);
        for (size_t k = 0; k < right.size(); ++k) {
          const HostTensor& wanted = right[k].tensors[0];
          const void* found = k == bound ? targets[k]->data : results[k].tensors[0].memory.data();
          ASSERT_EQ(
              std::memcmp(found, wanted.memory.data(), static_cast<size_t>(wanted.byte_count())), 0)
              << "model " << number << " output " << k << " with " << bound << " at " << offset;
        }
      }
    ++number;
  }
}

TEST(BoundOutputs, AStateIsUpdatedInPlaceWithoutACopy) {
  InferenceSession session = session_of(model_of(
      {{"x", tensor_type(DType::Float32, {std::string("n")})}}, {"y"},
      {node("Add", {"x", "w"}, {"y"})}, {{"w", constant<float>(DType::Float32, {1}, {1})}}));
  std::vector<float> state = {1, 2, 3};
  for (int i = 0; i < 4; ++i) session.run({view(state, {3})}, {target(state.data(), {3})});
  EXPECT_EQ(state, (std::vector<float>{5, 6, 7}));
  EXPECT_EQ(session.copied_bytes(), 0);
}

TEST(BoundOutputs, WhatDoesNotFitIsAnErrorBeforeTheRun) {
  InferenceSession session = session_of(chain());
  const std::vector<float> x = {1, 2};
  const std::vector<HostFeed> feeds = {view(x, {1, 2})};
  std::vector<float> y(8, 7.0f);
  const auto error = [&](std::optional<HostTarget> first, std::optional<HostTarget> second = {}) {
    const std::string text = error_of([&] { session.run(feeds, {first, second, std::nullopt}); });
    EXPECT_EQ(y, std::vector<float>(8, 7.0f));
    return text;
  };
  EXPECT_NE(error(target(y.data(), {2, 2}))
                .find("'y' must have type float and sizes [1,2], but "
                      "found float [2,2]"),
            std::string::npos);
  EXPECT_NE(error(HostTarget{DType::Int32, {1, 2}, y.data()}).find("but found int32"),
            std::string::npos);
  EXPECT_NE(error(target(y.data(), {1, 2}), target(y.data() + 1, {1, 2})).find("'y' and 'z'"),
            std::string::npos);
  EXPECT_NE(error(target(y.data(), {1, 2}, {2, 0})).find("overlapping strides"), std::string::npos);
}

TEST(BoundOutputs, StridesAndOddAddressesAreKept) {
  InferenceSession session = session_of(chain());
  const std::vector<float> x = {1, 2, -3, 4, 0.5, -6};
  std::vector<float> columns(6), reversed(6);
  session.run({view(x, {3, 2})}, {target(columns.data(), {3, 2}, {1, 3}),
                                  target(reversed.data() + 5, {3, 2}, {-2, -1}), std::nullopt});
  const Expected right = expected(x);
  for (size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(columns[i / 2 + 3 * (i % 2)], right.y[i]);
    EXPECT_EQ(reversed[5 - i], right.z[i]);
  }
  EXPECT_EQ(session.copied_bytes(), 48);
  std::vector<char> bytes(25);
  session.run({view(x, {3, 2})}, {target(reinterpret_cast<float*>(bytes.data() + 1), {3, 2}),
                                  std::nullopt, std::nullopt});
  EXPECT_EQ(std::memcmp(bytes.data() + 1, right.y.data(), 24), 0);
}

TEST(Feeds, AreReadWithTheirStrides) {
  InferenceSession session = session_of(chain());
  std::vector<float> memory(24);
  std::iota(memory.begin(), memory.end(), -11.0f);
  const auto run = [&](const float* data, Sizes strides, int64_t copied) {
    std::vector<float> x;
    for (int64_t i = 0; i < 3; ++i)
      for (int64_t k = 0; k < 2; ++k) x.push_back(data[i * strides[0] + k * strides[1]]);
    const int64_t before = session.copied_bytes();
    std::vector<float> z(6), again(6);
    session.run({HostTensorView{DType::Float32, {3, 2}, data, strides}},
                {std::nullopt, target(z.data(), {3, 2}), target(again.data(), {3, 2})});
    EXPECT_EQ(z, expected(x).z);
    EXPECT_EQ(again, x);
    EXPECT_EQ(session.copied_bytes() - before, copied);
  };
  run(memory.data(), {1, 3}, 0);          // transposed
  run(memory.data() + 1, {4, 2}, 0);      // every second column
  run(memory.data() + 2, {0, 1}, 0);      // one row, expanded
  run(memory.data(), {1, 1}, 0);          // windows that overlap
  run(memory.data() + 23, {-2, -1}, 24);  // reversed
  run(memory.data() + 1, {2, 1}, 0);      // row-major
}

TEST(Feeds, StridedVectorsDecideSizesByTheirElements) {
  InferenceSession session =
      session_of(model_of({{"x", tensor_type(DType::Float32, {std::string("n")})},
                           {"shape", tensor_type(DType::Int64, {std::string("r")})}},
                          {"y"}, {node("Reshape", {"x", "shape"}, {"y"})}));
  const std::vector<float> x = {1, 2, 3, 4, 5, 6};
  std::vector<int64_t> shape = {2, 77, 3};
  for (int i = 0; i < 2; ++i) {
    const std::vector<HostResult> results =
        session.run({view(x, {6}), HostTensorView{DType::Int64, {2}, shape.data(), {2}}});
    EXPECT_EQ(results[0].tensors[0].sizes, (Sizes{shape[0], shape[2]}));
    std::swap(shape[0], shape[2]);
  }
}

TEST(CopyElements, CopiesBetweenAnyLayouts) {
  const Sizes sizes = {2, 3, 1, 4};
  for (size_t element_bytes : {1, 2, 4, 8, 16}) {
    std::vector<char> from(24 * element_bytes), columns(from.size()), back(from.size());
    std::iota(from.begin(), from.end(), 0);
    const Sizes strides = {1, 8, 5, 2};
    copy_elements(sizes, element_bytes, from.data(), {}, columns.data(), strides);
    EXPECT_NE(from, columns);
    copy_elements(sizes, element_bytes, columns.data(), strides, back.data(), {});
    EXPECT_EQ(from, back);
  }
  EXPECT_EQ(canonical_strides(sizes, {12, 4, 99, 1}), Sizes{});
  EXPECT_EQ(canonical_strides(sizes, {1, 8, 99, 2}), (Sizes{1, 8, 4, 2}));
  EXPECT_FALSE(has_shared_elements(sizes, {1, 8, 0, 2}));
  EXPECT_TRUE(has_shared_elements(sizes, {1, 7, 0, 2}));
  EXPECT_TRUE(has_shared_elements({2}, {0}));
}

TEST(IoBinding, OutputsOfARunAreInputsOfTheNext) {
  InferenceSession session = session_of(chain());
  IoBinding binding(session);
  EXPECT_NE(error_of([&] { binding.run(); }).find("at least one output"), std::string::npos);
  EXPECT_NE(error_of([&] { binding.bind_output("q"); }).find("one of 'y', 'z', 'x_again'"),
            std::string::npos);
  binding.bind_output("z");
  EXPECT_NE(error_of([&] { binding.run(); }).find("'x' is not"), std::string::npos);
  std::vector<float> x = {1, 2, -3, 4};
  binding.bind_input("x", tensor(x, {2, 2}));
  std::vector<float> right = x;
  const void* before = nullptr;
  for (int i = 0; i < 3; ++i) {
    binding.run();
    right = expected(right).z;
    const SharedValue z = binding.output(0);
    EXPECT_EQ(floats(z), right);
    EXPECT_NE(z.tensor().data, before);
    before = z.tensor().data;
    binding.bind_input("x", z);
  }
  EXPECT_EQ(session.copied_bytes(), 0);
  std::vector<float> longer = {1, 2, 3, 4, 5, 6};
  binding.bind_input("x", tensor(longer, {3, 2}));
  binding.run();
  EXPECT_EQ(floats(binding.output(0)), expected(longer).z);
}

TEST(IoBinding, HandsOutputsOverWithoutACopyOnlyIfNobodyElseHasThem) {
  InferenceSession session = session_of(chain());
  IoBinding binding(session);
  std::vector<float> x = {1, 2}, place(2);
  binding.bind_input("x", tensor(x, {1, 2}));
  binding.bind_output("y");
  binding.bind_output("z", tensor(place, {1, 2}));
  binding.run();
  const SharedValue alone = binding.output_alone(0);
  const SharedValue again = binding.output_alone(0);
  EXPECT_NE(alone.tensor().data, again.tensor().data);
  const SharedValue shared = binding.output(0);
  EXPECT_NE(shared.tensor().data, alone.tensor().data);
  EXPECT_EQ(binding.output(0).tensor().data, shared.tensor().data);
  EXPECT_NE(binding.output_alone(0).tensor().data, shared.tensor().data);
  EXPECT_EQ(floats(shared), floats(alone));
  EXPECT_EQ(binding.output(1).tensor().data, place.data());
  EXPECT_NE(binding.output_alone(1).tensor().data, place.data());
  binding.run();
  const void* data = binding.output_alone(0).tensor().data;
  EXPECT_EQ(binding.output(0).tensor().data, data);  // the other owner is gone
}

TEST(IoBinding, IsRefusedWhileItIsInUse) {
  InferenceSession session = session_of(chain());
  IoBinding binding(session);
  std::vector<float> x = {1, 2};
  std::string error;
  SharedTensor watched = tensor(x, {1, 2});
  watched.owner = {x.data(), [&](void*) { error = error_of([&] { binding.clear_inputs(); }); }};
  binding.bind_input("x", std::move(watched));
  binding.bind_input("x", tensor(x, {1, 2}));  // lets go of the other one
  EXPECT_NE(error.find("by one thread at a time"), std::string::npos) << error;
  binding.bind_output("y");
  binding.run();
  EXPECT_EQ(floats(binding.output(0)), expected(x).y);
}

TEST(IoBinding, TwentyThreadsShareASession) {
  InferenceSession session = session_of(chain());
  std::vector<std::future<bool>> right;
  for (size_t t = 0; t < 20; ++t)
    right.push_back(std::async(std::launch::async, [&session, t] {
      std::vector<float> x((1 + t % 5) * 2, static_cast<float>(t)), y(x.size());
      const Sizes sizes = {static_cast<int64_t>(x.size() / 2), 2};
      IoBinding binding(session);
      binding.bind_input("x", tensor(x, sizes));
      binding.bind_output("y", tensor(y, sizes));
      bool good = true;
      for (int i = 0; i < 50; ++i) {
        x.assign(x.size(), static_cast<float>(t) + static_cast<float>(i));
        binding.run();
        good = good && y == expected(x).y;
      }
      return good;
    }));
  for (std::future<bool>& good : right) EXPECT_TRUE(good.get());
}

}  // namespace
}  // namespace ortmodule::testing
