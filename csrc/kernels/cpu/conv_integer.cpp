// ConvInteger and ConvIntegerToFloat: for each image and group a product of w with the matrix of
// the windows, whose panels are packed where they are wanted from an image with groups of channels
// beside each other (conv_integer_image.h). One factor is shifted to be unsigned, the other to be
// signed: the windows, or w where its rests are listed (conv_integer_weights.h). With w' and x' the
// factors as they are multiplied and their zero points:
//   y[o, p] = sum w' x' - zw'[o] (window[p] - inner zx') - zx' row[o]
// where window and row are the sums of p's window and of w's row. Where a channel makes a few
// outputs only (depthwise), lines of outputs are sums of shifted lines of the channel.
#include "kernels/cpu/conv_integer_lines.h"
#include "kernels/cpu/conv_integer_step.h"
#include "kernels/cpu/conv_integer_weights.h"
#include "kernels/cpu/integer_copies.h"
#include "kernels/cpu/integer_finish.h"
#include "kernels/cpu/row_math.h"

namespace ortmodule {
inline namespace ORTM_ISA {
namespace {

constexpr int64_t kMostColumns = IntegerProduct<IntegerDot>::kMostColumns;

/// Multiplications worth waking a thread.
constexpr int64_t kGrain = 1 << 21;

/// A step with its image as these kernels read it.
struct PlanarConv : IntegerConv {
  GroupedImage image;

  explicit PlanarConv(const StepFacts& facts) : IntegerConv(integer_conv_of(facts)) {
    if (inner() > 0) image = GroupedImage(patches);
  }
  bool depthwise() const { return channels == 1 && outputs <= 3 && patches.places <= kRowChunk; }
};

std::shared_ptr<const void> prepare(const StepFacts& facts) {
  return std::make_shared<const PlanarConv>(facts);
}

// Weights that are not packed, and the images.
size_t workspace_bytes(const StepFacts& facts) {
  const PlanarConv conv(facts);
  const int64_t image = conv.images * conv.groups * conv.image.pixels();
  if (conv.depthwise()) return static_cast<size_t>(image + ChannelWindows::kBytesBehind);
  return static_cast<size_t>(aligned(PackedRows::scratch_bytes(conv.weights)) +
                             (conv.packed ? 0 : aligned(conv.weights.bytes())) +
                             image * conv.weights.padded_channels());
}

Reason unsupported(const StepFacts& facts) {
  const Sizes& x = facts.inputs[0].layout.sizes;  // none before a plan
  if (x.size() > kMostSpatial + 2)
    return str("it takes at most ", kMostSpatial, " spatial dimensions");
  if (!x.empty() && PlanarConv(facts).image.pixels() > std::numeric_limits<int32_t>::max())
    return "the image has more than 2^31 pixels";
  if (is_marked_channels_last(facts) && facts.node().attrs.has("w_dims"))
    return "the weights are packed for a channels-last image";
  return other_copy_runs(facts);
}

Reason cannot_pack(const StepFacts& facts) {
  if (is_marked_channels_last(facts)) return "the weights are for a channels-last image";
  return other_copy_runs(facts);
}

/// Zero points, and what becomes of the sums.
class Finish {
 public:
  Finish(const KernelArgs& args, const PlanarConv& conv, const IntegerConvPlaces& places)
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
    const FloatVec factor(x_scale_.number(0) * (w_scale_ ? w_scale_.number(channel) : 1.0f));
    const IntLanes integers =
        static_cast<int32_t>(bias_.is_integer() ? bias_.integer(channel) : 0) - IntLanes{};
    const auto scaled = [&](int64_t j) { return floats_of(sums + j, integers) * factor; };
    if (!bias_ || bias_.is_integer()) return results_.write(at, count, scaled);
    const FloatVec bias(bias_.number(channel));  // not always: -0 + 0 is another zero
    results_.write(at, count, [&](int64_t j) { return scaled(j) + bias; });
  }

 private:
  Each x_zero_, w_zero_, x_scale_, w_scale_, bias_;
  void* sums_;
  int64_t pixels_;
  RealResults results_;
};

/// Which factor is signed.
struct Signs {
  uint8_t flip_x = 0, flip_w = 0;    // what makes them so
  int32_t shift_x = 0, shift_w = 0;  // what it adds to their numbers
  bool any_w_zero = false;           // zero points of w are not all 0 then

  Signs(const PlanarConv& conv, const Finish& finish, bool w_is_signed) {
    if (conv.unsigned_x != w_is_signed) {
      flip_x = kSignBit;
      shift_x = w_is_signed ? kSignBit : -kSignBit;
    }
    if (conv.signed_w != w_is_signed) {
      flip_w = kSignBit;
      shift_w = w_is_signed ? -kSignBit : kSignBit;
    }
    for (int64_t i = 0; i < conv.groups * conv.outputs; ++i)
      any_w_zero = any_w_zero || finish.w_zero(i) + shift_w != 0;
  }
};

/// One image and group.
struct Part {
  int64_t group = 0;
  const int8_t* x = nullptr;  // the grouped image
  int64_t plane = 0;          // of the first output
};

/// Products of blocks of windows, for one of the ways to multiply.
template <class Dot>
class WindowProduct {
 public:
  using Product = IntegerProduct<Dot>;
  using Tile = IntegerTile<Dot>;

  WindowProduct(const Finish& finish, const PlanarConv& conv, const Signs& signs,
                const PackedRows& rows, const Part& part)
      : finish_(finish),
        conv_(conv),
        signs_(signs),
        rows_(rows),
        part_(part),
        product_(conv.outputs, conv.patches.pixels, conv.weights.inner()) {}

  void run(int64_t begin, int64_t end) const {
    alignas(64) int8_t panels[Product::kMostInner * kMostColumns];
    alignas(64) int32_t windows[kMostColumns] = {};
    alignas(64) typename Product::Left ones[Product::kMostInner];
    typename Tile::Rows ones_row;
    std::fill_n(ones, Product::kMostInner, typename Product::Left{1});
    WindowPanels<Dot::kGroup, kMostColumns> packer(conv_.image, conv_.patches, part_.x);
    const auto right = [&](int64_t first, int64_t count, int64_t column, int64_t width) {
      if (first == 0) packer.take_block(column, width);
      const int64_t padded = padded_inner(count), panel_stride = padded * kIntegerPanel;
      packer.pack(first, count, padded, panels);
      if (signs_.any_w_zero) {
        ones_row.set(ones, 0, 1, padded);
        Tile::multiply(ones_row, 1, panels, panel_stride, width, windows, kMostColumns, first > 0);
      }
      return std::pair(static_cast<const int8_t*>(panels), panel_stride);
    };
    const auto store = [&](int64_t row, int64_t rows, int64_t column, int64_t width, int32_t* sums,
                           int64_t stride) {
      for (int64_t r = 0; r < rows; ++r, sums += stride)
        write(row + r, column, width, windows, sums);
    };
    if constexpr (std::is_same_v<Dot, IntegerDot>)
      product_.run(begin, end, left_part(), right, store);
    else
      product_.run(begin, end, left_part(), right, store, rests_part(panels));
  }

 private:
  int64_t first_row() const { return part_.group * conv_.outputs; }

  auto left_part() const {
    return [this](int64_t row, int64_t rows, int64_t first, int64_t count,
                  typename Product::Left* to, typename Tile::Rows& part) {
      pack_integer_rows<Dot>(
          {rows_.row(first_row() + row) + first, rows, count, rows_.row_bytes(), 1}, 0, to, part);
    };
  }

  auto rests_part(const int8_t* panels) const {
    return [this, panels](const auto&, int64_t row, int64_t rows, int64_t first, int64_t,
                          int64_t columns, int32_t* sums, int64_t stride) {
      const int64_t inner = conv_.weights.inner();
      const int64_t count = std::min(Product::piece_of(inner), inner - first);
      rows_.add_rests(first_row() + row, rows, first, count, panels,
                      padded_inner(count) * kIntegerPanel, columns, sums, stride);
    };
  }

  /// Takes the zero points off the sums of an output and writes them.
  void write(int64_t output, int64_t column, int64_t width, const int32_t* windows,
             int32_t* sums) const {
    const int64_t channel = first_row() + output;
    const auto zx = static_cast<uint32_t>(finish_.x_zero() + signs_.shift_x);
    const auto zw = static_cast<uint32_t>(finish_.w_zero(channel) + signs_.shift_w);
    const uint32_t term = zx * (static_cast<uint32_t>(rows_.sum(channel)) -
                                static_cast<uint32_t>(conv_.inner()) * zw);
    if (zw == 0) {
      ORTM_SIMD
      for (int64_t j = 0; j < width; ++j)
        sums[j] = static_cast<int32_t>(static_cast<uint32_t>(sums[j]) - term);
    } else {
      ORTM_SIMD
      for (int64_t j = 0; j < width; ++j)
        sums[j] = static_cast<int32_t>(static_cast<uint32_t>(sums[j]) -
                                       zw * static_cast<uint32_t>(windows[j]) - term);
    }
    finish_.write(part_.plane + output, channel, column, width, sums);
  }

  const Finish& finish_;
  const PlanarConv& conv_;
  const Signs& signs_;
  const PackedRows& rows_;
  const Part& part_;
  Product product_;
};

// --- depthwise -----------------------------------------------------------------------------------
void convolve_depthwise(const Finish& finish, const PlanarConv& conv, const Part& part,
                        const uint8_t* weights, int64_t begin, int64_t end) {
  const PatchShape& s = conv.patches;
  const int64_t chunk = pixel_chunk(s), chunks = ceil_div(s.pixels, chunk);
  ChannelWindows windows(conv.image, s);
  int32_t factors[kRowChunk], sums[kRowChunk + ChannelWindows::kSumsBehind];
  const int32_t x_zero = finish.x_zero() + (conv.unsigned_x ? 0 : kSignBit);
  const auto* pixels = reinterpret_cast<const uint8_t*>(part.x);
  int64_t known = -1;
  for (int64_t unit = begin; unit < end; ++unit) {
    const int64_t output = unit / chunks, first = unit % chunks * chunk;
    const int64_t count = std::min(chunk, s.pixels - first);
    const int64_t channel = part.group * conv.outputs + output;
    if (std::exchange(known, output) != output) {
      const int32_t zw = finish.w_zero(channel);
      const uint8_t* w = weights + channel * s.places;
      for (int64_t k = 0; k < s.places; ++k)
        factors[k] = (conv.signed_w ? static_cast<int8_t>(w[k]) : int32_t{w[k]}) - zw;
      windows.take_weights(factors, x_zero);
    }
    windows.sum(pixels, first, count, sums);
    finish.write(part.plane + output, channel, first, count, sums);
  }
}

// --- the kernel ----------------------------------------------------------------------------------
class ConvRun {
 public:
  ConvRun(const KernelArgs& args, const PlanarConv& conv)
      : args_(args), conv_(conv), finish_(args, conv, IntegerConvPlaces(conv)) {}

  void run() const {
    const PatchShape& s = conv_.patches;
    if (conv_.images * conv_.groups * conv_.outputs * s.pixels == 0) return;
    if (conv_.depthwise()) return convolve_channels();
    auto* memory = static_cast<std::byte*>(args_.workspace);
    void* scratch = memory;
    memory += aligned(PackedRows::scratch_bytes(conv_.weights));
    PackedRows rows(conv_.weights,
                    conv_.packed ? static_cast<std::byte*>(args_.in[1].data) : memory, scratch);
    if (conv_.packed) {
      rows.find_rests();
    } else {
      rows.pack(args_.context, weights(), conv_.signed_w);
      memory += aligned(conv_.weights.bytes());
    }
    auto* images = reinterpret_cast<int8_t*>(memory);
#if defined(ORTM_INTEGER_RESTS)
    if (rows.together() == 2) return multiply<TurnedFoursDot>(rows, images);
    if (rows.together() == 1) return multiply<TurnedPairsDot>(rows, images);
#endif
    multiply<IntegerDot>(rows, images);
  }

 private:
  const uint8_t* weights() const { return args_.in[1].as<uint8_t>(); }
  /// The channels of a group of an image.
  const int8_t* x(int64_t i) const {
    return args_.in[0].as<int8_t>() + i * conv_.channels * conv_.patches.in_pixels;
  }

  void convolve_channels() const {
    auto* images = static_cast<int8_t*>(args_.workspace);
    group_channels<1>(conv_.unsigned_x ? 0 : kSignBit, images);
    const int64_t units =
        conv_.outputs * ceil_div(conv_.patches.pixels, pixel_chunk(conv_.patches));
    for_each_part(units, images, conv_.image.pixels(),
                  [&](const Part& part, int64_t begin, int64_t end) {
                    convolve_depthwise(finish_, conv_, part, weights(), begin, end);
                  });
  }

  template <class Dot>
  void multiply(const PackedRows& rows, int8_t* images) const {
    using Parts = WindowProduct<Dot>;
    const Signs signs(conv_, finish_, !std::is_same_v<Dot, IntegerDot>);
    group_channels<Dot::kGroup>(signs.flip_x, images);
    const int64_t image_bytes = conv_.weights.padded_channels() * conv_.image.pixels();
    const typename Parts::Product product(conv_.outputs, conv_.patches.pixels,
                                          conv_.weights.inner());
    for_each_part(product.units(), images, image_bytes,
                  [&](const Part& part, int64_t begin, int64_t end) {
                    Parts(finish_, conv_, signs, rows, part).run(begin, end);
                  });
  }

  template <int64_t kGroup>
  void group_channels(uint8_t flip_x, int8_t* images) const {
    const GroupedImage& image = conv_.image;
    const int64_t channels = kGroup == 1 ? conv_.channels : conv_.weights.padded_channels();
    const int64_t groups = channels / kGroup;
    const auto flip = static_cast<int8_t>(flip_x);
    const auto beside = static_cast<int8_t>(finish_.x_zero() ^ flip_x);
    parallel_ranges(args_.context, conv_.images * conv_.groups * groups,
                    grain_for(image.pixels() * kGroup), [&](int64_t begin, int64_t end) {
                      for (int64_t unit = begin; unit < end; ++unit) {
                        const int64_t part = unit / groups, group = unit % groups;
                        const int64_t first = std::min(group * kGroup, conv_.channels);
                        const int64_t count = std::min(kGroup, conv_.channels - first);
                        const int64_t in_pixels = conv_.patches.in_pixels;
                        image.write<kGroup>(x(part) + first * in_pixels, count, in_pixels, flip,
                                            beside, images + unit * image.pixels() * kGroup);
                      }
                    });
  }

  /// body(part, begin, end) for `units` units of each image and group, whose grouped images are
  /// `image_bytes` apart.
  template <class Body>
  void for_each_part(int64_t units, const int8_t* images, int64_t image_bytes,
                     const Body& body) const {
    const int64_t multiplications = conv_.outputs * conv_.inner() * conv_.patches.pixels;
    const int64_t each = std::max<int64_t>(1, ceil_div(multiplications, units));
    parallel_ranges(args_.context, conv_.images * conv_.groups * units, ceil_div(kGrain, each),
                    [&](int64_t begin, int64_t end) {
                      while (begin < end) {
                        const int64_t i = begin / units, first = begin % units;
                        const int64_t count = std::min(units - first, end - begin);
                        Part part;
                        part.group = i % conv_.groups;
                        part.x = images + i * image_bytes;
                        part.plane = i * conv_.outputs;
                        body(part, first, first + count);
                        begin += count;
                      }
                    });
  }

  const KernelArgs& args_;
  const PlanarConv& conv_;
  Finish finish_;
};

void conv_integer(const KernelArgs& args) {
  ConvRun(args, *static_cast<const PlanarConv*>(args.prepared)).run();
}

size_t packing_workspace_bytes(const StepFacts& facts) {
  const Sizes& w = facts.inputs[0].layout.sizes;
  return static_cast<size_t>(PackedRows::scratch_bytes(integer_weights_of(w)));
}

void pack_weights(const KernelArgs& args) {
  const TensorView& w = args.in[0];
  PackedRows rows(integer_weights_of(args.facts.inputs[0].layout.sizes),
                  static_cast<std::byte*>(args.out[0].data), args.workspace);
  rows.pack(args.context, w.as<uint8_t>(), w.dtype == DType::Int8);
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
REGISTER_CPU_KERNEL({.op = "PackIntegerConvWeights",
                     .name = "pack_integer_conv_weights_cpu",
                     .dtypes = {DType::Int8, DType::UInt8},
                     .run = pack_weights,
                     .unsupported = cannot_pack,
                     .workspace_bytes = packing_workspace_bytes,
                     .priority = kIntegerPriority});

}  // namespace
}  // namespace ORTM_ISA
}  // namespace ortmodule
