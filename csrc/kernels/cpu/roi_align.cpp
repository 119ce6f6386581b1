// RoiAlign and MaxRoiPool (kernels/roi.h). A mean of samples is a sum over rows of sums over
// columns: the rows that a bin touches are added with their weights, vector by vector, then the
// columns of each bin. The largest whole elements are found in the same two steps. Bytes moved: the
// part of x under each region.
#include <limits>
#include <span>
#include <vector>

#include "kernels/cpu/index_reader.h"
#include "kernels/dtype_dispatch.h"
#include "kernels/roi.h"

namespace ortmodule {
inline namespace ORTM_ISA {
namespace {

/// What the samples of each bin read along one dimension.
template <class T>
struct AxisWeights {
  struct Part {
    int64_t at;
    T weight;
  };
  std::vector<Part> parts;
  std::vector<size_t> ends;          // of each bin's parts
  int64_t least = 0, most = 0;       // elements [least, most)
  std::vector<RoiTap<T>> taps = {};  // one by one

  void add(int64_t at, T weight) {
    const size_t first = ends.empty() ? 0 : ends.back();
    for (size_t i = parts.size(); i-- > first && i + 2 >= parts.size();)
      if (parts[i].at == at) return void(parts[i].weight += weight);
    parts.push_back({at, weight});
  }

  void find(const RoiSpan<T>& span, int64_t bins, int64_t size) {
    parts.clear(), ends.clear(), taps.clear();
    for (int64_t bin = 0; bin < bins; ++bin) {
      for (int64_t sample = 0; sample < span.samples; ++sample) {
        const RoiTap<T> tap = taps.emplace_back(roi_tap(span, bin, sample, size));
        if (tap.low_weight != T(0)) add(tap.low, tap.low_weight);
        if (tap.high_weight != T(0)) add(tap.high, tap.high_weight);
      }
      ends.push_back(parts.size());
    }
    least = size, most = 0;
    for (const Part& part : parts) {
      least = std::min(least, part.at);
      most = std::max(most, part.at + 1);
    }
  }

  std::span<const Part> of(int64_t bin) const {
    const size_t first = bin == 0 ? 0 : ends[static_cast<size_t>(bin - 1)];
    return {parts.data() + first, ends[static_cast<size_t>(bin)] - first};
  }
};

/// The four elements around each sample of a region and their weights, bin by bin, which all
/// channels share.
template <class T>
struct SampleCorners {
  static constexpr int64_t kMost = 4096;  // samples
  std::vector<int32_t> places[4];
  std::vector<T> weights[4];
  std::vector<T> found;  // the largest of each sample

  void find(const AxisWeights<T>& down, const AxisWeights<T>& across, int64_t tall, int64_t wide,
            int64_t width) {
    for (auto& each : places) each.clear();
    for (auto& each : weights) each.clear();
    const auto add = [&](size_t corner, int64_t row, int64_t column, T weight) {
      places[corner].push_back(static_cast<int32_t>(row * width + column));
      weights[corner].push_back(weight);
    };
    const auto rows = std::span(down.taps), columns = std::span(across.taps);
    for (size_t i = 0; i < rows.size(); i += static_cast<size_t>(tall))
      for (size_t j = 0; j < columns.size(); j += static_cast<size_t>(wide))
        for (const RoiTap<T>& r : rows.subspan(i, static_cast<size_t>(tall)))
          for (const RoiTap<T>& c : columns.subspan(j, static_cast<size_t>(wide))) {
            add(0, r.low, c.low, r.low_weight * c.low_weight);
            add(1, r.low, c.high, r.low_weight * c.high_weight);
            add(2, r.high, c.low, r.high_weight * c.low_weight);
            add(3, r.high, c.high, r.high_weight * c.high_weight);
          }
    found.resize(places[0].size());
  }

  /// The largest of each `samples` that follow one another.
  void largest(const T* plane, int64_t samples, T* y) {
    const auto count = std::ssize(found);
    T* const best = found.data();
    for (size_t corner = 0; corner < 4; ++corner) {
      const int32_t* place = places[corner].data();
      const T* weight = weights[corner].data();
      if (corner == 0) {
        ORTM_SIMD
        for (int64_t i = 0; i < count; ++i) best[i] = weight[i] * plane[place[i]];
      } else {
        ORTM_SIMD
        for (int64_t i = 0; i < count; ++i)
          best[i] = roi_larger(best[i], weight[i] * plane[place[i]]);
      }
    }
    for (int64_t i = 0; i < count; i += samples) {
      T so_far = -std::numeric_limits<T>::infinity();
      for (int64_t k = 0; k < samples; ++k) so_far = roi_larger(so_far, best[i + k]);
      *y++ = so_far;
    }
  }
};

/// A region of an image at a time, for ranges of its channels.
template <class T>
struct Region {
  AxisWeights<T> down, across;
  T samples = 1;        // of a bin
  std::vector<T> line;  // sums of rows
  SampleCorners<T> corners;
  bool has_corners = false;

  void find(const RoiAlignOptions& options, const T* roi, int64_t height, int64_t width) {
    const RoiSpan<T> rows = roi_span(options, roi[1], roi[3], options.rows);
    const RoiSpan<T> columns = roi_span(options, roi[0], roi[2], options.columns);
    if (rows.samples < 0 || columns.samples < 0)
      throw Error(str("[RoiAlign] without sampling_ratio, bins must have at most ", kMostRoiSamples,
                      " elements in a dimension, but found a region from (", roi[0], ", ", roi[1],
                      ") to (", roi[2], ", ", roi[3], ")"));
    down.find(rows, options.rows, height);
    across.find(columns, options.columns, width);
    samples = static_cast<T>(std::max<int64_t>(rows.samples * columns.samples, 1));
    line.assign(static_cast<size_t>(width), T(0));
    const int64_t count = std::ssize(down.taps) * std::ssize(across.taps);
    has_corners = options.is_max && count > 0 && count <= SampleCorners<T>::kMost &&
                  height * width <= std::numeric_limits<int32_t>::max();
    if (has_corners) corners.find(down, across, rows.samples, columns.samples, width);
  }

  /// The bins of a plane of rows of `width`.
  void average(const RoiAlignOptions& options, const T* plane, int64_t width, T* y) {
    const int64_t count = across.most - across.least;
    for (int64_t row = 0; row < options.rows; ++row) {
      const auto rows = down.of(row);
      T* sums = line.data() + across.least;
      for (size_t i = 0; i < rows.size() && count > 0; ++i) {
        const T* from = plane + rows[i].at * width + across.least;
        const T weight = rows[i].weight;
        if (i == 0) {
          ORTM_SIMD
          for (int64_t c = 0; c < count; ++c) sums[c] = weight * from[c];
        } else {
          ORTM_SIMD
          for (int64_t c = 0; c < count; ++c) sums[c] += weight * from[c];
        }
      }
      for (int64_t column = 0; column < options.columns; ++column) {
        T sum = T(0);
        for (const auto& part : across.of(column))
          sum += rows.empty() ? T(0) : part.weight * line[static_cast<size_t>(part.at)];
        *y++ = sum / samples;
      }
    }
  }

  void largest(const RoiAlignOptions& options, const T* plane, int64_t width, T* y) {
    const int64_t tall = std::ssize(down.taps) / options.rows,
                  wide = std::ssize(across.taps) / options.columns;
    if (has_corners) return corners.largest(plane, tall * wide, y);
    for (int64_t row = 0; row < options.rows; ++row)
      for (int64_t column = 0; column < options.columns; ++column) {
        T best = tall * wide > 0 ? -std::numeric_limits<T>::infinity() : T(0);
        for (int64_t i = row * tall; i < (row + 1) * tall; ++i)
          for (int64_t j = column * wide; j < (column + 1) * wide; ++j) {
            const T value = roi_largest(plane, width, down.taps[static_cast<size_t>(i)],
                                        across.taps[static_cast<size_t>(j)]);
            best = roi_larger(best, value);
          }
        *y++ = best;
      }
  }
};

/// body(region, channel) for all regions and channels, neighbouring channels in one thread.
template <class Body>
void for_each_region(const KernelArgs& args, int64_t work, const Body& body) {
  const int64_t channels = args.in[0].sizes[1], regions = args.in[1].sizes[0];
  parallel_ranges(args.context, regions * channels, grain_for(work),
                  [&](int64_t begin, int64_t end) { body(begin, end, channels); });
}

template <class T>
void align(const KernelArgs& args) {
  const RoiAlignOptions options(args.facts.node().attrs);
  const int64_t height = args.in[0].sizes[2], width = args.in[0].sizes[3];
  const IndexReader images(args.in[2], args.in[0].sizes[0], 0, "RoiAlign");
  const int64_t bins = options.rows * options.columns;
  const auto* x = args.in[0].as<T>();
  for_each_region(args, 16 * bins, [&](int64_t begin, int64_t end, int64_t channels) {
    Region<T> region;
    for (int64_t at = begin, found = -1; at < end; ++at) {
      const int64_t roi = at / channels, image = images.at(roi);
      if (roi != found) region.find(options, args.in[1].as<T>() + 4 * (found = roi), height, width);
      const T* plane = x + (image * channels + at % channels) * height * width;
      T* y = args.out[0].as<T>() + at * bins;
      if (height * width == 0)
        std::fill_n(y, bins, T(0));
      else if (options.is_max)
        region.largest(options, plane, width, y);
      else
        region.average(options, plane, width, y);
    }
  });
}

void run_roi_align(const KernelArgs& args) {
  args.in[0].dtype == DType::Float64 ? align<double>(args) : align<float>(args);
}

// --- MaxRoiPool ----------------------------------------------------------------------------------
template <class T>
void pool_bins(const std::vector<RoiBin>& rows, const std::vector<RoiBin>& columns, const T* plane,
               int64_t width, T* line, T* y) {
  const int64_t least = columns.front().begin, count = columns.back().end - least;
  for (const RoiBin& row : rows) {
    std::fill_n(line, count, -std::numeric_limits<T>::infinity());
    for (int64_t i = row.begin; i < row.end; ++i) {
      const T* from = plane + i * width + least;
      ORTM_SIMD
      for (int64_t c = 0; c < count; ++c) line[c] = roi_larger(line[c], from[c]);
    }
    for (const RoiBin& column : columns) {
      T best = -std::numeric_limits<T>::infinity();
      for (int64_t c = column.begin; c < column.end; ++c) best = roi_larger(best, line[c - least]);
      *y++ = row.begin < row.end && column.begin < column.end ? best : T(0);
    }
  }
}

template <class T>
void pool_regions(const KernelArgs& args) {
  const Attrs& attrs = args.facts.node().attrs;
  const std::vector<int64_t> bins = attrs.integers("pooled_shape");
  const double scale = attrs.number("spatial_scale");
  const int64_t images = args.in[0].sizes[0], height = args.in[0].sizes[2],
                width = args.in[0].sizes[3];
  for_each_region(args, 8 * bins[0] * bins[1], [&](int64_t begin, int64_t end, int64_t channels) {
    std::vector<RoiBin> rows(static_cast<size_t>(bins[0])), columns(static_cast<size_t>(bins[1]));
    std::vector<T> line(static_cast<size_t>(width) + 1);
    for (int64_t at = begin, found = -1; at < end; ++at) {
      const T* roi = args.in[1].as<T>() + 5 * (at / channels);
      if (!(roi[0] >= T(0)) || !(roi[0] < static_cast<T>(images)))
        throw IndexOutOfRange(str("[MaxRoiPool] images of regions must lie in [0, ", images,
                                  "), but found ", roi[0]));
      for (int64_t i = 0; found != at / channels && i < bins[0]; ++i)
        rows[static_cast<size_t>(i)] = roi_bin(scale, roi[2], roi[4], i, bins[0], height);
      for (int64_t i = 0; found != at / channels && i < bins[1]; ++i)
        columns[static_cast<size_t>(i)] = roi_bin(scale, roi[1], roi[3], i, bins[1], width);
      found = at / channels;
      const int64_t plane = static_cast<int64_t>(roi[0]) * channels + at % channels;
      pool_bins(rows, columns, args.in[0].as<T>() + plane * height * width, width, line.data(),
                args.out[0].as<T>() + at * bins[0] * bins[1]);
    }
  });
}

void run_max_roi_pool(const KernelArgs& args) {
  args.in[0].dtype == DType::Float64 ? pool_regions<double>(args) : pool_regions<float>(args);
}

REGISTER_CPU_KERNEL(
    {.op = "RoiAlign", .name = "roi_align_cpu", .dtypes = kFloats, .run = run_roi_align});
REGISTER_CPU_KERNEL(
    {.op = "MaxRoiPool", .name = "max_roi_pool_cpu", .dtypes = kFloats, .run = run_max_roi_pool});

}  // namespace
}  // namespace ORTM_ISA
}  // namespace ortmodule
