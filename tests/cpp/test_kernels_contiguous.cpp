#include "test_kernels_harness.h"

namespace ortmodule::testing {
namespace {

void check_copy(Tensor& x, Tensor y) {
  run_op("Contiguous", {}, {&x}, {&y}, [&] { expect_close(y, x.values(), 0, 0, "copy"); });
}

TEST(Contiguous, CopiesAnyLayoutAndElementSize) {
  for (DType dtype : {DType::UInt8, DType::Int16, DType::Float32, DType::Float64}) {
    for (int64_t a : {1, 2, 17, 56, 64, 100}) {
      for (int64_t b : {1, 2, 3, 4, 64, 131}) {
        const Sizes sizes{3, a, b};
        for (const Sizes& strides :
             {Sizes{a * b, b, 1}, Sizes{a * b, 1, a}, Sizes{1, 3 * b, 3}, Sizes{0, b, 1},
              Sizes{a * b * 2, b * 2, 2}, Sizes{a * b * 4, b * 4, 4}, Sizes{a * b, b, 0},
              Sizes{b, 3 * b, 1}}) {
          Tensor x = Tensor::random(dtype, sizes, 1, 0, 100, strides);
          check_copy(x, Tensor(dtype, sizes));
          check_copy(x, Tensor(dtype, sizes, {a * b, 1, a}));
          check_copy(x, Tensor(dtype, sizes, {1, 3, 3 * a}));
        }
      }
    }
  }
}

TEST(Contiguous, CopiesEmptyScalarAndFiveDimensions) {
  Tensor empty(DType::Float32, {3, 0, 2}), scalar = Tensor::of(DType::Float32, {}, {4});
  check_copy(empty, Tensor(DType::Float32, {3, 0, 2}));
  check_copy(scalar, Tensor(DType::Float32, {}));
  Tensor x = Tensor::random(DType::Float32, {2, 3, 4, 5, 6}, 2, -1, 1, {1, 2, 6, 24, 120});
  check_copy(x, Tensor(DType::Float32, {2, 3, 4, 5, 6}));
  Tensor heads = Tensor::random(DType::Float32, {2, 4, 33, 8}, 3, -1, 1, {33 * 32, 8, 32, 1});
  check_copy(heads, Tensor(DType::Float32, {2, 4, 33, 8}));
}

// More elements than a CUDA launch of the emulation takes.
TEST(Contiguous, CopiesLargeTensors) {
  for (const Sizes& strides : {Sizes{600, 1, 300}, Sizes{600, 2, 1}, Sizes{1, 700, 350}}) {
    Tensor x = Tensor::random(DType::Float32, {350, 300, 2}, 4, -1, 1, strides);
    check_copy(x, Tensor(DType::Float32, {350, 300, 2}));
    check_copy(x, Tensor(DType::Float32, {350, 300, 2}, {1, 350, 350 * 300}));
  }
}

TEST(Contiguous, CopiesComplex) {
  Tensor x(DType::Complex128, {3, 2}, {1, 3}), y(DType::Complex128, {3, 2});
  double* values = static_cast<double*>(x.data());
  for (int i = 0; i < 12; ++i) values[i] = i;
  run_op("Contiguous", {}, {&x}, {&y}, [&] { EXPECT_TRUE(x.same_bits(y)); });
}

}  // namespace
}  // namespace ortmodule::testing
