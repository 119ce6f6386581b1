// Max pooling with its gradient, and average pooling, against their definitions.
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
  return c.channels_last ? channels_last_strides(sizes) : contiguous_strides(sizes);
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
  for (int64_t i = 0; special && i < x.count(); i += i < 40 ? 1 : 3)
    values.set(i, i % 2 && i >= 40 ? std::nan("") : -std::numeric_limits<double>::infinity());
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
  // Without indices vectors may be used, unless addresses forbid it.
  for (int64_t offset : {0, 1}) {
    Tensor moved = values.misaligned(offset);
    run_op("MaxPool", attrs_of(c), {&moved}, {&y, nullptr, &places}, [&] {
      expect_close(y, expected.y, 0, 0, "y without indices");
      expect_close(places, expected.places, 0, 0, "places without indices");
    });
  }
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

// Values alone are found by vectors of windows or channels, values with places one place at a time.
TEST(MaxPool, HasTheSameBitsWithoutPlaces) {
  for (const PoolCase& c : {PoolCase{2, 3, 37, 41, 3, 2, 1, 1}, PoolCase{1, 2, 70, 61, 5, 1, 2, 1},
                            PoolCase{1, 2, 70, 61, 3, 1, 2, 2}, PoolCase{1, 13, 33, 40, 3, 3, 0, 1},
                            PoolCase{1, 3, 20, 30, 2, 3, 1, 1}, PoolCase{1, 2, 9, 400, 4, 2, 0, 1},
                            PoolCase{1, 70, 8, 9, 3, 2, 1, 2}, PoolCase{1, 45, 6, 7, 2, 2, 0, 1},
                            PoolCase{1, 26, 7, 3, 3, 1, 1, 1}, PoolCase{1, 2, 3, 4, 9, 1, 4, 1},
                            PoolCase{2, 5, 14, 14, 2, 2, 0, 1}, PoolCase{1, 6, 300, 21, 3, 3, 0, 1},
                            PoolCase{1, 3, 3, 3, 3, 2, 0, 1}, PoolCase{1, 2, 250, 20, 5, 1, 2, 1},
                            PoolCase{1, 4, 8, 6, 2, 2, 0, 2}})
    for (bool channels_last : {false, true}) {
      SCOPED_TRACE(str(c.kernel, "/", c.stride, " of ", c.height, " x ", c.width,
                       channels_last ? " channels-last" : ""));
      PoolCase in_layout = c;
      in_layout.channels_last = channels_last;
      const Sizes in{c.images, c.channels, c.height, c.width};
      const Sizes out{c.images, c.channels, windows(c, c.height), windows(c, c.width)};
      Tensor x(DType::Float32, in, strides_of(in_layout, in));
      const double few[] = {-0.0, 0.0, -1.0, -2.0, 0.0, -0.0, -3.0, std::nan(""), -std::nan("")};
      std::mt19937 generator(11);
      for (int64_t i = 0; i < x.count(); ++i) {
        const unsigned drawn = generator() % 100;
        x.set(i, few[drawn < 9 ? drawn : drawn % 7]);
      }
      Tensor y(DType::Float32, out, strides_of(in_layout, out));
      Tensor places(DType::UInt8, out, strides_of(in_layout, out)), with_places;
      run_kernel_named("max_pool_cpu", "MaxPool", attrs_of(c), {&x}, {&y, nullptr, &places},
                       [&] { with_places = y; });
      run_kernel_named("max_pool_cpu", "MaxPool", attrs_of(c), {&x}, {&y, nullptr, nullptr},
                       [&] { EXPECT_TRUE(y.same_bits(with_places)); });
    }
}

TEST(MaxPool, FollowsItsDefinition) {
  for (const PoolCase& c : {PoolCase{2, 3, 10, 10, 2, 2, 0, 1}, PoolCase{2, 3, 9, 11, 3, 2, 1, 1},
                            PoolCase{1, 5, 7, 7, 3, 1, 1, 1}, PoolCase{1, 2, 12, 9, 3, 2, 1, 2},
                            PoolCase{3, 1, 5, 5, 5, 5, 0, 1}, PoolCase{1, 1, 15, 15, 15, 1, 7, 1},
                            PoolCase{1, 2, 6, 7, 2, 3, 0, 1}, PoolCase{1, 1, 3, 2500, 3, 2, 1, 1},
                            PoolCase{1, 1100, 4, 5, 3, 1, 1, 1}, PoolCase{1, 2, 2, 2, 2, 1, 1, 3},
                            PoolCase{0, 2, 4, 4, 2, 2, 0, 1}, PoolCase{1, 1, 2, 9000, 2, 2, 0, 1},
                            // Windows known to the compiler: whole vectors of rows or channels,
                            // rows and columns of odd number, and more elements than 32 bits take.
                            PoolCase{2, 3, 9, 16, 3, 2, 1, 1}, PoolCase{2, 16, 10, 8, 3, 2, 1, 1},
                            PoolCase{2, 8, 9, 11, 3, 2, 1, 1}, PoolCase{1, 3, 7, 24, 2, 2, 0, 1},
                            PoolCase{1, 16, 5, 7, 2, 2, 0, 1}, PoolCase{2, 8, 1, 1, 3, 2, 1, 1},
                            PoolCase{1, 8, 64, 136, 3, 2, 1, 1}})
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

// --- any number of dimensions --------------------------------------------------------------------
struct WindowsCase {
  Sizes in, kernel, strides, pads, dilations;  // in: N, C, ...; pads: begins, then ends
  bool ceil_mode = false;
};

Attrs attrs_of(const WindowsCase& c) {
  const auto dims = [](const Sizes& sizes) { return Dims(sizes.begin(), sizes.end()); };
  return {{"kernel_shape", dims(c.kernel)},
          {"strides", dims(c.strides)},
          {"pads", dims(c.pads)},
          {"dilations", dims(c.dilations)},
          {"ceil_mode", int64_t{c.ceil_mode}}};
}

Sizes out_sizes(const WindowsCase& c) {
  Sizes out{c.in[0], c.in[1]};
  const size_t n = c.kernel.size();
  for (size_t d = 0; d < n; ++d) {
    const int64_t room =
        c.in[d + 2] + c.pads[d] + c.pads[n + d] - c.dilations[d] * (c.kernel[d] - 1) - 1;
    int64_t count = room / c.strides[d] + 1;
    if (c.ceil_mode && room % c.strides[d] != 0 && count * c.strides[d] < c.in[d + 2] + c.pads[d])
      ++count;
    out.push_back(count);
  }
  return out;
}

Sizes coordinates(int64_t position, const Sizes& sizes, size_t first) {
  Sizes at(sizes.size() - first);
  for (size_t d = at.size(); d-- > 0;) {
    at[d] = position % sizes[first + d];
    position /= sizes[first + d];
  }
  return at;
}

/// body(place, position in the plane or -1, whether that counts as padding) for each place.
template <class Body>
void for_each_place(const WindowsCase& c, int64_t output, const Body& body) {
  const size_t n = c.kernel.size();
  const Sizes o = coordinates(output, out_sizes(c), 2);
  for (int64_t place = 0; place < element_count(c.kernel); ++place) {
    const Sizes k = coordinates(place, c.kernel, 0);
    int64_t position = 0;
    bool inside = true, padding = true;
    for (size_t d = 0; d < n; ++d) {
      const int64_t at = o[d] * c.strides[d] + k[d] * c.dilations[d] - c.pads[d];
      inside = inside && at >= 0 && at < c.in[d + 2];
      padding = padding && at < c.in[d + 2] + c.pads[n + d];
      position = position * c.in[d + 2] + at;
    }
    body(place, inside ? position : -1, padding);
  }
}

const std::vector<WindowsCase>& windows_cases() {
  static const std::vector<WindowsCase> cases = {
      {{2, 3, 17}, {4}, {2}, {1, 2}, {1}},
      {{1, 2, 40}, {3}, {3}, {0, 0}, {4}},
      {{2, 3, 9, 11}, {3, 2}, {2, 1}, {1, 0, 2, 1}, {1, 1}},
      {{1, 2, 12, 9}, {3, 3}, {2, 2}, {1, 1, 1, 1}, {2, 1}, true},
      {{1, 2, 6, 7}, {2, 2}, {3, 4}, {0, 0, 0, 0}, {1, 1}, true},
      {{1, 1, 20, 30}, {19, 20}, {1, 3}, {2, 2, 2, 2}, {1, 1}},  // more places than a byte counts
      {{1, 2, 3, 1100}, {2, 3}, {1, 1}, {0, 1, 1, 1}, {1, 1}},
      {{2, 2, 5, 6, 4}, {2, 3, 2}, {1, 2, 2}, {0, 1, 1, 1, 0, 0}, {1, 1, 2}},
      {{1, 1, 2, 3, 4, 3}, {2, 2, 1, 3}, {1, 1, 1, 1}, {0, 1, 0, 1, 0, 0, 0, 1}, {1, 1, 1, 1}},
      {{0, 2, 4, 4}, {2, 2}, {2, 2}, {0, 0, 0, 0}, {1, 1}},
      {{2, 37, 7, 9}, {3, 3}, {2, 2}, {1, 1, 0, 1}, {1, 1}, true},
      {{1, 75, 6, 5}, {2, 3}, {1, 2}, {0, 1, 1, 0}, {2, 1}},
      {{1, 3, 4, 5}, {2, 2}, {2, 1}, {0, 0, 3, 9}, {1, 1}},  // some windows hold padding alone
      {{1, 3, 4, 13}, {2, 2}, {1, 1}, {0, 0, 1, 1 << 21}, {1, 1 << 21}},
      {{1, 9, 3, 5, 4}, {2, 2, 3}, {1, 2, 1}, {1, 0, 1, 0, 1, 1}, {1, 1, 1}},
      {{2, 3, 17, 17}, {5, 5}, {3, 3}, {0, 0, 0, 0}, {1, 1}},  // far apart, few and many
      {{1, 3, 40, 200}, {5, 7}, {3, 5}, {1, 2, 1, 2}, {2, 2}},
      {{1, 2, 9, 400}, {2, 3}, {2, 20}, {0, 0, 0, 0}, {1, 1}},
  };
  return cases;
}

TEST(MaxPool, TakesAnyDimensionsWindowsAndTypes) {
  for (const WindowsCase& c : windows_cases())
    for (DType dtype : {DType::Float32, DType::Float64, DType::BFloat16, DType::Float16,
                        DType::UInt8, DType::Int8, DType::Int32}) {
      SCOPED_TRACE(str(name_of(dtype), " ", ::testing::PrintToString(c.in), " by ",
                       ::testing::PrintToString(c.kernel)));
      const double least = dtype == DType::UInt8 ? 0 : -5;
      Tensor x = Tensor::random(dtype, c.in, 7, least, 5);
      for (int64_t i = 0; dtype == DType::Float32 && i < x.count(); i += 13)
        x.set(i, i % 2 ? std::nan("") : -std::numeric_limits<double>::infinity());
      const Sizes out = out_sizes(c);
      Tensor y(dtype, out), indices(DType::Int64, out), places(DType::UInt8, out);
      const int64_t plane = element_count(Sizes(c.in.begin() + 2, c.in.end()));
      const int64_t pixels = element_count(Sizes(out.begin() + 2, out.end()));
      Expected expected;
      for (int64_t i = 0; i < y.count(); ++i) {
        double largest = dtype == DType::UInt8   ? 0
                         : dtype == DType::Int8  ? -128
                         : dtype == DType::Int32 ? -0x1p31
                                                 : -std::numeric_limits<double>::infinity();
        int64_t index = 0, best = 255;
        for_each_place(c, i % pixels, [&](int64_t place, int64_t at, bool) {
          if (at < 0) return;
          const double value = x.get(i / pixels * plane + at);
          if (!(value > largest || std::isnan(value) || best == 255)) return;
          largest = value, index = at, best = place;
        });
        expected.y.push_back(largest);
        expected.indices.push_back(static_cast<double>(index));
        expected.places.push_back(static_cast<double>(best));
      }
      const bool large = element_count(c.kernel) > 255;
      run_kernel_named("max_pool_plain_cpu", "MaxPool", attrs_of(c), {&x},
                       {&y, large ? nullptr : &indices, large ? nullptr : &places}, [&] {
                         expect_close(y, expected.y, 0, 0, "y");
                         if (large) return;
                         expect_close(indices, expected.indices, 0, 0, "indices");
                         expect_close(places, expected.places, 0, 0, "places");
                       });
      run_kernel_named("max_pool_plain_cpu", "MaxPool", attrs_of(c), {&x}, {&y, nullptr, nullptr},
                       [&] { expect_close(y, expected.y, 0, 0, "y by lines"); });
      if (c.kernel.size() != 2 || large || !is_floating(dtype)) continue;
      run_op("MaxPool", attrs_of(c), {&x}, {&y, nullptr, nullptr},
             [&] { expect_close(y, expected.y, 0, 0, "y alone"); });
    }
}

TEST(MaxPool, FoldsChannelsOfBytes) {
  for (const WindowsCase& c : windows_cases())
    for (DType dtype : {DType::UInt8, DType::Int8}) {
      if (c.in.size() < 4 || c.in.size() > 5 || element_count(c.kernel) > 255) continue;
      SCOPED_TRACE(str(name_of(dtype), " ", ::testing::PrintToString(c.in)));
      Tensor x = Tensor::random(dtype, c.in, 7, dtype == DType::UInt8 ? 0 : -128, 127);
      const Sizes out = out_sizes(c);
      Tensor y(dtype, out), last(dtype, c.in, channels_last_strides(c.in));
      for (int64_t i = 0; i < x.count(); ++i) last.set(i, x.get(i));
      Tensor pooled(dtype, out, channels_last_strides(out));
      run_kernel_named("max_pool_plain_cpu", "MaxPool", attrs_of(c), {&x}, {&y, nullptr, nullptr},
                       [] {});
      if (!is_channels_last(last.layout()) || is_contiguous(last.layout())) continue;
      run_kernel_named("max_pool_bytes_cpu", "MaxPool", attrs_of(c), {&last},
                       {&pooled, nullptr, nullptr}, [&] { EXPECT_TRUE(pooled.same_bits(y)); });
    }
}

// --- volumes -------------------------------------------------------------------------------------
const std::vector<WindowsCase>& volume_cases() {
  static const std::vector<WindowsCase> cases = {
      {{2, 2, 5, 6, 4}, {2, 3, 2}, {1, 2, 2}, {0, 1, 1, 1, 0, 0}, {1, 1, 2}},
      {{1, 9, 3, 5, 4}, {2, 2, 3}, {1, 2, 1}, {1, 0, 1, 0, 1, 1}, {1, 1, 1}},
      {{2, 3, 7, 8, 9}, {3, 3, 3}, {2, 2, 2}, {1, 1, 1, 1, 1, 1}, {1, 1, 1}},
      {{1, 4, 6, 6, 6}, {2, 2, 2}, {2, 2, 2}, {0, 0, 0, 0, 0, 0}, {1, 1, 1}},
      {{1, 2, 7, 5, 8}, {2, 2, 2}, {2, 2, 3}, {0, 0, 0, 0, 0, 0}, {2, 1, 1}, true},
      {{1, 1, 6, 7, 6}, {6, 7, 6}, {1, 1, 1}, {0, 0, 0, 0, 0, 0}, {1, 1, 1}},
      {{0, 2, 4, 4, 4}, {2, 2, 2}, {2, 2, 2}, {0, 0, 0, 0, 0, 0}, {1, 1, 1}},
      {{1, 3, 2, 2, 2}, {1, 2, 1}, {1, 1, 1}, {0, 1, 0, 0, 3, 0}, {1, 1, 1}},     // padding alone
      {{1, 2, 33, 32, 35}, {2, 1, 2}, {2, 1, 2}, {0, 0, 0, 0, 0, 0}, {1, 1, 1}},  // 64 bits
  };
  return cases;
}

/// Values, indices in the volume and places in the window, and what the gradient `dy` becomes.
struct PooledVolumes {
  Expected largest;
  std::vector<double> dx;
};

PooledVolumes pool_volumes(const WindowsCase& c, const Tensor& x, const Tensor& dy) {
  PooledVolumes found;
  const int64_t volume = element_count(Sizes(c.in.begin() + 2, c.in.end()));
  const Sizes out = out_sizes(c);
  const int64_t windows = element_count(Sizes(out.begin() + 2, out.end()));
  found.dx.assign(static_cast<size_t>(x.count()), 0.0);
  for (int64_t i = 0; i < dy.count(); ++i) {
    double largest = -std::numeric_limits<double>::infinity();
    int64_t index = 0, best = 255;
    for_each_place(c, i % windows, [&](int64_t place, int64_t at, bool) {
      if (at < 0) return;
      const double value = x.get(i / windows * volume + at);
      if (!(value > largest || std::isnan(value) || best == 255)) return;
      largest = value, index = at, best = place;
    });
    found.largest.y.push_back(largest);
    found.largest.indices.push_back(static_cast<double>(index));
    found.largest.places.push_back(static_cast<double>(best));
    if (best != 255) found.dx[static_cast<size_t>(i / windows * volume + index)] += dy.get(i);
  }
  return found;
}

/// Kernels that take it, with operands in this layout.
void run_volumes(const std::string& op, const WindowsCase& c, bool row_major,
                 const std::vector<Tensor*>& in, const std::vector<Tensor*>& out,
                 const std::function<void()>& check) {
  const StepFacts facts = facts_of({node_of(op, attrs_of(c), in, out)}, in, out);
  for (const KernelDef* def : kernels_of(op)) {
    if (!def->dtypes.contains(in[0]->dtype())) continue;
    if (def->layout == LayoutRule::Contiguous && !row_major) continue;
    if (def->unsupported && def->unsupported(facts)) continue;
    SCOPED_TRACE(def->name);
    run_kernel(*def, facts, in, out);
    check();
  }
}

TEST(MaxPool, PoolsVolumes) {
  for (const WindowsCase& c : volume_cases())
    for (DType dtype : {DType::Float32, DType::Float64, DType::BFloat16, DType::Float16})
      for (const bool row_major : {true, false}) {
        SCOPED_TRACE(str(name_of(dtype), " ", ::testing::PrintToString(c.in), " by ",
                         ::testing::PrintToString(c.kernel), row_major ? "" : " channels-last"));
        const Sizes out = out_sizes(c);
        const auto strides = [&](const Sizes& sizes, bool contiguous) {
          return contiguous ? contiguous_strides(sizes) : channels_last_strides(sizes);
        };
        // Few different values: most windows hold the largest one several times.
        Tensor x(dtype, c.in, strides(c.in, row_major));
        const Tensor drawn = Tensor::random(DType::Int64, c.in, 7, -4, 4);
        for (int64_t i = 0; i < x.count(); ++i)
          x.set(i, i % 13 == 12 ? std::nan("") : drawn.get(i));
        Tensor dy = Tensor::random(dtype, out, 8, -2, 2, strides(out, row_major));
        const PooledVolumes expected = pool_volumes(c, x, dy);
        const bool counted = element_count(c.kernel) <= 255;
        Tensor y(dtype, out, strides(out, row_major)), dx(dtype, c.in, strides(c.in, row_major));
        Tensor indices(DType::Int64, out, strides(out, row_major));
        Tensor places(DType::UInt8, out, strides(out, row_major));
        run_volumes("MaxPool", c, row_major, {&x}, {&y, nullptr, nullptr},
                    [&] { expect_close(y, expected.largest.y, 0, 0, "y alone"); });
        if (!counted) continue;
        run_volumes("MaxPool", c, row_major, {&x}, {&y, &indices, &places}, [&] {
          expect_close(y, expected.largest.y, 0, 0, "y");
          expect_close(indices, expected.largest.indices, 0, 0, "indices");
          expect_close(places, expected.largest.places, 0, 0, "places");
        });
        run_volumes("MaxPoolGrad", c, row_major, {&dy, &places}, {&dx},
                    [&] { expect_close(dx, expected.dx, 8, 8, "dx"); });
        // The gradient in the other layout than the places.
        Tensor other(dtype, out, strides(out, !row_major)),
            moved(dtype, c.in, strides(c.in, !row_major));
        for (int64_t i = 0; i < dy.count(); ++i) other.set(i, dy.get(i));
        run_volumes("MaxPoolGrad", c, false, {&other, &places}, {&moved},
                    [&] { expect_close(moved, expected.dx, 8, 8, "dx in another layout"); });
      }
}

TEST(AveragePool, FollowsItsDefinition) {
  for (const WindowsCase& c : windows_cases())
    for (DType dtype : {DType::Float32, DType::Float64, DType::BFloat16, DType::Float16})
      for (int64_t with_padding : {0, 1}) {
        SCOPED_TRACE(str(name_of(dtype), " ", ::testing::PrintToString(c.in), " by ",
                         ::testing::PrintToString(c.kernel), " with padding: ", with_padding));
        Tensor x = Tensor::random(dtype, c.in, 7), y(dtype, out_sizes(c));
        if (x.count() > 0) x.set(x.count() / 2, std::nan(""));
        const int64_t plane = element_count(Sizes(c.in.begin() + 2, c.in.end()));
        const int64_t pixels = element_count(Sizes(y.sizes().begin() + 2, y.sizes().end()));
        std::vector<double> expected;
        for (int64_t i = 0; i < y.count(); ++i) {
          double sum = 0;
          int64_t count = 0;
          for_each_place(c, i % pixels, [&](int64_t, int64_t at, bool padding) {
            if (at >= 0) sum += x.get(i / pixels * plane + at);
            count += with_padding ? padding : at >= 0;
          });
          expected.push_back(count ? sum / static_cast<double>(count) : 0);
        }
        Attrs attrs = attrs_of(c);
        attrs.set("count_include_pad", with_padding);
        const double ulps = 4.0 + static_cast<double>(element_count(c.kernel));
        run_kernel_named("average_pool_cpu", "AveragePool", attrs, {&x}, {&y},
                         [&] { expect_close(y, expected, ulps, 1, "y"); });
        if (c.in.size() < 4 || c.in.size() > 5) continue;
        Tensor last(dtype, c.in, channels_last_strides(c.in));
        for (int64_t i = 0; i < x.count(); ++i) last.set(i, x.get(i));
        Tensor means(dtype, y.sizes(), channels_last_strides(y.sizes()));
        run_kernel_named("average_pool_cpu", "AveragePool", attrs, {&last}, {&means}, [&] {
          if (dtype == DType::Float32)  // which is added in another order
            expect_close(means, expected, ulps, 1, "channels-last");
          else
            EXPECT_TRUE(means.same_bits(y)) << "channels-last";
        });
      }
}

// A kernel that cannot take a window says so, rather than read beside it.
TEST(MaxPool, RefusesWhatItsIndicesCannotSay) {
  Tensor x = Tensor::random(DType::Float32, {1, 1, 20, 20}, 1), y(DType::Float32, {1, 1, 1, 1});
  Tensor indices(DType::Int64, {1, 1, 1, 1}), places(DType::UInt8, {1, 1, 1, 1});
  const WindowsCase c{{1, 1, 20, 20}, {20, 20}, {1, 1}, {0, 0, 0, 0}, {1, 1}};
  const StepFacts facts = facts_of({node_of("MaxPool", attrs_of(c), {&x}, {&y, &indices, &places})},
                                   {&x}, {&y, &indices, &places});
  std::string why;
  EXPECT_EQ(select_kernel("MaxPool", Device::CPU, facts, &why), nullptr);
  EXPECT_NE(why.find("does not fit a byte"), std::string::npos) << why;
}

}  // namespace
}  // namespace ortmodule::testing
