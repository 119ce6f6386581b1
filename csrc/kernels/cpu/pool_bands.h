// Pools of row-major images of float32, by bands of output rows: vectors of neighbouring windows
// keep their results in registers, place by place. Lines of x are copied, with what changes no
// result beside them, where windows reach beyond their ends.
//
// A Fold has `start`, which changes no result, and `add`; the elements of each line of a window are
// folded first, once for all windows that share the line.
#pragma once

#include "kernels/cpu/pool_line.h"

namespace ortmodule {
inline namespace ORTM_ISA {

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
    by_lines = rows.stride == 1 && rows.kernel > 1;
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
    return static_cast<size_t>(pool_tasks(facts) * buffer_floats()) * sizeof(float);
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
  const int64_t tasks = floats > 0 ? std::min(pool_tasks(args.facts), units) : units;
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
