// RoiAlign and MaxRoiPool (kernels/roi.h): a thread for each bin of a channel.
// Bytes moved: the part of x under each region.
#include "kernels/cuda/device_check.cuh"
#include "kernels/dtype_dispatch.h"
#include "kernels/roi.h"

namespace ortmodule::cuda {
namespace {

constexpr int kThreads = 256;

struct Bins {
  int64_t images, channels, height, width;
  int64_t rows, columns, count;

  Bins(const KernelArgs& args, int64_t bin_rows, int64_t bin_columns)
      : images(args.in[0].sizes[0]),
        channels(args.in[0].sizes[1]),
        height(args.in[0].sizes[2]),
        width(args.in[0].sizes[3]),
        rows(bin_rows),
        columns(bin_columns),
        count(args.out[0].element_count()) {}
};

template <class T>
__device__ __forceinline__ T mean_of_bin(const T* plane, const Bins& b, const RoiSpan<T>& down,
                                         const RoiSpan<T>& across, int64_t row, int64_t column) {
  T sum = T(0);
  for (int64_t i = 0; i < down.samples; ++i) {
    const RoiTap<T> y = roi_tap(down, row, i, b.height);
    const T *low = plane + y.low * b.width, *high = plane + y.high * b.width;
    for (int64_t j = 0; j < across.samples; ++j) {
      const RoiTap<T> x = roi_tap(across, column, j, b.width);
      const auto add = [&](T weight, T value) { sum += weight != T(0) ? weight * value : T(0); };
      add(y.low_weight * x.low_weight, low[x.low]);
      add(y.low_weight * x.high_weight, low[x.high]);
      add(y.high_weight * x.low_weight, high[x.low]);
      add(y.high_weight * x.high_weight, high[x.high]);
    }
  }
  const int64_t samples = down.samples * across.samples;
  return sum / static_cast<T>(samples > 0 ? samples : 1);
}

template <class T>
__device__ __forceinline__ T largest_of_bin(const T* plane, const Bins& b, const RoiSpan<T>& down,
                                            const RoiSpan<T>& across, int64_t row, int64_t column) {
  T best = T(0);
  for (int64_t i = 0; i < down.samples; ++i)
    for (int64_t j = 0; j < across.samples; ++j) {
      const T value = roi_largest(plane, b.width, roi_tap(down, row, i, b.height),
                                  roi_tap(across, column, j, b.width));
      if (i + j == 0 || value > best || value != value) best = value;
    }
  return best;
}

template <class T>
__global__ __launch_bounds__(kThreads) void roi_align_cuda(ORTM_GRID_CONSTANT(Bins) b,
                                                           ORTM_GRID_CONSTANT(RoiAlignOptions)
                                                               options,
                                                           const T* x, const T* rois,
                                                           const int64_t* batch, T* y) {
  const int64_t at = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (at >= b.count) return;
  const int64_t column = at % b.columns, row = at / b.columns % b.rows;
  const int64_t channel = at / (b.columns * b.rows) % b.channels,
                region = at / (b.columns * b.rows * b.channels);
  const int64_t image = batch[region];
  ORTM_DEVICE_CHECK(image >= 0 && image < b.images, "an image of a region must exist",
                    "[RoiAlign] indices must lie in [0, ", b.images, "), but found ", image,
                    " at position ", region);
  const T* roi = rois + 4 * region;
  const RoiSpan<T> down = roi_span(options, roi[1], roi[3], b.rows);
  const RoiSpan<T> across = roi_span(options, roi[0], roi[2], b.columns);
  ORTM_DEVICE_CHECK(down.samples >= 0 && across.samples >= 0,
                    "bins of regions must not be so large",
                    "[RoiAlign] without sampling_ratio, bins must have at most ", kMostRoiSamples,
                    " elements in a dimension");
  const T* plane = x + (image * b.channels + channel) * b.height * b.width;
  if (b.height * b.width == 0)
    y[at] = T(0);
  else if (options.is_max)
    y[at] = largest_of_bin(plane, b, down, across, row, column);
  else
    y[at] = mean_of_bin(plane, b, down, across, row, column);
}

template <class T>
__global__ __launch_bounds__(kThreads) void max_roi_pool_cuda(ORTM_GRID_CONSTANT(Bins) b,
                                                              double scale, const T* x,
                                                              const T* rois, T* y) {
  const int64_t at = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (at >= b.count) return;
  const int64_t column = at % b.columns, row = at / b.columns % b.rows;
  const int64_t channel = at / (b.columns * b.rows) % b.channels;
  const T* roi = rois + 5 * (at / (b.columns * b.rows * b.channels));
  ORTM_DEVICE_CHECK(
      roi[0] >= T(0) && roi[0] < static_cast<T>(b.images), "an image of a region must exist",
      "[MaxRoiPool] images of regions must lie in [0, ", b.images, "), but found ", roi[0]);
  const RoiBin down = roi_bin(scale, roi[2], roi[4], row, b.rows, b.height);
  const RoiBin across = roi_bin(scale, roi[1], roi[3], column, b.columns, b.width);
  const T* plane = x + (static_cast<int64_t>(roi[0]) * b.channels + channel) * b.height * b.width;
  bool found = false;
  T best = T(0);
  for (int64_t i = down.begin; i < down.end; ++i)
    for (int64_t j = across.begin; j < across.end; ++j) {
      const T value = plane[i * b.width + j];
      if (!found || value > best || value != value) best = value;
      found = true;
    }
  y[at] = best;
}

void run_roi_align(const KernelArgs& args) {
  const RoiAlignOptions options(args.facts.node().attrs);
  const Bins bins(args, options.rows, options.columns);
  const dim3 grid = grid_of(blocks_for(bins.count, kThreads));
  const auto run = [&]<class T>(T* y) {
    ORTM_LAUNCH(roi_align_cuda<T>, grid, kThreads, 0, args.context, bins, options,
                args.in[0].as<T>(), args.in[1].as<T>(), args.in[2].as<int64_t>(), y);
  };
  args.in[0].dtype == DType::Float64 ? run(args.out[0].as<double>()) : run(args.out[0].as<float>());
}

void run_max_roi_pool(const KernelArgs& args) {
  const Attrs& attrs = args.facts.node().attrs;
  const std::vector<int64_t> shape = attrs.integers("pooled_shape");
  const Bins bins(args, shape[0], shape[1]);
  const dim3 grid = grid_of(blocks_for(bins.count, kThreads));
  const double scale = attrs.number("spatial_scale");
  const auto run = [&]<class T>(T* y) {
    ORTM_LAUNCH(max_roi_pool_cuda<T>, grid, kThreads, 0, args.context, bins, scale,
                args.in[0].as<T>(), args.in[1].as<T>(), y);
  };
  args.in[0].dtype == DType::Float64 ? run(args.out[0].as<double>()) : run(args.out[0].as<float>());
}

REGISTER_KERNEL({.op = "RoiAlign",
                 .name = "roi_align_cuda",
                 .device = Device::CUDA,
                 .dtypes = kFloats,
                 .run = run_roi_align});
REGISTER_KERNEL({.op = "MaxRoiPool",
                 .name = "max_roi_pool_cuda",
                 .device = Device::CUDA,
                 .dtypes = kFloats,
                 .run = run_max_roi_pool});

}  // namespace
}  // namespace ortmodule::cuda
