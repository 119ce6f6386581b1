// Pools of row-major images of float32, by bands of output rows: vectors of neighbouring windows
// keep their results in registers, place by place. Lines of x are copied, with what changes no
// result beside them, where windows reach beyond their ends.
//
// A Fold has `start`, which changes no result, `add`, and `by_lines`: whether the elements of each
// line of a window may be folded first, once for all windows that share the line.
#pragma once

#include "kernels/cpu/lane_loads.h"
#include "kernels/pool.h"

namespace ortmodule {
inline namespace ORTM_ISA {

/// Tasks with buffers of their own: two for each thread, so that one which starts late takes less.
inline int64_t band_tasks(const StepFacts& facts) {
  return 2 * std::max<int64_t>(facts.threads, 1);
}

/// Windows of `lines` lines, `apart` elements from each other.
struct LineWindows {
  int64_t lines, apart;
  int64_t kernel, dilation, stride;  // along a line
};

/// Neighbouring windows, kVectors vectors of them; x is the first place of the first. kStep and
/// kKernel are the stride and the width of dense windows where the compiler knows them, or 0.
template <class Fold, int64_t kStep, int64_t kKernel, int kVectors>
inline void pool_vectors(const float* x, const LineWindows& w, FloatVec (&results)[kVectors]) {
  const int64_t kernel = kKernel ? kKernel : w.kernel, dilation = kKernel ? 1 : w.dilation;
  const int64_t step = kStep ? kStep : w.stride;
  ORTM_UNROLL
  for (FloatVec& result : results) result = Fold::start();
  for (int64_t line = 0; line < w.lines; ++line) {
    const float* at = x + line * w.apart;
    for (int64_t k = 0; k < kernel; ++k, at += dilation) {
      ORTM_UNROLL
      for (int64_t v = 0; v < kVectors; ++v)
        results[v] =
            Fold::add(results[v], load_every<kStep>(at + v * FloatVec::kCount * step, step));
    }
  }
}

/// A row of `count` windows. Less than a vector of them reads as much as a whole one.
template <class Fold, int64_t kStep, int64_t kKernel>
void pool_line(const float* x, const LineWindows& w, int64_t count, float* y) {
  constexpr int64_t kCount = FloatVec::kCount;
  constexpr int kTogether = 2;
  const int64_t step = kStep ? kStep : w.stride;
  int64_t o = 0;
  for (; o + kTogether * kCount <= count; o += kTogether * kCount) {
    FloatVec results[kTogether];
    pool_vectors<Fold, kStep, kKernel>(x + o * step, w, results);
    ORTM_UNROLL
    for (int64_t v = 0; v < kTogether; ++v) results[v].store(y + o + v * kCount);
  }
  for (; o < count; o += kCount) {
    if (o + kCount > count) o = std::max<int64_t>(count - kCount, 0);  // some once more
    FloatVec results[1];
    pool_vectors<Fold, kStep, kKernel>(x + o * step, w, results);
    count < kCount ? results[0].store(y, count) : results[0].store(y + o);
  }
}

using PoolLine = void (*)(const float* x, const LineWindows& w, int64_t count, float* y);

template <class Fold>
PoolLine pool_line_for(const PoolAxis& columns) {
  const bool dense = columns.dilation == 1;
  if (columns.stride == 2 && dense && columns.kernel == 2) return pool_line<Fold, 2, 2>;
  if (columns.stride == 2 && dense && columns.kernel == 3) return pool_line<Fold, 2, 3>;
  if (columns.stride == 2) return pool_line<Fold, 2, 0>;
  if (columns.stride == 1 && dense && columns.kernel == 3) return pool_line<Fold, 1, 3>;
  return columns.stride == 1 ? pool_line<Fold, 1, 0> : pool_line<Fold, 0, 0>;
}

/// How planes are cut into bands, from their shape alone.
template <class Fold>
struct BandPlan {
  PoolAxis rows, columns;
  PoolLine along = nullptr;  // from a line, or several, to the outputs of a row
  bool copies = false;       // lines of x
  bool by_lines = false;     // windows share lines
  int64_t width = 0;         // of a line or its copy
  int64_t results = 0;       // of a line by itself, at least a vector
  int64_t rows_of_band = 1, bands = 1;

  BandPlan() = default;
  BandPlan(const PoolAxis& down, const PoolAxis& across)
      : rows(down), columns(across), along(pool_line_for<Fold>(columns)) {
    constexpr int64_t kFloats = 6144;  // of a band's buffers, which stay in the first cache
    const int64_t reach = (columns.kernel - 1) * columns.dilation;
    results = std::max(columns.out, FloatVec::kCount);
    width = (results - 1) * columns.stride + reach + 1;
    copies = columns.pad > 0 || width > columns.in;
    if (!copies) width = columns.in;
    by_lines = Fold::by_lines && rows.stride == 1 && rows.kernel > 1;
    const int64_t lines = kFloats / std::max<int64_t>((copies ? width : 0) + results, 1);
    const int64_t fit = (lines - (rows.kernel - 1) * rows.dilation - 1) / rows.stride + 1;
    rows_of_band = std::clamp<int64_t>(fit, 1, std::max<int64_t>(rows.out, 1));
    bands = ceil_div(rows.out, rows_of_band);
  }

  int64_t most_lines() const {
    return std::min((rows_of_band - 1) * rows.stride + (rows.kernel - 1) * rows.dilation + 1,
                    rows.in);
  }
  int64_t copied_floats() const { return copies ? most_lines() * width : 0; }
  int64_t buffer_floats() const {
    return copied_floats() + (by_lines ? most_lines() * results : 0);
  }
  /// Dilation and padding may make copies many times as long as x.
  bool is_usable() const { return buffer_floats() <= int64_t{1} << 20; }
  size_t workspace_bytes(const StepFacts& facts) const {
    if (!is_usable()) return 0;
    return static_cast<size_t>(band_tasks(facts) * buffer_floats()) * sizeof(float);
  }
};

/// What pools bands of a task.
template <class Fold>
class BandPool {
 public:
  BandPool(const BandPlan<Fold>& plan, float* buffer)
      : plan_(plan), copied_(buffer), found_(buffer + plan.copied_floats()) {
    std::fill_n(copied_, plan.copied_floats(), Fold::start().v[0]);
  }

  /// Output rows [begin, end) of a plane.
  void run(const float* plane, int64_t begin, int64_t end, float* y) {
    const PoolAxis &rows = plan_.rows, &columns = plan_.columns;
    const WindowPart<int64_t> top = rows.window(begin), bottom = rows.window(end - 1);
    const int64_t first = std::clamp<int64_t>(top.start, 0, rows.in);
    const int64_t last =
        std::clamp(bottom.start + (rows.kernel - 1) * rows.dilation + 1, first, rows.in);
    const float* lines = plane + first * columns.in;
    if (plan_.copies) {
      for (int64_t i = 0; i < last - first; ++i) copy_line(lines + i * columns.in, i);
      lines = copied_;
    }
    LineWindows w{1, rows.dilation * plan_.width, columns.kernel, columns.dilation, columns.stride};
    PoolLine fold = plan_.along;
    int64_t width = plan_.width;
    if (plan_.by_lines) {
      for (int64_t i = 0; i < last - first; ++i)
        fold(lines + i * width, w, plan_.results, found_ + i * plan_.results);
      lines = found_;
      width = plan_.results;
      w = {1, rows.dilation * width, 1, 1, 1};
      fold = pool_line<Fold, 1, 1>;
    }
    const bool in_place = lines == plane + first * columns.in;
    for (int64_t row = begin; row < end; ++row) {
      const WindowPart<int64_t> part = rows.window(row);
      w.lines = part.last - part.first;
      if (in_place) prefetch(lines + (part.start + 2 * rows.stride - first) * width);
      fold(lines + (part.start + part.first * rows.dilation - first) * width, w, columns.out,
           y + row * columns.out);
    }
  }

 private:
  void copy_line(const float* line, int64_t i) {
    constexpr int64_t kCount = FloatVec::kCount;
    const PoolAxis& columns = plan_.columns;
    const int64_t count = std::min(columns.in, plan_.width - columns.pad);
    float* to = copied_ + i * plan_.width + columns.pad;
    int64_t at = 0;
    for (; at + kCount <= count; at += kCount) FloatVec::load(line + at).store(to + at);
    if (at == count) return;
    if (count > kCount) return FloatVec::load(line + count - kCount).store(to + count - kCount);
    for (; at < count; ++at) to[at] = line[at];
  }

  /// The lines of the row after the next, which vectors of windows ask for too late: each asks for
  /// few lines of the cache.
  void prefetch(const float* lines) const {
    constexpr int64_t kCacheLine = 16;
    for (int64_t at = 0; at < plan_.rows.stride * plan_.width; at += kCacheLine)
      __builtin_prefetch(lines + at);
  }

  const BandPlan<Fold>& plan_;
  float *copied_, *found_;  // lines of x, and what windows of a line have found
};

/// Pools all planes of x; finish(row, count, y) sees each band's rows of y, from `row` on.
template <class Fold, class Finish>
void pool_bands(const KernelArgs& args, const BandPlan<Fold>& plan, const Finish& finish) {
  const Sizes& sizes = args.facts.inputs[0].layout.sizes;
  const PoolAxis &rows = plan.rows, &columns = plan.columns;
  const int64_t units = sizes[0] * sizes[1] * plan.bands, floats = plan.buffer_floats();
  const int64_t tasks = floats > 0 ? std::min(band_tasks(args.facts), units) : units;
  if (tasks == 0) return;
  const int64_t work = rows.kernel * columns.kernel * columns.out / FloatVec::kCount;
  const int64_t per_task = ceil_div(units, tasks) * plan.rows_of_band * work;
  parallel_ranges(args.context, tasks, grain_for(per_task), [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      BandPool<Fold> pool(plan, static_cast<float*>(args.workspace) + task * floats);
      for (int64_t at = units * task / tasks; at < units * (task + 1) / tasks; ++at) {
        const int64_t plane = at / plan.bands, row = at % plan.bands * plan.rows_of_band;
        const int64_t last = std::min(row + plan.rows_of_band, rows.out);
        float* y = args.out[0].as<float>() + plane * rows.out * columns.out;
        pool.run(args.in[0].as<float>() + plane * rows.in * columns.in, row, last, y);
        finish(row, last - row, y + row * columns.out);
      }
    }
  });
}

}  // namespace ORTM_ISA
}  // namespace ortmodule
