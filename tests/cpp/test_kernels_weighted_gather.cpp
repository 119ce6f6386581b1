// WeightedGather against its definition: few channels and vectors of them, blocks of points and
// rests.
#include "test_kernels_harness.h"

namespace ortmodule::testing {
namespace {

void check_gather(DType dtype, int64_t channels, int64_t taps, int64_t points) {
  const int64_t images = 2, places = 11;
  SCOPED_TRACE(str(name_of(dtype), " channels ", channels, " taps ", taps, " points ", points));
  Tensor x = Tensor::random(dtype, {images, places, channels}, 1);
  Tensor weights = Tensor::random(dtype, {images, taps, points}, 2);
  Tensor index(DType::Int64, weights.sizes()), y(dtype, {images, channels, points});
  for (int64_t i = 0; i < index.count(); ++i) index.set(i, static_cast<double>(i * 7 % places));
  std::vector<double> expected(static_cast<size_t>(y.count()));
  for (int64_t n = 0; n < images; ++n)
    for (int64_t c = 0; c < channels; ++c)
      for (int64_t p = 0; p < points; ++p)
        for (int64_t t = 0; t < taps; ++t) {
          const int64_t at = (n * taps + t) * points + p;
          const int64_t place = n * places + static_cast<int64_t>(index.get(at));
          expected[static_cast<size_t>((n * channels + c) * points + p)] +=
              weights.get(at) * x.get(place * channels + c);
        }
  run_op("WeightedGather", {}, {&x, &index, &weights}, {&y},
         [&] { expect_close(y, expected, 128, 1, "y"); });
}

TEST(WeightedGather, FollowsItsDefinition) {
  for (DType dtype : {DType::Float32, DType::Float64})
    for (int64_t channels : {1, 3, 4, 16, 37})
      for (int64_t taps : {1, 4, 16})
        for (int64_t points : {1, 16, 37, 1030}) check_gather(dtype, channels, taps, points);
}

}  // namespace
}  // namespace ortmodule::testing
