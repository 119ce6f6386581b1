// ConvInteger and ConvIntegerToFloat: for each image and group a product of w, shifted to be
// unsigned, with the matrix of the windows, shifted to be signed and packed where it is wanted, as
// in conv.cpp. With w' and x' the factors as they are multiplied and their zero points:
//   y[o, p] = sum w' x' - zw'[o] (window[p] - inner zx') - zx' row[o]
// where window and row are the sums of p's window and of w's row. Where a channel makes a few
// outputs only (depthwise), lines of outputs are sums of shifted lines of the channel.
#include <tuple>

#include "kernels/cpu/integer_copies.h"
#include "kernels/cpu/integer_finish.h"
#include "kernels/cpu/integer_product.h"
#include "kernels/cpu/patches.h"
#include "kernels/cpu/row_math.h"

namespace ortmodule {
inline namespace ORTM_ISA {
namespace {

using Product = IntegerProduct<IntegerDot>;
using Tile = IntegerTile<IntegerDot>;

constexpr uint8_t kSignBit = 0x80;
/// Multiplications worth waking a thread.
constexpr int64_t kGrain = 1 << 21;

struct IntegerConv {
  int64_t images = 0, groups = 1;
  int64_t channels = 0, outputs = 0;  // of a group
  PatchShape patches;
  uint8_t flip_x = 0;  // what makes x signed
  uint8_t flip_w = 0;  // what makes w unsigned
  bool scales = false;

  int64_t inner() const { return channels * patches.places; }
  bool depthwise() const { return channels == 1 && outputs <= 3; }
};

std::shared_ptr<const void> prepare(const StepFacts& facts) {
  const Layout &x = facts.inputs[0].layout, &w = facts.inputs[1].layout,
               &y = facts.outputs[0].layout;
  const Attrs& attrs = facts.node().attrs;
  const std::vector<int64_t> strides = attrs.integers("strides"), pads = attrs.integers("pads"),
                             dilations = attrs.integers("dilations");
  std::vector<PatchAxis> axes(x.sizes.size() - 2);
  for (size_t d = 0; d < axes.size(); ++d) {
    axes[d] = {x.sizes[d + 2], y.sizes[d + 2], strides[d], {}};
    for (int64_t k = 0; k < w.sizes[d + 2]; ++k)
      axes[d].offsets.push_back(k * dilations[d] - pads[d]);
  }
  auto conv = std::make_shared<IntegerConv>();
  conv->images = x.sizes[0];
  conv->groups = attrs.integer("group");
  conv->channels = w.sizes[1];
  conv->outputs = w.sizes[0] / conv->groups;
  conv->patches = PatchShape(std::move(axes));
  conv->scales = facts.node().op == "ConvIntegerToFloat";
  conv->flip_x = facts.inputs[0].dtype == DType::UInt8 ? kSignBit : 0;
  conv->flip_w = facts.inputs[1].dtype == DType::Int8 ? kSignBit : 0;
  return conv;
}

// A sum for each row of w.
size_t workspace_bytes(const StepFacts& facts) {
  return static_cast<size_t>(facts.inputs[1].layout.sizes[0]) * sizeof(int32_t);
}

Reason unsupported(const StepFacts& facts) {
  if (facts.inputs[0].layout.sizes.size() > kMostSpatial + 2)
    return str("it takes at most ", kMostSpatial, " spatial dimensions");
  return other_copy_runs(facts);
}

/// Operands beside x and w, by the step's op.
struct Places {
  int x_zero = 2, w_zero = 3, x_scale = -1, w_scale = -1, bias = -1, y_scale = -1, y_zero = -1;
  explicit Places(const IntegerConv& conv) {
    if (!conv.scales) return;
    std::tie(x_scale, w_scale, x_zero, w_zero, bias, y_scale, y_zero) =
        std::tuple(2, 3, 4, 5, 6, 7, 8);
  }
};

/// Zero points, and what becomes of the sums.
class Finish {
 public:
  Finish(const KernelArgs& args, const IntegerConv& conv, const Places& places)
      : x_zero_(args, places.x_zero),
        w_zero_(args, places.w_zero),
        x_scale_(args, places.x_scale),
        w_scale_(args, places.w_scale),
        bias_(args, places.bias),
        sums_(args.out[0].data),
        pixels_(conv.patches.pixels),
        results_(args, places.y_scale, places.y_zero) {}

  int32_t x_zero() const { return x_zero_.point(0); }
  int32_t w_zero(int64_t channel) const { return w_zero_.point(channel); }

  /// Writes the sums of outputs [first, first + count) of `plane`, an image's channel.
  void write(int64_t plane, int64_t channel, int64_t first, int64_t count, int32_t* sums) const {
    const int64_t at = plane * pixels_ + first;
    if (!x_scale_) {
      std::copy_n(sums, count, static_cast<int32_t*>(sums_) + at);
      return;
    }
    float real[kRowChunk];
    const float factor = x_scale_.number(0) * (w_scale_ ? w_scale_.number(channel) : 1.0f);
    const uint32_t integer = bias_.is_integer() ? bias_.integer(channel) : 0;
    const float bias = bias_ && !bias_.is_integer() ? bias_.number(channel) : 0.0f;
    const bool adds = bias_ && !bias_.is_integer();
    ORTM_SIMD
    for (int64_t j = 0; j < count; ++j)
      real[j] = static_cast<float>(static_cast<int32_t>(static_cast<uint32_t>(sums[j]) + integer)) *
                factor;
    if (adds) {  // -0 + 0 is another zero
      ORTM_SIMD
      for (int64_t j = 0; j < count; ++j) real[j] += bias;
    }
    results_.write(at, count, real);
  }

 private:
  Each x_zero_, w_zero_, x_scale_, w_scale_, bias_;
  void* sums_;
  int64_t pixels_;
  RealResults results_;
};

/// What the outputs of a segment see at one place of their windows: bytes of x, or `beside`.
void read_line(const PatchShape& s, const std::array<int64_t, kMostSpatial>& offsets,
               const PatchSegment& segment, const int8_t* image, int8_t beside, int8_t* to) {
  const size_t last = s.axes.size() - 1;
  int64_t line = 0;
  for (size_t d = 0; d < last; ++d) {
    const int64_t at = segment.outer[d] * s.axes[d].stride + offsets[d];
    if (at < 0 || at >= s.axes[d].in) {
      std::fill_n(to, segment.count, beside);
      return;
    }
    line = line * s.axes[d].in + at;
  }
  const PatchAxis& axis = s.axes[last];
  const int64_t end = segment.first + segment.count;
  const auto [begin, stop] = axis.inside(offsets[last], segment.first, end);
  to = std::fill_n(to, begin - segment.first, beside);
  const int8_t* from = image + line * axis.in + begin * axis.stride + offsets[last];
  for (int64_t i = 0; i < stop - begin; ++i) to[i] = from[i * axis.stride];
  std::fill_n(to + (stop - begin), end - stop, beside);
}

/// Packs the windows of a block of output pixels as pack_integer_panels does.
class WindowPacker {
 public:
  WindowPacker(const IntegerConv& conv, const int8_t* x, int8_t beside)
      : conv_(conv), x_(x), beside_(beside) {}

  void pack(int64_t first, int64_t inner, int64_t column, int64_t width, int8_t* to) const {
    const PatchShape& s = conv_.patches;
    const int64_t padded = padded_inner(inner);
    const auto flip = static_cast<int8_t>(conv_.flip_x);
    if (s.is_image())
      return pack_integer_panels<IntegerDot>(
          {x_ + first * s.in_pixels + column, inner, width, s.in_pixels, 1}, flip, padded, to);
    PatchSegment segments[Product::kMostColumns];
    int64_t count = 0;
    s.for_each_segment(column, width,
                       [&](const PatchSegment& segment) { segments[count++] = segment; });
    constexpr int64_t kGroup = IntegerDot::kGroup;
    alignas(64) int8_t lines[kGroup][Product::kMostColumns] = {};
    for (int64_t k = 0; k < padded; k += kGroup) {
      for (int64_t g = 0; g < kGroup; ++g) {
        if (k + g >= inner) {
          std::fill_n(lines[g], width, flip);  // zero, once it is flipped
          continue;
        }
        const int64_t row = first + k + g;
        const auto offsets = s.offsets_of(row % s.places);
        const int8_t* image = x_ + row / s.places * s.in_pixels;
        for (int64_t i = 0; i < count; ++i)
          read_line(s, offsets, segments[i], image, beside_, lines[g] + segments[i].begin);
      }
      int8_t* group = to + k * kIntegerPanel;
      for (int64_t j = 0; j < width; j += kIntegerPanel, group += padded * kIntegerPanel) {
        ORTM_UNROLL
        for (int64_t i = 0; i < kIntegerPanel; ++i) {
          ORTM_UNROLL
          for (int64_t g = 0; g < kGroup; ++g)
            group[i * kGroup + g] = static_cast<int8_t>(lines[g][j + i] ^ flip);
        }
      }
    }
  }

 private:
  const IntegerConv& conv_;
  const int8_t* x_;
  int8_t beside_;
};

/// One image and group.
struct Part {
  int64_t group = 0;
  const int8_t* x = nullptr;
  const uint8_t* w = nullptr;
  const int32_t* row_sums = nullptr;
  int64_t plane = 0;  // of the first output
};

void multiply_windows(const Finish& finish, const IntegerConv& conv, const Product& product,
                      const Part& part, int64_t begin, int64_t end) {
  alignas(64) int8_t panels[Product::kMostInner * Product::kMostColumns];
  alignas(64) int32_t windows[Product::kMostColumns] = {};
  alignas(64) Product::Left ones[Product::kMostInner];
  std::fill_n(ones, Product::kMostInner, Product::Left{1});
  const int64_t inner = conv.inner();
  const int32_t zx = finish.x_zero();
  const WindowPacker packer(conv, part.x, static_cast<int8_t>(zx));
  const auto left = [&](int64_t row, int64_t rows, int64_t first, int64_t count,
                        Product::Left* to) {
    pack_integer_rows<IntegerDot>({part.w + row * inner + first, rows, count, inner, 1},
                                  conv.flip_w, to);
  };
  const auto right = [&](int64_t first, int64_t count, int64_t column, int64_t width) {
    packer.pack(first, count, column, width, panels);
    const int64_t padded = padded_inner(count), panel_stride = padded * kIntegerPanel;
    Tile::multiply(ones, 1, panels, panel_stride, padded, width, windows, Product::kMostColumns,
                   first > 0);
    return std::pair(static_cast<const int8_t*>(panels), panel_stride);
  };
  const auto zx_shifted = static_cast<uint32_t>(zx - (conv.flip_x ? int32_t{kSignBit} : 0));
  const auto store = [&](int64_t row, int64_t rows, int64_t column, int64_t width, int32_t* sums,
                         int64_t stride) {
    for (int64_t r = 0; r < rows; ++r, sums += stride) {
      const int64_t output = row + r, channel = part.group * conv.outputs + output;
      const int32_t zw = finish.w_zero(channel);
      const auto zw_shifted = static_cast<uint32_t>(zw + (conv.flip_w ? int32_t{kSignBit} : 0));
      const uint32_t term = zx_shifted * (static_cast<uint32_t>(part.row_sums[output]) -
                                          static_cast<uint32_t>(inner) * zw_shifted);
      ORTM_SIMD
      for (int64_t j = 0; j < width; ++j)
        sums[j] = static_cast<int32_t>(static_cast<uint32_t>(sums[j]) -
                                       zw_shifted * static_cast<uint32_t>(windows[j]) - term);
      finish.write(part.plane + output, channel, column, width, sums);
    }
  };
  product.run(begin, end, left, right, store);
}

// --- depthwise -----------------------------------------------------------------------------------
template <class X>
void sum_places(const IntegerConv& conv, const X* image, const int32_t* factors, int32_t zx,
                int64_t begin, int64_t count, int32_t* y) {
  std::fill_n(y, count, 0);
  const int64_t stride = conv.patches.last().stride;
  for_each_place(conv.patches, image, begin, count,
                 [&](int64_t place, const X* from, int64_t at, int64_t n) {
                   const int32_t factor = factors[place];
                   int32_t* to = y + at;
                   if (stride == 1) {
                     ORTM_SIMD
                     for (int64_t i = 0; i < n; ++i) to[i] += factor * (from[i] - zx);
                   } else {
                     for (int64_t i = 0; i < n; ++i) to[i] += factor * (from[i * stride] - zx);
                   }
                 });
}

template <class X>
void convolve_depthwise(const Finish& finish, const IntegerConv& conv, const Part& part,
                        int64_t begin, int64_t end) {
  const PatchShape& s = conv.patches;
  const int64_t chunk = pixel_chunk(s), chunks = ceil_div(s.pixels, chunk);
  const int32_t zx = finish.x_zero();
  int32_t factors[kRowChunk], sums[kRowChunk];
  for (int64_t unit = begin; unit < end; ++unit) {
    const int64_t output = unit / chunks, first = unit % chunks * chunk;
    const int64_t count = std::min(chunk, s.pixels - first);
    const int64_t channel = part.group * conv.outputs + output;
    const int32_t zw = finish.w_zero(channel);
    const uint8_t* w = part.w + output * s.places;
    for (int64_t k = 0; k < s.places; ++k)
      factors[k] = (conv.flip_w ? static_cast<int8_t>(w[k]) : int32_t{w[k]}) - zw;
    sum_places(conv, reinterpret_cast<const X*>(part.x), factors, zx, first, count, sums);
    finish.write(part.plane + output, channel, first, count, sums);
  }
}

// --- the kernel ----------------------------------------------------------------------------------
int32_t* sum_rows(const KernelArgs& args, const IntegerConv& conv) {
  auto* sums = static_cast<int32_t*>(args.workspace);
  const int64_t inner = conv.inner();
  parallel_ranges(
      args.context, conv.groups * conv.outputs, grain_for(inner), [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row)
          sums[row] =
              integer_row_sum(args.in[1].as<uint8_t>() + row * inner, 1, inner, conv.flip_w);
      });
  return sums;
}

void conv_integer(const KernelArgs& args) {
  const auto& conv = *static_cast<const IntegerConv*>(args.prepared);
  const int64_t pixels = conv.patches.pixels, inner = conv.inner();
  if (conv.images * conv.groups * conv.outputs * pixels == 0) return;
  const bool depthwise = conv.depthwise() && conv.patches.places <= kRowChunk;
  const Product product(conv.outputs, pixels, inner);
  const int64_t units =
      depthwise ? conv.outputs * ceil_div(pixels, pixel_chunk(conv.patches)) : product.units();
  const int32_t* row_sums = sum_rows(args, conv);
  const Finish finish(args, conv, Places(conv));
  const int64_t each = std::max<int64_t>(1, ceil_div(conv.outputs * inner * pixels, units));
  const auto run = [&](int64_t i, int64_t begin, int64_t end) {
    Part part;
    part.group = i % conv.groups;
    part.x = args.in[0].as<int8_t>() + i * conv.channels * conv.patches.in_pixels;
    part.w = args.in[1].as<uint8_t>() + part.group * conv.outputs * inner;
    part.row_sums = row_sums + part.group * conv.outputs;
    part.plane = i * conv.outputs;
    if (!depthwise) return multiply_windows(finish, conv, product, part, begin, end);
    return conv.flip_x ? convolve_depthwise<uint8_t>(finish, conv, part, begin, end)
                       : convolve_depthwise<int8_t>(finish, conv, part, begin, end);
  };
  parallel_ranges(args.context, conv.images * conv.groups * units, ceil_div(kGrain, each),
                  [&](int64_t begin, int64_t end) {
                    while (begin < end) {
                      const int64_t i = begin / units, first = begin % units;
                      const int64_t count = std::min(units - first, end - begin);
                      run(i, first, first + count);
                      begin += count;
                    }
                  });
}

KernelDef conv_kernel(std::string_view op, std::string_view name) {
  return {.op = op,
          .name = name,
          .dtypes = {DType::Int8, DType::UInt8},
          .run = conv_integer,
          .unsupported = unsupported,
          .workspace_bytes = workspace_bytes,
          .prepare = prepare,
          .priority = kIntegerPriority};
}

REGISTER_CPU_KERNEL((conv_kernel("ConvInteger", "conv_integer_cpu")));
REGISTER_CPU_KERNEL((conv_kernel("ConvIntegerToFloat", "conv_integer_to_float_cpu")));

}  // namespace
}  // namespace ORTM_ISA
}  // namespace ortmodule
