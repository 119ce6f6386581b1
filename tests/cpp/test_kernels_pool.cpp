// Max pooling and its gradient against their definition.
#include <limits>

#include "test_kernels_harness.h"

namespace ortmodule::testing {
namespace {

struct PoolCase {
  int64_t images, channels, height, width;
  int64_t kernel, stride, pad, dilation;
  bool channels_last = false;
};

struct Expected {
  std::vector<double> y, indices, places;
};

int64_t windows(const PoolCase& c, int64_t size) {
  return (size + 2 * c.pad - c.dilation * (c.kernel - 1) - 1) / c.stride + 1;
}

Sizes strides_of(const PoolCase& c, const Sizes& sizes) {
  if (!c.channels_last) return contiguous_strides(sizes);
  return {sizes[1] * sizes[2] * sizes[3], 1, sizes[1] * sizes[3], sizes[1]};
}

/// The window of output (row, column), as torch's loops find its largest element.
void pool_window(const PoolCase& c, const Tensor& x, int64_t plane, int64_t row, int64_t column,
                 Expected& expected) {
  double largest = -std::numeric_limits<double>::infinity();
  int64_t index = 0, place = 255;
  for (int64_t k = 0; k < c.kernel * c.kernel; ++k) {
    const int64_t i = row * c.stride - c.pad + k / c.kernel * c.dilation;
    const int64_t j = column * c.stride - c.pad + k % c.kernel * c.dilation;
    if (i < 0 || i >= c.height || j < 0 || j >= c.width) continue;
    const double value = x.get((plane * c.height + i) * c.width + j);
    if (!(value > largest || std::isnan(value) || place == 255)) continue;
    largest = value, index = i * c.width + j, place = k;
  }
  expected.y.push_back(largest);
  expected.indices.push_back(static_cast<double>(index));
  expected.places.push_back(static_cast<double>(place));
}

Attrs attrs_of(const PoolCase& c) {
  return {{"kernel_shape", Dims{c.kernel, c.kernel}},
          {"strides", Dims{c.stride, c.stride}},
          {"pads", Dims{c.pad, c.pad, c.pad, c.pad}},
          {"dilations", Dims{c.dilation, c.dilation}},
          {"ceil_mode", 0}};
}

void check_pool(const PoolCase& c, DType dtype, bool special) {
  const Sizes in{c.images, c.channels, c.height, c.width};
  const Sizes out{c.images, c.channels, windows(c, c.height), windows(c, c.width)};
  // Few different values: most windows hold the largest one several times.
  Tensor x = Tensor::random(DType::Int64, in, 7, -4, 4), values(dtype, in, strides_of(c, in));
  for (int64_t i = 0; i < x.count(); ++i) values.set(i, x.get(i));
  for (int64_t i = 0; special && i < x.count(); i += 3)
    values.set(i, i % 2 ? std::nan("") : -std::numeric_limits<double>::infinity());
  Expected expected;
  for (int64_t plane = 0; plane < c.images * c.channels; ++plane)
    for (int64_t row = 0; row < out[2]; ++row)
      for (int64_t column = 0; column < out[3]; ++column)
        pool_window(c, values, plane, row, column, expected);
  Tensor y(dtype, out, strides_of(c, out)), indices(DType::Int64, out, strides_of(c, out));
  Tensor places(DType::UInt8, out, strides_of(c, out));
  run_op("MaxPool", attrs_of(c), {&values}, {&y, &indices, &places}, [&] {
    expect_close(y, expected.y, 0, 0, "y");
    expect_close(indices, expected.indices, 0, 0, "indices");
    expect_close(places, expected.places, 0, 0, "places");
  });
  run_op("MaxPool", attrs_of(c), {&values}, {&y, nullptr, nullptr},
         [&] { expect_close(y, expected.y, 0, 0, "y alone"); });
  // Gradients in the other layout as well.
  for (bool same_layout : {true, false}) {
    PoolCase other = c;
    other.channels_last = c.channels_last == same_layout;
    Tensor dy = Tensor::random(dtype, out, 8, -2, 2, strides_of(other, out));
    std::vector<double> gradient(static_cast<size_t>(x.count()), 0.0);
    const int64_t area = c.height * c.width, out_area = out[2] * out[3];
    for (int64_t i = 0; i < dy.count(); ++i)
      if (expected.places[static_cast<size_t>(i)] != 255)
        gradient[static_cast<size_t>(i / out_area * area) +
                 static_cast<size_t>(expected.indices[static_cast<size_t>(i)])] += dy.get(i);
    Tensor dx(dtype, in, strides_of(other, in));
    run_op("MaxPoolGrad", attrs_of(c), {&dy, &places}, {&dx},
           [&] { expect_close(dx, gradient, 8, 8, "dx"); });
  }
}

TEST(MaxPool, FollowsItsDefinition) {
  for (const PoolCase& c : {PoolCase{2, 3, 10, 10, 2, 2, 0, 1}, PoolCase{2, 3, 9, 11, 3, 2, 1, 1},
                            PoolCase{1, 5, 7, 7, 3, 1, 1, 1}, PoolCase{1, 2, 12, 9, 3, 2, 1, 2},
                            PoolCase{3, 1, 5, 5, 5, 5, 0, 1}, PoolCase{1, 1, 15, 15, 15, 1, 7, 1},
                            PoolCase{1, 2, 6, 7, 2, 3, 0, 1}, PoolCase{1, 1, 3, 2500, 3, 2, 1, 1},
                            PoolCase{1, 1100, 4, 5, 3, 1, 1, 1}, PoolCase{1, 2, 2, 2, 2, 1, 1, 3},
                            PoolCase{0, 2, 4, 4, 2, 2, 0, 1}})
    for (bool channels_last : {false, true})
      for (DType dtype : {DType::Float32, DType::Float64, DType::BFloat16, DType::Float16})
        for (bool special : {false, true}) {
          SCOPED_TRACE(str(name_of(dtype), " ", c.kernel, "/", c.stride, " of ", c.height, " x ",
                           c.width, channels_last ? " channels-last" : ""));
          PoolCase in_layout = c;
          in_layout.channels_last = channels_last;
          check_pool(in_layout, dtype, special);
        }
}

}  // namespace
}  // namespace ortmodule::testing
