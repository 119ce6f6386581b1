// ConvInteger and ConvIntegerToFloat of channels-last images, [N, H, W, C] in memory, which
// prefer_channels_last marked: y is channels-last, too. A product of the windows, whose rows are
// copied a few at a time, with the weights as MatMulInteger packs its right factor; with x' and w'
// the factors as they are multiplied and their zero points:
//   y[p, o] = sum x' w' - zx' (column[o] - inner zw'[o]) - zw'[o] window[p]
// where column and window are sums of w' and x'. Where each channel makes one output (depthwise),
// sums of many channels are made at once.
#include <cstring>

#include "kernels/cpu/conv_integer_channels.h"
#include "kernels/cpu/conv_integer_step.h"
#include "kernels/cpu/conv_shape.h"
#include "kernels/cpu/integer_copies.h"
#include "kernels/cpu/integer_finish.h"
#include "kernels/cpu/integer_matrix.h"

namespace ortmodule {
inline namespace ORTM_ISA {
namespace {

/// Multiplications worth waking a thread.
constexpr int64_t kGrain = 1 << 21;
/// Of the sums of a unit, which are written from the first-level cache.
constexpr int64_t kSumBytes = 16 << 10;

/// Bytes of scratch memory that packing takes.
int64_t packing_scratch_bytes(const IntegerConv& conv) {
  return conv.patches.places == 1 ? 0 : conv.outputs * conv.inner();
}

/// Operands, and parts of the workspace in bytes.
struct PixelConv : IntegerConv {
  Layout x;             // as it is multiplied
  bool copies = false;  // x is not channels-last and is copied first

  explicit PixelConv(const StepFacts& facts) : IntegerConv(integer_conv_of(facts)) {
    x = facts.inputs[0].layout;
    copies = !has_pixels(x);
    if (!copies) return;
    const Sizes& s = x.sizes;
    x.strides = {s[1] * s[2] * s[3], 1, s[1] * s[3], s[1]};
  }

  bool by_channel() const { return channels == 1 && outputs == 1; }
  int64_t all_outputs() const { return groups * outputs; }
  int64_t all_pixels() const { return images * patches.pixels; }

  int64_t matrix_bytes() const { return integer_panel_bytes(inner(), outputs); }
  /// Of pixels beside the image, of which a line of a window reads as many as it has places.
  int64_t beside_bytes() const {
    return aligned(groups * channels * patches.last().places() + kAlignment);
  }
  int64_t terms_bytes() const { return aligned(all_outputs() * 4) + kAlignment; }
  int64_t image_bytes() const { return copies ? aligned(element_count(x.sizes)) : 0; }
  int64_t given_weight_bytes() const { return aligned(all_outputs() * inner() * 4); }
  int64_t weight_bytes() const {
    if (by_channel())
      return given_weight_bytes() + aligned(ChannelSums::weight_bytes(groups, patches.places));
    return packed ? 0 : aligned(groups * matrix_bytes()) + aligned(packing_scratch_bytes(*this));
  }
};

std::shared_ptr<const void> prepare(const StepFacts& facts) {
  return std::make_shared<const PixelConv>(facts);
}

size_t workspace_bytes(const StepFacts& facts) {
  const PixelConv conv(facts);
  return static_cast<size_t>(conv.beside_bytes() + 3 * conv.terms_bytes() + conv.image_bytes() +
                             conv.weight_bytes());
}

Reason unsupported(const StepFacts& facts) {
  if (!is_marked_channels_last(facts)) return "the convolution is not marked as channels-last";
  return other_copy_runs(facts);
}

/// Reorders the weights of outputs, [channels, places] each, to [places, channels].
void move_channels_last(const int8_t* from, int64_t outputs, int64_t channels, int64_t places,
                        int8_t* to) {
  for (int64_t o = 0; o < outputs; ++o, from += channels * places)
    for (int64_t place = 0; place < places; ++place, to += channels) {
      int64_t c = 0;
      for (; c + 8 <= channels; c += 8) {  // stored at once
        uint64_t eight = 0;
        ORTM_UNROLL
        for (int64_t i = 0; i < 8; ++i)
          eight |= uint64_t{static_cast<uint8_t>(from[(c + i) * places + place])} << (8 * i);
        std::memcpy(to + c, &eight, sizeof(eight));
      }
      for (; c < channels; ++c) to[c] = from[c * places + place];
    }
}

/// Packs the weights of each group; `scratch` has packing_scratch_bytes().
void pack_groups(const KernelContext& context, const int8_t* w, const IntegerConv& conv,
                 int8_t* scratch, int8_t* to) {
  const int64_t outputs = conv.outputs, inner = conv.inner(), places = conv.patches.places;
  const auto flip = static_cast<int8_t>(conv.signed_w ? 0 : kSignBit);
  for (int64_t group = 0; group < conv.groups; ++group) {
    const int8_t* rows = w + group * outputs * inner;
    if (places > 1) {
      parallel_ranges(context, outputs, grain_for(inner), [&](int64_t begin, int64_t end) {
        move_channels_last(rows + begin * inner, end - begin, conv.channels, places,
                           scratch + begin * inner);
      });
      rows = scratch;
    }
    pack_integer_matrix(context, {rows, inner, outputs, 1, inner}, flip,
                        to + group * integer_panel_bytes(inner, outputs));
  }
}

/// The windows of output pixels, in the order of the weights: places, and channels of the group.
class Windows {
 public:
  /// `beside`: pixels of what lies around the image.
  Windows(const PixelConv& conv, const uint8_t* x, const uint8_t* beside)
      : conv_(conv),
        x_(x),
        beside_(beside),
        rows_(conv.patches.axes[0]),
        line_(conv.patches.axes[1]) {
    const Sizes& strides = conv.x.strides;
    image_stride_ = strides[0];
    row_stride_ = strides[2];
    pixel_stride_ = strides[3];
    for (const int64_t row : rows_.offsets)
      for (const int64_t column : line_.offsets)
        offsets_.push_back(row * row_stride_ + column * pixel_stride_);
    bool in_turn = pixel_stride_ == conv.channels;
    for (size_t k = 1; k < line_.offsets.size(); ++k)
      in_turn = in_turn && line_.offsets[k] == line_.offsets[k - 1] + 1;
    lines_are_runs_ = in_turn;
    is_image_ = conv.patches.is_image() && row_stride_ == line_.in * pixel_stride_ &&
                (conv.images == 1 || image_stride_ == rows_.in * row_stride_);
  }

  /// Copies places [first, first + count) of the window of `pixel`, xor `flip`.
  template <class Left>
  void copy(int64_t pixel, int64_t group, int64_t first, int64_t count, uint8_t flip,
            Left* to) const {
    if (is_image_) {
      copy_bytes(x_ + pixel * pixel_stride_ + group * conv_.channels + first, count, to);
      return flip_bytes(flip, count, to);
    }
    const At at = at_of(pixel);
    const int64_t channels = conv_.channels, line = line_.places();
    if (!lines_are_runs_ && channels <= kFewChannels && first % channels == 0 &&
        count % channels == 0 && sees(at)) {
      const uint8_t* from = place_of(at) + group * channels;
      const int64_t* offset = offsets_.data() + first / channels;
      for (int64_t k = 0; k < count; k += channels) copy_bytes(from + *offset++, channels, to + k);
      return flip_bytes(flip, count, to);
    }
    const bool is_run = lines_are_runs_ && sees_inside(line_, at.column);
    const int64_t run = is_run ? line * channels : channels;  // that lies together
    for (int64_t k = first, end = first + count; k < end;) {
      const int64_t skipped = k % run, length = std::min(run - skipped, end - k);
      const int64_t place = k / run * (is_run ? line : 1);
      const uint8_t* from = pixel_at(at, place / line, place % line) + group * channels + skipped;
      copy_bytes(from, length, to);
      to += length;
      k += length;
    }
    flip_bytes(flip, count, to - count);
  }

  /// Where the pixels of all places lie.
  void find(int64_t pixel, const uint8_t** places) const {
    const At at = at_of(pixel);
    if (sees(at)) {
      for (const int64_t offset : offsets_) *places++ = place_of(at) + offset;
      return;
    }
    for (int64_t i = 0; i < rows_.places(); ++i)
      for (int64_t j = 0; j < line_.places(); ++j) *places++ = pixel_at(at, i, j);
  }

 private:
  template <class Left>
  static void copy_bytes(const uint8_t* from, int64_t count, Left* to) {
    if constexpr (sizeof(Left) == 1) {
      if (count > kFewChannels) {
        std::memcpy(to, from, static_cast<size_t>(count));
        return;
      }
      // The channels of a small group, for which a call would take longer.
      for (; count >= 16; count -= 16, from += 16, to += 16) std::memcpy(to, from, 16);
      for (; count >= 8; count -= 8, from += 8, to += 8) std::memcpy(to, from, 8);
    }
    for (int64_t i = 0; i < count; ++i) to[i] = from[i];
  }

  template <class Left>
  static void flip_bytes(uint8_t flip, int64_t count, Left* bytes) {
    if (flip == 0) return;
    for (int64_t i = 0; i < count; ++i) bytes[i] = static_cast<Left>(bytes[i] ^ flip);
  }

  /// What the first place of an unpadded window sees.
  struct At {
    const uint8_t* image;
    int64_t row, column;
  };

  static constexpr int64_t kFewChannels = 64;  // of a group

  static bool sees_inside(const PatchAxis& axis, int64_t at) {
    return at + axis.offsets.front() >= 0 && at + axis.offsets.back() < axis.in;
  }

  /// Whether all places of a window are in the image.
  bool sees(const At& at) const {
    return sees_inside(rows_, at.row) && sees_inside(line_, at.column);
  }
  const uint8_t* place_of(const At& at) const {
    return at.image + at.row * row_stride_ + at.column * pixel_stride_;
  }

  At at_of(int64_t pixel) const {
    const int64_t image = pixel / conv_.patches.pixels, rest = pixel % conv_.patches.pixels;
    return {x_ + image * image_stride_, rest / line_.out * rows_.stride,
            rest % line_.out * line_.stride};
  }

  const uint8_t* pixel_at(const At& at, int64_t i, int64_t j) const {
    const int64_t row = at.row + rows_.offsets[static_cast<size_t>(i)];
    const int64_t column = at.column + line_.offsets[static_cast<size_t>(j)];
    if (row < 0 || row >= rows_.in || column < 0 || column >= line_.in) return beside_;
    return at.image + row * row_stride_ + column * pixel_stride_;
  }

  const PixelConv& conv_;
  const uint8_t *x_, *beside_;
  const PatchAxis &rows_, &line_;
  int64_t image_stride_, row_stride_, pixel_stride_;
  std::vector<int64_t> offsets_;  // of places
  bool lines_are_runs_ = false;
  bool is_image_ = false;  // windows are pixels, which lie in turn
};

/// What becomes of the sums.
class Finish {
 public:
  Finish(const KernelArgs& args, const PixelConv& conv, const IntegerConvPlaces& places,
         std::byte* memory)
      : conv_(conv),
        x_zero_(args, places.x_zero),
        w_zero_(args, places.w_zero),
        x_scale_(args, places.x_scale),
        w_scale_(args, places.w_scale),
        bias_(args, places.bias),
        terms_(reinterpret_cast<uint32_t*>(memory)),
        factors_(reinterpret_cast<float*>(memory + conv.terms_bytes())),
        biases_(reinterpret_cast<float*>(memory + 2 * conv.terms_bytes())),
        sums_(args.out[0].as<int32_t>()),
        results_(args, places.y_scale, places.y_zero) {
    adds_ = bias_ && !bias_.is_integer();
    for (int64_t o = 0; o < conv.all_outputs() && x_scale_; ++o) {
      factors_[o] = x_scale_.number(0) * (w_scale_ ? w_scale_.number(o) : 1.0f);
      if (adds_) biases_[o] = bias_.number(o);
    }
  }

  int32_t x_byte() const { return x_zero_.point(0); }
  int32_t x_zero() const { return x_byte() + (conv_.unsigned_x ? 0 : kSignBit); }
  /// As it is multiplied in products.
  int32_t w_zero(int64_t o) const { return w_zero_.point(o) - (conv_.signed_w ? 0 : kSignBit); }
  int32_t given_w_zero(int64_t o) const { return w_zero_.point(o); }

  /// Takes the sum of an output's weights, less their zero points.
  void take_weights(int64_t o, uint32_t sum) {
    const uint32_t integer = bias_ && bias_.is_integer() ? bias_.integer(o) : 0;
    terms_[o] = integer - static_cast<uint32_t>(x_zero()) * sum;
  }

  /// Writes sums of outputs [output, output + count) of `pixels` pixels, which are `stride` apart.
  /// Up to 15 behind them are read.
  void write(int64_t pixel, int64_t pixels, int64_t output, int64_t count, const int32_t* sums,
             int64_t stride) const {
    const int64_t step = conv_.all_outputs(), at = pixel * step + output;
    const uint32_t* terms = terms_ + output;
    if (!x_scale_) {
      for (int64_t p = 0; p < pixels; ++p)
        for (int64_t j = 0; j < count; ++j)
          sums_[at + p * step + j] =
              static_cast<int32_t>(static_cast<uint32_t>(sums[p * stride + j]) + terms[j]);
      return;
    }
    const SumScales scales{sums, stride, reinterpret_cast<const int32_t*>(terms), factors_ + output,
                           adds_ ? biases_ + output : nullptr};
    scales.write(results_, at, pixels, step, count);
  }

 private:
  const PixelConv& conv_;
  Each x_zero_, w_zero_, x_scale_, w_scale_, bias_;
  uint32_t* terms_;
  float *factors_, *biases_;
  int32_t* sums_;
  bool adds_ = false;
  RealResults results_;
};

class PixelRun {
 public:
  PixelRun(const KernelArgs& args, const PixelConv& conv)
      : args_(args),
        conv_(conv),
        memory_(static_cast<std::byte*>(args.workspace)),
        finish_(args, conv, IntegerConvPlaces(conv), memory_ + conv.beside_bytes()) {}

  void run() {
    const int64_t behind = conv_.beside_bytes() + 3 * conv_.terms_bytes();
    auto* beside = reinterpret_cast<uint8_t*>(memory_);
    std::fill_n(beside, conv_.beside_bytes(), static_cast<uint8_t>(finish_.x_byte()));
    const auto* x = args_.in[0].as<uint8_t>();
    if (conv_.copies) x = copied_image(reinterpret_cast<uint8_t*>(memory_ + behind));
    const Windows windows(conv_, x, beside);
    std::byte* weights = memory_ + behind + conv_.image_bytes();
    if (conv_.by_channel()) return sum_channels(windows, weights);
    const auto* packed = args_.in[1].as<int8_t>();
    if (!conv_.packed) {
      auto* to = reinterpret_cast<int8_t*>(weights);
      pack_groups(args_.context, packed, conv_, to + aligned(conv_.groups * conv_.matrix_bytes()),
                  to);
      packed = to;
    }
    multiply_groups(windows, packed);
  }

 private:
  uint8_t flip() const { return conv_.unsigned_x ? 0 : kSignBit; }

  uint8_t* copied_image(uint8_t* to) const {
    const TensorView& x = args_.in[0];
    const int64_t pixels = x.sizes[2] * x.sizes[3], channels = x.sizes[1];
    const auto* from = x.as<uint8_t>();
    for (int64_t n = 0; n < x.sizes[0]; ++n)
      for (int64_t p = 0; p < pixels; ++p)
        for (int64_t c = 0; c < channels; ++c)
          to[(n * pixels + p) * channels + c] =
              from[n * x.strides[0] + c * x.strides[1] + p / x.sizes[3] * x.strides[2] +
                   p % x.sizes[3] * x.strides[3]];
    return to;
  }

  // --- products ----------------------------------------------------------------------------------
  void multiply_groups(const Windows& windows, const int8_t* packed) {
    for (int64_t group = 0; group < conv_.groups; ++group) {
      const int8_t* matrix = packed + group * conv_.matrix_bytes();
      bool has_zeros = false;
      const auto* sums = reinterpret_cast<const uint32_t*>(
          matrix + padded_columns(conv_.outputs) * padded_inner(conv_.inner()));
      for (int64_t j = 0; j < conv_.outputs; ++j) {
        const int64_t o = group * conv_.outputs + j;
        const auto zero = static_cast<uint32_t>(finish_.w_zero(o));
        has_zeros = has_zeros || zero != 0;
        finish_.take_weights(o, sums[j] - static_cast<uint32_t>(conv_.inner()) * zero);
      }
      const WeightRests rests(matrix, conv_.inner(), conv_.outputs,
                              IntegerProduct<IntegerDot>::piece_of(conv_.inner()));
#if defined(ORTM_INTEGER_RESTS)
      if (rests.together() == 2) {
        multiply<FoursDot>(windows, group, matrix, has_zeros, rests);
        continue;
      }
      if (rests.together() == 1) {
        multiply<PairsDot>(windows, group, matrix, has_zeros, rests);
        continue;
      }
#endif
      multiply<IntegerDot>(windows, group, matrix, has_zeros, rests);
    }
  }

  template <class Dot>
  void multiply(const Windows& windows, int64_t group, const int8_t* matrix, bool has_zeros,
                const WeightRests& rests) const {
    const int64_t inner = padded_inner(conv_.inner());
    const IntegerProduct<Dot> product(conv_.all_pixels(), conv_.outputs, conv_.inner(), kSumBytes);
    const auto left = [&](int64_t row, int64_t rows, int64_t first, int64_t count,
                          typename Dot::Left* to) {
      for (int64_t r = 0; r < rows; ++r, to += IntegerTile<Dot>::kLeftStride) {
        windows.copy(row + r, group, first, count, flip(), to);
        std::fill(to + count, to + padded_inner(count), typename Dot::Left{0});
      }
    };
    const auto right = [&](int64_t first, int64_t, int64_t column, int64_t) {
      return std::pair(matrix + column * inner + first * kIntegerPanel, inner * kIntegerPanel);
    };
    const auto store = [&](int64_t row, int64_t rows, int64_t column, int64_t columns,
                           int32_t* sums, int64_t stride) {
      const int64_t output = group * conv_.outputs + column;
      for (int64_t r = 0; r < rows && has_zeros; ++r)
        take_off_zeros(windows, row + r, group, output, columns, sums + r * stride);
      finish_.write(row, rows, output, columns, sums, stride);
    };
    const int64_t each = std::max<int64_t>(1, conv_.all_pixels() * conv_.outputs * conv_.inner() /
                                                  std::max<int64_t>(product.units(), 1));
    parallel_ranges(args_.context, product.units(), ceil_div(kGrain, each),
                    [&](int64_t begin, int64_t end) {
                      if constexpr (std::is_same_v<Dot, IntegerDot>)
                        product.run(begin, end, left, right, store);
                      else
                        product.run(begin, end, left, right, store,
                                    [&](const auto&... part) { rests.template add<Dot>(part...); });
                    });
  }

  void take_off_zeros(const Windows& windows, int64_t pixel, int64_t group, int64_t output,
                      int64_t columns, int32_t* sums) const {
    constexpr int64_t kPart = 256;
    uint8_t part[kPart];
    uint32_t window = 0;
    for (int64_t first = 0; first < conv_.inner(); first += kPart) {
      const int64_t count = std::min(kPart, conv_.inner() - first);
      windows.copy(pixel, group, first, count, flip(), part);
      for (int64_t i = 0; i < count; ++i) window += part[i];
    }
    for (int64_t j = 0; j < columns; ++j)
      sums[j] = static_cast<int32_t>(static_cast<uint32_t>(sums[j]) -
                                     window * static_cast<uint32_t>(finish_.w_zero(output + j)));
  }

  // --- depthwise ---------------------------------------------------------------------------------
  void sum_channels(const Windows& windows, std::byte* memory) {
    const int64_t places = conv_.patches.places, channels = conv_.groups;
    const auto* w = args_.in[1].as<uint8_t>();
    bool has_zeros = false;
    for (int64_t c = 0; c < channels; ++c) has_zeros = has_zeros || finish_.given_w_zero(c) != 0;
    if (conv_.signed_w && !has_zeros)
      return sum_with(args_.in[1].as<int8_t>(), windows, memory + conv_.given_weight_bytes());
    auto* weights = reinterpret_cast<int32_t*>(memory);
    for (int64_t c = 0, k = 0; c < channels; ++c)
      for (const int64_t end = k + places; k < end; ++k) {
        const int32_t given = conv_.signed_w ? static_cast<int8_t>(w[k]) : int32_t{w[k]};
        weights[k] = given - finish_.given_w_zero(c);
      }
    sum_with(weights, windows, memory + conv_.given_weight_bytes());
  }

  /// `weights`: less their zero points.
  template <class W>
  void sum_with(const W* weights, const Windows& windows, std::byte* memory) {
    const int64_t places = conv_.patches.places, channels = conv_.groups;
    for (int64_t c = 0; c < channels; ++c) {
      int32_t sum = 0;
      for (int64_t k = c * places; k < (c + 1) * places; ++k) sum += weights[k];
      finish_.take_weights(c, static_cast<uint32_t>(sum));
    }
    const ChannelSums channel_sums(weights, channels, places, flip(), memory);
    parallel_ranges(
        args_.context, conv_.all_pixels(),
        ceil_div(kGrain, std::max<int64_t>(channels * places, 1)),
        [&](int64_t begin, int64_t end) { sum_pixels(windows, channel_sums, begin, end); });
  }

  void sum_pixels(const Windows& windows, const ChannelSums& channel_sums, int64_t begin,
                  int64_t end) const {
    constexpr int64_t kPixels = 8, kStride = ChannelSums::kMostChannels;
    const int64_t places = channel_sums.places();
    std::vector<const uint8_t*> seen(static_cast<size_t>(kPixels * places));
    alignas(64) int32_t sums[kPixels * kStride];
    for (int64_t pixel = begin; pixel < end; pixel += kPixels) {
      const int64_t pixels = std::min(kPixels, end - pixel);
      for (int64_t p = 0; p < pixels; ++p) {
        const uint8_t** at = seen.data() + p * places;
        windows.find(pixel + p, at);
        // Places without a weight see what the first one sees.
        std::fill(at + conv_.patches.places, at + places, at[0]);
      }
      for (int64_t block = 0; block < channel_sums.blocks(); ++block) {
        for (int64_t p = 0; p < pixels; ++p)
          channel_sums.sum(block, seen.data() + p * places, sums + p * kStride);
        finish_.write(pixel, pixels, channel_sums.first_of(block), channel_sums.width(), sums,
                      kStride);
      }
    }
  }

  const KernelArgs& args_;
  const PixelConv& conv_;
  std::byte* memory_;
  Finish finish_;
};

void conv_integer_pixels(const KernelArgs& args) {
  if (args.out[0].element_count() == 0) return;
  PixelRun(args, *static_cast<const PixelConv*>(args.prepared)).run();
}

// --- packing -------------------------------------------------------------------------------------
IntegerConv packed_conv(const StepFacts& facts) {
  const Sizes& w = facts.inputs[0].layout.sizes;
  IntegerConv conv;
  conv.weights = integer_weights_of(w);
  conv.groups = facts.node().attrs.integer("group");
  conv.channels = w[1];
  conv.outputs = w[0] / conv.groups;
  conv.patches.places = conv.weights.places;
  conv.signed_w = facts.inputs[0].dtype == DType::Int8;
  return conv;
}

Reason cannot_pack(const StepFacts& facts) {
  if (!is_marked_channels_last(facts)) return "the weights are not for a channels-last image";
  return other_copy_runs(facts);
}

size_t packing_workspace_bytes(const StepFacts& facts) {
  return static_cast<size_t>(packing_scratch_bytes(packed_conv(facts)));
}

void pack_weights(const KernelArgs& args) {
  pack_groups(args.context, args.in[0].as<int8_t>(), packed_conv(args.facts),
              static_cast<int8_t*>(args.workspace), args.out[0].as<int8_t>());
}

KernelDef conv_kernel(std::string_view op, std::string_view name) {
  return {.op = op,
          .name = name,
          .dtypes = {DType::Int8, DType::UInt8},
          .run = conv_integer_pixels,
          .unsupported = unsupported,
          .workspace_bytes = workspace_bytes,
          .output_strides = pixel_strides,
          .prepare = prepare,
          .input_rules = {LayoutRule::Any},
          .priority = kIntegerPriority + 2};
}

REGISTER_CPU_KERNEL((conv_kernel("ConvInteger", "conv_integer_pixels_cpu")));
REGISTER_CPU_KERNEL((conv_kernel("ConvIntegerToFloat", "conv_integer_to_float_pixels_cpu")));
REGISTER_CPU_KERNEL({.op = "PackIntegerConvWeights",
                     .name = "pack_integer_conv_pixel_weights_cpu",
                     .dtypes = {DType::Int8, DType::UInt8},
                     .run = pack_weights,
                     .unsupported = cannot_pack,
                     .workspace_bytes = packing_workspace_bytes,
                     .priority = kIntegerPriority});

}  // namespace
}  // namespace ORTM_ISA
}  // namespace ortmodule
