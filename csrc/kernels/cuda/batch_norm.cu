// BatchNormInternal and BatchNormInternalGrad over row-major and channels-last tensors, alone and
// with a Relu behind them; formulas as in cpu/batch_norm.cpp. The Relu changes no bit: each result
// of the norm is rounded before it, and backward computes it again by the same operations. At the
// end of a residual block backward reads it (y) and adds two gradients: what it then passes on (dz)
// is written by the sums and read by the elements.
// Method: blocks add up parts of a channel (channel_sums.cuh), one kernel finishes the sums of all
// parts in their order and in double, and writes a few coefficients per channel, with which the
// last kernel goes over the elements. Many channels of few elements take one launch instead
// (whole_channels.cuh). Bytes moved: x twice, addend and y once; dy and x twice and dx once; at the
// end of a residual block dy, more and y once, dz and x twice and dx once.
#include <algorithm>
#include <cmath>

#include "kernels/cuda/channel_sums.cuh"
#include "kernels/cuda/whole_channels.cuh"
#include "kernels/pointwise_activation.h"
#include "kernels/pointwise_gradient.h"

namespace ortmodule::cuda {
namespace {

/// Of a block that finishes sums: channels by parts.
constexpr int kFinishedChannels = kColumnThreads, kFinishedParts = 32;
// --- coefficients of channels --------------------------------------------------------------------
/// Operands and results per channel; those that are not there are null. S: their type.
template <class S>
struct PerChannel {
  const S *scale = nullptr, *bias = nullptr;
  const S *old_mean = nullptr, *old_variance = nullptr;
  S *new_mean = nullptr, *new_variance = nullptr;
  S *mean = nullptr, *inv = nullptr;                    // written in forward
  const S *known_mean = nullptr, *known_inv = nullptr;  // read in backward
  S *dscale = nullptr, *dbias = nullptr;
  double epsilon = 0, momentum = 0;
};

template <class S>
__device__ __forceinline__ void store_number(S* to, int64_t i, double value) {
  if (to) to[i] = stored<S>(value);
}
template <class S>
__device__ __forceinline__ void move_statistic(const PerChannel<S>& p, S* to, const S* old,
                                               int64_t i, double batch) {
  if (to && old) to[i] = stored<S>((1 - p.momentum) * number_or(old, i, 0.0) + p.momentum * batch);
}

/// Of the sums over a channel: new statistics, and coefficients with y = (x - c0) c1 + c2.
template <class S, class C>
struct FinishMoments {
  PerChannel<S> p;
  double count;

  /// `squares`: of the differences from the mean.
  __device__ __forceinline__ void operator()(int64_t i, double mean, double squares, C* to,
                                             int64_t stride) const {
    const double inv = 1 / std::sqrt(squares / count + p.epsilon);
    move_statistic(p, p.new_mean, p.old_mean, i, mean);
    move_statistic(p, p.new_variance, p.old_variance, i, squares / (count - 1));
    to[0] = static_cast<C>(mean);
    // Of inv as it is saved, so that backward finds the same results.
    const double saved = sizeof(S) < sizeof(C) ? inv : static_cast<double>(static_cast<C>(inv));
    to[stride] = channel_factor<S, C>(saved, p.scale, i);
    to[2 * stride] = number_or<S, C>(p.bias, i, 0);
    store_number(p.mean, i, mean);
    store_number(p.inv, i, inv);
  }
};

/// The gradients of scale and bias, and coefficients with dx = c1 (dy - c2 - (x - c0) c3) and
/// y = (x - c0) c1 + c4.
template <class S, class C>
struct FinishGradients {
  PerChannel<S> p;
  double count;

  /// The sums of dy, and of its product with x - c0.
  __device__ __forceinline__ void operator()(int64_t i, double sum, double product, C* to,
                                             int64_t stride) const {
    const double inv = number_or(p.known_inv, i, 1.0);
    to[0] = number_or<S, C>(p.known_mean, i, 0);
    to[stride] = channel_factor<S, C>(inv, p.scale, i);
    to[2 * stride] = static_cast<C>(sum / count);
    to[3 * stride] = static_cast<C>(product * inv * inv / count);
    to[4 * stride] = number_or<S, C>(p.bias, i, 0);
    store_number(p.dscale, i, product * inv);
    store_number(p.dbias, i, sum);
  }
};

/// `length`: elements of a channel in a part.
template <class S, class C>
__global__ __launch_bounds__(kFinishedChannels* kFinishedParts) void finish_moments_cuda(
    FinishMoments<S, C> to, const C* partials, int64_t parts, double length, int64_t channels,
    C* coefficients) {
  ORTM_DYNAMIC_SHARED(double, scratch);
  const int64_t i = int64_t{blockIdx.x} * kFinishedChannels + threadIdx.x;
  double sums[3] = {0, 0, 0};  // of x, of squares of means, of squared differences from means
  if (i < channels) {
#pragma unroll 4
    for (int64_t part = threadIdx.y; part < parts; part += kFinishedParts) {
      const double left = to.count - static_cast<double>(part) * length;
      const double n = left < length ? left : length;
      const double mean = static_cast<double>(partials[part * 2 * channels + i]);
      sums[0] += n * mean;
      sums[1] += n * mean * mean;
      sums[2] += static_cast<double>(partials[(part * 2 + 1) * channels + i]);
    }
  }
  add_over_rows<kFinishedParts>(sums, scratch);
  if (threadIdx.y > 0 || i >= channels) return;
  const double mean = sums[0] / to.count;
  const double between = sums[1] - sums[0] * mean;
  to(i, mean, sums[2] + (between > 0 ? between : 0), coefficients + i, channels);
}

template <class S, class C>
__global__ __launch_bounds__(kFinishedChannels* kFinishedParts) void finish_gradients_cuda(
    FinishGradients<S, C> to, const C* partials, int64_t parts, int64_t channels, C* coefficients) {
  ORTM_DYNAMIC_SHARED(double, scratch);
  const int64_t i = int64_t{blockIdx.x} * kFinishedChannels + threadIdx.x;
  double sums[2] = {0, 0};
  if (i < channels) {
#pragma unroll 4
    for (int64_t part = threadIdx.y; part < parts; part += kFinishedParts) {
      sums[0] += static_cast<double>(partials[part * 2 * channels + i]);
      sums[1] += static_cast<double>(partials[(part * 2 + 1) * channels + i]);
    }
  }
  add_over_rows<kFinishedParts>(sums, scratch);
  if (threadIdx.y > 0 || i >= channels) return;
  to(i, sums[0], sums[1], coefficients + i, channels);
}

dim3 finishing_block() { return dim3(kFinishedChannels, kFinishedParts); }
size_t finishing_bytes(int values) {
  return sizeof(double) * static_cast<size_t>(values) * kFinishedChannels * kFinishedParts;
}

// --- elements ------------------------------------------------------------------------------------
/// What follows the norm.
enum class Behind : uint8_t { Nothing, Relu, AddRelu };

template <class T, Behind kBehind>
struct Normalize {
  using C = ComputeOf<T>;
  static constexpr int kUsed = 3;
  const T *x, *addend;
  T* y;

  __device__ __forceinline__ explicit operator bool() const { return true; }

  template <int kCount>
  __device__ __forceinline__ void operator()(int64_t at, const C (&c)[kUsed][kCount]) const {
    C v[kCount], more[kCount];
    load_computed<T, kCount>(v, x + at);
    if constexpr (kBehind == Behind::AddRelu) load_computed<T, kCount>(more, addend + at);
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      v[k] = NormalizedChannel<C>{c[0][k], c[1][k], c[2][k]}(v[k]);
      if constexpr (kBehind == Behind::AddRelu) v[k] = widened(narrowed(v[k], T{})) + more[k];
      if constexpr (kBehind != Behind::Nothing) v[k] = formulas::Relu()(v[k]);
    }
    store_computed<T, kCount>(y + at, v);
  }
};

template <class T, bool kRelu>
struct Differentiate {
  using C = ComputeOf<T>;
  static constexpr int kUsed = kRelu ? 5 : 4;
  const T *dy, *x;
  T* dx;

  __device__ __forceinline__ explicit operator bool() const { return dx; }

  template <int kCount>
  __device__ __forceinline__ void operator()(int64_t at, const C (&c)[kUsed][kCount]) const {
    C g[kCount], v[kCount];
    load_computed<T, kCount>(g, dy + at);
    load_computed<T, kCount>(v, x + at);
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      if constexpr (kRelu)
        g[k] = passed<T>(g[k], NormalizedChannel<C>{c[0][k], c[1][k], c[4][k]}(v[k]));
      g[k] = c[1][k] * (g[k] - c[2][k] - (v[k] - c[0][k]) * c[3][k]);
    }
    store_computed<T, kCount>(dx + at, g);
  }
};

/// Differentiate of dz, which lies where dx will be if its own place is that of x.
template <class T>
struct DifferentiateAndMove {
  using C = ComputeOf<T>;
  static constexpr int kUsed = 4;
  const T *dz, *x;
  T *dx, *moved;  // moved: where dz goes; null if it is there

  __device__ __forceinline__ explicit operator bool() const { return true; }

  template <int kCount>
  __device__ __forceinline__ void operator()(int64_t at, const C (&c)[kUsed][kCount]) const {
    C g[kCount] = {};
    if (moved) load_computed<T, kCount>(g, dz + at);
    Differentiate<T, false>{dz, x, dx}.template operator()<kCount>(at, c);
    if (moved) store_computed<T, kCount>(moved + at, g);
  }
};

/// What is added up of the gradient at the end of a residual block, which is written besides.
template <class T, class S>
struct SummedGradientsOf {
  using C = ComputeOf<T>;
  using Center = C;
  const T *dy, *more, *y, *x;
  T* dz;
  const S* mean;

  /// Dy, and dy times the difference from the mean, as GradientSumsOf does.
  template <int kCount, int kChannels>
  struct Sums {
    C sum[kChannels] = {}, product[kChannels] = {};

    __device__ __forceinline__ void add(const SummedGradientsOf& of, int64_t at,
                                        const Center (&mean)[kChannels]) {
      C g[kCount], more[kCount], y[kCount], v[kCount];
      load_computed<T, kCount>(g, of.dy + at);
      load_computed<T, kCount>(more, of.more + at);
      load_computed<T, kCount>(y, of.y + at);
      load_computed<T, kCount>(v, of.x + at);
#pragma unroll
      for (int k = 0; k < kCount; ++k) {
        const int c = kChannels == 1 ? 0 : k;
        g[k] = formulas::ReluGrad()(widened(narrowed(g[k] + more[k], T{})), y[k]);
        sum[c] += g[k];
        product[c] += g[k] * (v[k] - mean[c]);
      }
      store_computed<T, kCount>(of.dz + at, g);
    }
    __device__ __forceinline__ Moments<C> result(int c) const { return {0, sum[c], product[c]}; }
  };
  using Combine = typename GradientSumsOf<T, S, false>::Combine;
  __device__ __forceinline__ Center center(int64_t channel) const {
    return number_or<S, C>(mean, channel, 0);
  }
};

template <class Map, int kCount>
__global__ __launch_bounds__(kChannelThreads) void map_rows_of_channels_cuda(
    Map map, const typename Map::C* coefficients, int64_t rows, int64_t channels, int64_t length,
    int64_t tiles) {
  const int64_t part = blockIdx.x / tiles, tile = blockIdx.x - part * tiles;
  const int64_t channel = (tile * blockDim.x + threadIdx.x) * kCount;
  if (channel >= channels) return;
  const int64_t begin = part * length, end = begin + length < rows ? begin + length : rows;
  typename Map::C c[Map::kUsed][kCount];
#pragma unroll
  for (int n = 0; n < Map::kUsed; ++n)
#pragma unroll
    for (int k = 0; k < kCount; ++k) c[n][k] = coefficients[n * channels + channel + k];
#pragma unroll 2
  for (int64_t row = begin + threadIdx.y; row < end; row += blockDim.y)
    map(row * channels + channel, c);
}

template <class Map, int kCount>
__global__ __launch_bounds__(kChannelThreads) void map_planes_cuda(
    Map map, const typename Map::C* coefficients, uint32_t total, FastDivisor vectors,
    FastDivisor channels) {
  const uint32_t i = blockIdx.x * kChannelThreads + threadIdx.x;
  if (i >= total) return;
  const uint32_t plane = vectors.quotient(i);
  const uint32_t channel = plane - channels.quotient(plane) * channels.divisor;
  typename Map::C c[Map::kUsed][kCount];
#pragma unroll
  for (int n = 0; n < Map::kUsed; ++n)
#pragma unroll
    for (int k = 0; k < kCount; ++k) c[n][k] = coefficients[n * channels.divisor + channel];
  map(int64_t{i} * kCount, c);
}

template <class Map, int kCount>
void launch_map(const KernelArgs& args, const Map& map, const ChannelShape& s,
                const typename Map::C* coefficients) {
  if (s.rows) {
    const int lanes = lanes_for(s.channels, kCount);
    const int64_t tiles = blocks_for(s.channels, int64_t{lanes} * kCount);
    const int64_t length = kChannelThreads / lanes * kRowsOfThread;
    ORTM_LAUNCH((map_rows_of_channels_cuda<Map, kCount>),
                grid_of(blocks_for(s.images, length) * tiles),
                dim3(static_cast<unsigned>(lanes), static_cast<unsigned>(kChannelThreads / lanes)),
                0, args.context, map, coefficients, s.images, s.channels, length, tiles);
  } else {
    const int64_t total = s.count() * s.channels / kCount;
    ORTM_LAUNCH((map_planes_cuda<Map, kCount>), grid_of(blocks_for(total, kChannelThreads)),
                dim3(kChannelThreads), 0, args.context, map, coefficients,
                static_cast<uint32_t>(total), FastDivisor(static_cast<uint32_t>(s.pixels / kCount)),
                FastDivisor(static_cast<uint32_t>(s.channels)));
  }
}

// --- steps ---------------------------------------------------------------------------------------
/// Operand of BatchNormAddRelu.
constexpr size_t kAddend = 5;
/// Operands of its gradient.
enum Summed : size_t { kDy, kMore, kY, kX, kScale, kMean };
/// Operand of the gradients: the mean, in front of the reciprocal deviation.
constexpr size_t mean_operand(bool relu) { return relu ? 4 : 3; }

template <class C>
struct Workspace {
  C *coefficients, *partials;

  Workspace(void* memory, const ChannelShape& s)
      : coefficients(static_cast<C*>(memory)),
        partials(coefficients + kMostCoefficients * s.channels) {}
};

template <size_t kTensor>
size_t workspace_bytes(const StepFacts& facts) {
  const OperandFacts& x = facts.inputs[kTensor];
  const ChannelShape s(x.layout);
  if (s.count() == 0 || fits_whole(s, size_of(x.dtype))) return 0;
  const size_t width = size_of(compute_dtype(x.dtype));
  const ChannelParts parts(s, static_cast<int>(kVectorBytes / size_of(x.dtype)));
  return static_cast<size_t>((kMostCoefficients + 2 * parts.count) * s.channels) * width;
}

/// Whether the kernels may move vectors of T.
template <class T, class... Pointers>
bool in_vectors(const ChannelShape& s, const Pointers*... pointers) {
  return rows_are_vectors<T>(s.rows ? s.channels : s.pixels, pointers...);
}

template <class T, class S, int kCount, Behind kBehind>
void normalize(const KernelArgs& args, const ChannelShape& s) {
  using C = ComputeOf<T>;
  const Attrs& attrs = args.facts.node().attrs;
  const T* const x = args.in[0].as<T>();
  PerChannel<S> p;
  p.scale = data_or_null<S>(args.in, 1);
  p.bias = data_or_null<S>(args.in, 2);
  p.old_mean = data_or_null<S>(args.in, 3);
  p.old_variance = data_or_null<S>(args.in, 4);
  p.new_mean = data_or_null<S>(args.out, 1);
  p.new_variance = data_or_null<S>(args.out, 2);
  p.mean = data_or_null<S>(args.out, 3);
  p.inv = data_or_null<S>(args.out, 4);
  p.epsilon = attrs.number("epsilon");
  p.momentum = attrs.number("momentum");
  const FinishMoments<S, C> finish{p, static_cast<double>(s.count())};
  const Normalize<T, kBehind> map{x, data_or_null<T>(args.in, kAddend), args.out[0].as<T>()};
  if (fits_whole(s, sizeof(T)))
    return launch_whole<Normalize<T, kBehind>, kCount>(args, MomentsOf<T>{x}, finish, map, s);
  const Workspace<C> w(args.workspace, s);
  const ChannelParts parts(s, kVectorCount<T>);
  launch_sums<MomentsOf<T>, kCount>(args, {x}, s, parts, w.partials);
  ORTM_LAUNCH((finish_moments_cuda<S, C>), grid_of(blocks_for(s.channels, kFinishedChannels)),
              finishing_block(), finishing_bytes(3), args.context, finish, w.partials, parts.count,
              static_cast<double>(parts.length * s.pixels), s.channels, w.coefficients);
  launch_map<Normalize<T, kBehind>, kCount>(args, map, s, w.coefficients);
}

/// The gradients from the sums of channels: those per channel, and what `map` writes.
template <class T, class S, int kCount, class Sums, class Map>
void finish_and_map(const KernelArgs& args, const ChannelShape& s, const Sums& sums,
                    const FinishGradients<S, ComputeOf<T>>& finish, const Map& map) {
  using C = ComputeOf<T>;
  if (fits_whole(s, sizeof(T))) return launch_whole<Map, kCount>(args, sums, finish, map, s);
  const Workspace<C> w(args.workspace, s);
  const ChannelParts parts(s, kVectorCount<T>);
  launch_sums<Sums, kCount>(args, sums, s, parts, w.partials);
  ORTM_LAUNCH((finish_gradients_cuda<S, C>), grid_of(blocks_for(s.channels, kFinishedChannels)),
              finishing_block(), finishing_bytes(2), args.context, finish, w.partials, parts.count,
              s.channels, w.coefficients);
  if (map.dx) launch_map<Map, kCount>(args, map, s, w.coefficients);
}

template <class T, class S, int kCount, bool kRelu>
void differentiate(const KernelArgs& args, const ChannelShape& s) {
  using C = ComputeOf<T>;
  using Sums = GradientSumsOf<T, S, kRelu>;
  const T *const dy = args.in[0].as<T>(), *const x = args.in[1].as<T>();
  PerChannel<S> p;
  p.scale = data_or_null<S>(args.in, 2);
  p.bias = kRelu ? data_or_null<S>(args.in, 3) : nullptr;
  const TensorView &mean = args.in[mean_operand(kRelu)], &inv = args.in[mean_operand(kRelu) + 1];
  p.known_mean = mean.as<S>();
  p.known_inv = inv.as<S>();
  p.dscale = data_or_null<S>(args.out, 1);
  p.dbias = data_or_null<S>(args.out, 2);
  const Sums sums{dy, x, p.known_mean, p.known_inv, p.scale, p.bias};
  const FinishGradients<S, C> finish{p, static_cast<double>(s.count())};
  const Differentiate<T, kRelu> map{dy, x, data_or_null<T>(args.out, 0)};
  finish_and_map<T, S, kCount>(args, s, sums, finish, map);
}

template <class T, class S, int kCount>
void differentiate_summed(const KernelArgs& args, const ChannelShape& s) {
  using C = ComputeOf<T>;
  const T* const x = args.in[kX].as<T>();
  T *const dz = args.out[0].as<T>(), *const dx = args.out[1].as<T>();
  // Of an x that dies dz may take the place, which is read again behind the sums.
  const bool apart = dz == x;
  PerChannel<S> p;
  p.scale = data_or_null<S>(args.in, kScale);
  p.known_mean = args.in[kMean].as<S>();
  p.known_inv = args.in[kMean + 1].as<S>();
  p.dscale = args.out[2].as<S>();
  p.dbias = args.out[3].as<S>();
  const SummedGradientsOf<T, S> sums{args.in[kDy].as<T>(), args.in[kMore].as<T>(),
                                     args.in[kY].as<T>(),  x,
                                     apart ? dx : dz,      p.known_mean};
  const FinishGradients<S, C> finish{p, static_cast<double>(s.count())};
  finish_and_map<T, S, kCount>(
      args, s, sums, finish, DifferentiateAndMove<T>{apart ? dx : dz, x, dx, apart ? dz : nullptr});
}

/// body.template operator()<T, S>(): the types of x and of what is there per channel.
template <class Body>
void dispatch_types(DType x, DType per_channel, const Body& body) {
  dispatch_float(x, [&]<class T> {
    if (x == per_channel)
      body.template operator()<T, T>();
    else
      body.template operator()<T, ComputeOf<T>>();
  });
}

template <Behind kBehind>
void run_batch_norm(const KernelArgs& args) {
  const ChannelShape s(args.facts.inputs[0].layout);
  dispatch_types(args.in[0].dtype, args.facts.outputs[3].dtype, [&]<class T, class S> {
    if (in_vectors<T>(s, args.in[0].as<T>(), args.out[0].as<T>(),
                      data_or_null<T>(args.in, kAddend)))
      normalize<T, S, kVectorCount<T>, kBehind>(args, s);
    else
      normalize<T, S, 1, kBehind>(args, s);
  });
}

template <bool kRelu>
void run_batch_norm_grad(const KernelArgs& args) {
  const ChannelShape s(args.facts.inputs[1].layout);
  dispatch_types(args.in[1].dtype, args.in[mean_operand(kRelu)].dtype, [&]<class T, class S> {
    if (in_vectors<T>(s, args.in[0].as<T>(), args.in[1].as<T>(), data_or_null<T>(args.out, 0)))
      differentiate<T, S, kVectorCount<T>, kRelu>(args, s);
    else
      differentiate<T, S, 1, kRelu>(args, s);
  });
}

void run_batch_norm_add_relu_grad(const KernelArgs& args) {
  const ChannelShape s(args.facts.inputs[kX].layout);
  dispatch_types(args.in[kX].dtype, args.in[kMean].dtype, [&]<class T, class S> {
    if (in_vectors<T>(s, args.in[kDy].as<T>(), args.in[kMore].as<T>(), args.in[kY].as<T>(),
                      args.in[kX].as<T>(), args.out[0].as<T>(), args.out[1].as<T>()))
      differentiate_summed<T, S, kVectorCount<T>>(args, s);
    else
      differentiate_summed<T, S, 1>(args, s);
  });
}

/// `x`: which operand is x; `per_channel`: the type of what is there per channel, in the operands
/// behind x in front of `end`.
Reason unsupported(const StepFacts& facts, size_t x, DType per_channel, size_t end) {
  const OperandFacts& of = facts.inputs[x];
  const int64_t elements = element_count(of.layout.sizes);
  if (elements == 0) return "x is empty";
  if (elements > kMostChannelElements) return "x is too large for 32-bit positions";
  if (x > 0 && ChannelShape(facts.inputs[0].layout).rows != ChannelShape(of.layout).rows)
    return "dy and x lie in different orders";
  if (per_channel != of.dtype && per_channel != compute_dtype(of.dtype))
    return "statistics must have the type of x, or 32 bits";
  for (size_t i = x + 1; i < std::min(end, facts.inputs.size()); ++i)
    if (facts.inputs[i].dtype != per_channel && facts.inputs[i].dtype != DType::Undefined)
      return "scale, bias and statistics are of several types";
  return {};
}

Reason unsupported_forward(const StepFacts& facts) {
  if (facts.inputs[0].layout.sizes.empty()) return {};  // sizes are not known yet
  if (Reason reason = unsupported(facts, 0, facts.outputs[3].dtype, kAddend)) return reason;
  if (facts.inputs.size() <= kAddend) return {};
  const OperandFacts &x = facts.inputs[0], &addend = facts.inputs[kAddend];
  if (ChannelShape(addend.layout).rows != ChannelShape(x.layout).rows)
    return "x and addend lie in different orders";
  return {};
}

template <bool kRelu>
Reason unsupported_backward(const StepFacts& facts) {
  if (facts.inputs[1].layout.sizes.empty()) return {};  // sizes are not known yet
  const DType dtype = facts.inputs[mean_operand(kRelu)].dtype;
  for (size_t i : {1, 2})
    if (facts.node().output_used[i] && facts.outputs[i].dtype != dtype)
      return "gradients of scale and bias have another type than the statistics";
  return unsupported(facts, 1, dtype, facts.inputs.size());
}

Reason unsupported_summed(const StepFacts& facts) {
  if (facts.inputs[kX].layout.sizes.empty()) return {};  // sizes are not known yet
  for (size_t i : {kMore, kY})
    if (ChannelShape(facts.inputs[i].layout).rows != ChannelShape(facts.inputs[kX].layout).rows)
      return "the gradients, y and x lie in different orders";
  return unsupported(facts, kX, facts.inputs[kMean].dtype, facts.inputs.size());
}

template <size_t kTensor>
std::vector<Sizes> strides_of_operand(const StepFacts& facts) {
  return {facts.inputs[kTensor].layout.strides};
}

/// Of x and, behind what is there per channel, the addend.
std::vector<LayoutRule> forward_rules(bool adds) {
  constexpr LayoutRule kImages = LayoutRule::MemoryFormat, kDense = LayoutRule::Contiguous;
  if (!adds) return {kImages};
  return {kImages, kDense, kDense, kDense, kDense, kImages};
}

template <Behind kBehind>
KernelDef forward(std::string_view op, std::string_view name) {
  constexpr bool kAdds = kBehind == Behind::AddRelu;
  return {.op = op,
          .name = name,
          .device = Device::CUDA,
          .dtypes = kAllFloats,
          .run = run_batch_norm<kBehind>,
          .unsupported = unsupported_forward,
          .workspace_bytes = workspace_bytes<0>,
          .output_strides = strides_of_operand<0>,
          .input_rules = forward_rules(kAdds),
          .inplace = true,
          .inplace_operand = kAdds ? kAddend : 0};
}

template <bool kRelu>
KernelDef backward(std::string_view op, std::string_view name) {
  return {.op = op,
          .name = name,
          .device = Device::CUDA,
          .dtypes = kAllFloats,
          .run = run_batch_norm_grad<kRelu>,
          .unsupported = unsupported_backward<kRelu>,
          .workspace_bytes = workspace_bytes<1>,
          .output_strides = strides_of_operand<1>,
          .input_rules = {LayoutRule::MemoryFormat, LayoutRule::MemoryFormat},
          .leaves_out_unused = true,
          .inplace = true,
          .inplace_operand = 0};
}

const KernelRegistrar kNorm(forward<Behind::Nothing>("BatchNormInternal", "batch_norm_cuda"));
const KernelRegistrar kNormRelu(forward<Behind::Relu>("BatchNormRelu", "batch_norm_relu_cuda"));
const KernelRegistrar kNormAddRelu(forward<Behind::AddRelu>("BatchNormAddRelu",
                                                            "batch_norm_add_relu_cuda"));
const KernelRegistrar kGrad(backward<false>("BatchNormInternalGrad", "batch_norm_grad_cuda"));
const KernelRegistrar kReluGrad(backward<true>("BatchNormReluGrad", "batch_norm_relu_grad_cuda"));

REGISTER_KERNEL({.op = "BatchNormAddReluGrad",
                 .name = "batch_norm_add_relu_grad_cuda",
                 .device = Device::CUDA,
                 .dtypes = kAllFloats,
                 .run = run_batch_norm_add_relu_grad,
                 .unsupported = unsupported_summed,
                 .workspace_bytes = workspace_bytes<kX>,
                 .output_strides =
                     [](const StepFacts& facts) {
                       return std::vector<Sizes>(2, facts.inputs[kX].layout.strides);
                     },
                 .input_rules = {LayoutRule::MemoryFormat, LayoutRule::MemoryFormat,
                                 LayoutRule::MemoryFormat, LayoutRule::MemoryFormat},
                 .inplace = true});

}  // namespace
}  // namespace ortmodule::cuda
