// ConvInteger and ConvIntegerToFloat of channels-last images, [N, H, W, C] in memory, which
// prefer_channels_last marked: y is channels-last, too. A product of the windows, whose rows are
// copied a few at a time, with the weights as MatMulInteger packs its right factor; with x' and w'
// the factors as they are multiplied and their zero points:
//   y[p, o] = sum x' w' - zx' (column[o] - inner zw'[o]) - zw'[o] window[p]
// where column and window are sums of w' and x'. Where each channel makes one output (depthwise),
// sums of many channels are made at once.
#include "kernels/cpu/conv_integer_windows.h"
#include "kernels/cpu/integer_byte_tile.h"
#include "kernels/cpu/integer_copies.h"
#include "kernels/cpu/integer_finish.h"

namespace ortmodule {
inline namespace ORTM_ISA {
namespace {

/// Multiplications worth waking a thread.
constexpr int64_t kGrain = 1 << 21;
/// Of the sums of a unit, which are written from the first-level cache.
constexpr int64_t kSumBytes = 16 << 10;

std::shared_ptr<const void> prepare(const StepFacts& facts) {
  return std::make_shared<const PixelConv>(facts);
}

size_t workspace_bytes(const StepFacts& facts) {
  const PixelConv conv(facts);
  return static_cast<size_t>(conv.beside_bytes() + 5 * conv.terms_bytes() + conv.image_bytes() +
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
        steps_(reinterpret_cast<float*>(memory + 3 * conv.terms_bytes())),
        offsets_(reinterpret_cast<float*>(memory + 4 * conv.terms_bytes())),
        sums_(args.out[0].as<int32_t>()),
        results_(args, places.y_scale, places.y_zero) {
    adds_ = bias_ && !bias_.is_integer();
    for (int64_t o = 0; o < conv.all_outputs() && x_scale_; ++o) {
      factors_[o] = x_scale_.number(0) * (w_scale_ ? w_scale_.number(o) : 1.0f);
      if (adds_) biases_[o] = bias_.number(o);
    }
    how_ = results_.steps();
    if (how_.is_usual())
      how_ = how_.of_columns(factors_, adds_ ? biases_ : nullptr, conv.all_outputs(), steps_,
                             offsets_);
  }

  int32_t x_byte() const { return x_zero_.point(0); }
  int32_t x_zero() const { return x_byte() + (conv_.unsigned_x ? 0 : kSignBit); }
  /// As it is multiplied in products.
  int32_t w_zero(int64_t o) const { return w_zero_.point(o) - (conv_.signed_w ? 0 : kSignBit); }
  int32_t given_w_zero(int64_t o) const { return w_zero_.point(o); }

  const uint32_t* terms() const { return terms_; }
  /// What makes bytes of sums; it may not be usual.
  const SumSteps& how() const { return how_; }
  const float* steps() const { return steps_; }
  const float* offsets() const { return offsets_; }
  const RealResults& results() const { return results_; }

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
    SumScales scales = scales_of(sums, stride, reinterpret_cast<const int32_t*>(terms), output);
    if (how_.is_usual()) {
      scales.how = &how_;
      scales.steps = steps_ + output;
      scales.offsets = offsets_ + output;
    }
    scales.write(results_, at, pixels, step, count);
  }

#if defined(ORTM_BYTE_TILES)
  /// What makes bytes of the sums of outputs from `output` on, of pixels from `pixel` on.
  template <class Dot>
  typename ByteTile<Dot>::Finish bytes_of(int64_t pixel, int64_t output) const {
    const int64_t step = conv_.all_outputs();
    return {how_,
            reinterpret_cast<const int32_t*>(terms_) + output,
            steps_ + output,
            offsets_ + output,
            results_.bytes() + pixel * step + output,
            step};
  }
#endif

  /// The same of a pixel's sums that have their terms.
  void write_totals(int64_t pixel, int64_t output, int64_t count, const int32_t* totals) const {
    constexpr int64_t kMost = 64 + 15;
    static constexpr int32_t kNothing[kMost] = {};
    const int64_t at = pixel * conv_.all_outputs() + output;
    if (x_scale_)
      scales_of(totals, 0, kNothing, output).write(results_, at, 1, conv_.all_outputs(), count);
    else
      std::copy_n(totals, count, sums_ + at);
  }

 private:
  SumScales scales_of(const int32_t* sums, int64_t stride, const int32_t* added,
                      int64_t output) const {
    return {sums, stride, added, factors_ + output, adds_ ? biases_ + output : nullptr};
  }

  const PixelConv& conv_;
  Each x_zero_, w_zero_, x_scale_, w_scale_, bias_;
  uint32_t* terms_;
  float *factors_, *biases_, *steps_, *offsets_;
  int32_t* sums_;
  bool adds_ = false;
  SumSteps how_;
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
    const int64_t behind = conv_.beside_bytes() + 5 * conv_.terms_bytes();
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
    using Tile = IntegerTile<Dot>;
    const auto left = [&](int64_t row, int64_t rows, int64_t first, int64_t count,
                          typename Dot::Left* to, typename Tile::Rows& part) {
      if constexpr (sizeof(*to) == 1)
        if (flip() == 0 && windows.find<Tile>(row, rows, group, first, count, to, part)) return;
      part.set(to, Tile::kLeftStride, rows, count);
      for (int64_t r = 0; r < rows; ++r, to += Tile::kLeftStride) {
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
                      if constexpr (std::is_same_v<Dot, IntegerDot>) {
#if defined(ORTM_BYTE_TILES)
                        if (finish_.how().is_usual() && !has_zeros)
                          return product.run_tiles(
                              begin, end, left, right, [](auto&&...) {}, byte_tiles<Dot>(group));
#endif
                        product.run(begin, end, left, right, store);
                      } else {
                        product.run(begin, end, left, right, store,
                                    [&](const auto&... part) { rests.template add<Dot>(part...); });
                      }
                    });
  }

#if defined(ORTM_BYTE_TILES)
  /// Multiplies tiles, whose results are written as bytes with the last part of their sums.
  template <class Dot>
  auto byte_tiles(int64_t group) const {
    using Tile = IntegerTile<Dot>;
    return [this, group](const typename Tile::Rows& part, int64_t row, int64_t rows, int64_t first,
                         int64_t, bool is_last, const int8_t* panels, int64_t panel_stride,
                         int64_t column, int64_t width, int32_t* sums, int64_t stride) {
      if (!is_last)
        return Tile::multiply(part, rows, panels, panel_stride, width, sums, stride, first > 0);
      const int64_t output = group * conv_.outputs + column;
      ByteTile<Dot>::multiply(part, rows, panels, panel_stride, width,
                              finish_.template bytes_of<Dot>(row, output), sums, stride, first > 0,
                              [&](int64_t r, int64_t at, int64_t count, const int32_t* totals) {
                                finish_.write_totals(row + r, output + at, count, totals);
                              });
    };
  }
#endif

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
    const int64_t count = channels * places;
    if (std::all_of(weights, weights + count, [](int32_t w) { return w == int8_t(w); })) {
      auto* bytes = reinterpret_cast<int8_t*>(memory);
      for (int64_t k = 0; k < count; ++k) bytes[k] = static_cast<int8_t>(weights[k]);
      return sum_with(bytes, windows, memory + conv_.given_weight_bytes());
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
#if defined(ORTM_CHANNEL_QUADS)
    if constexpr (sizeof(W) == 1)
      if (conv_.sums_quads()) return sum_quads(weights, windows, memory);
#endif
    const ChannelSums channel_sums(weights, channels, places, flip(), memory);
    parallel_ranges(
        args_.context, conv_.all_pixels(),
        ceil_div(kGrain, std::max<int64_t>(channels * places, 1)),
        [&](int64_t begin, int64_t end) { sum_pixels(windows, channel_sums, begin, end); });
  }

#if defined(ORTM_CHANNEL_QUADS)
  void sum_quads(const int8_t* weights, const Windows& windows, std::byte* memory) const {
    const PatchAxis &rows = conv_.rows(), &line = conv_.line();
    const int64_t channels = conv_.groups, line_bytes = line.out * channels;
    const ChannelQuads quads(weights, channels, rows, line, flip(), finish_.terms(), finish_.how(),
                             finish_.steps(), finish_.offsets(), memory);
    uint8_t* y = finish_.results().bytes();
    const auto sum_lines = [&](int64_t begin, int64_t end) {
      Windows::Tiles tiles(windows, quads.reach());
      for (int64_t i = begin; i < end; ++i)
        quads.run(tiles.of_line(i), line.out, y + i * line_bytes, channels,
                  [&](int64_t output, int64_t channel, int64_t width, const int32_t* sums) {
                    finish_.write_totals(i * line.out + output, channel, width, sums);
                  });
    };
    const int64_t each = std::max<int64_t>(line_bytes * conv_.patches.places, 1);
    parallel_ranges(args_.context, conv_.images * rows.out, ceil_div(kGrain, each), sum_lines);
  }
#endif

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
