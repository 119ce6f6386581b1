// Pools of row-major images of float32, by bands of output rows: vectors of neighbouring windows
// keep their results in registers, place by place. Lines of x are copied, with what changes no
// result beside them, where windows reach beyond their ends. Short lines of a band are folded as
// one long line, since each by itself would fill vectors badly; what is found across their ends is
// not read.
//
// A Fold has `start`, which changes no result, and `add`; the elements of each line of a window are
// folded first, once for all windows that share the line.
#pragma once

#include <array>
#include <vector>

#include "kernels/cpu/pool_line.h"

namespace ortmodule {
inline namespace ORTM_ISA {

/// How planes are cut into bands, from their shape alone.
template <class Fold>
struct BandPlan {
  PoolAxis rows, columns;
  std::vector<WindowPart<int64_t>>
      windows;               // by row of outputs: found once, as they take divisions
  PoolLine along = nullptr;  // from a line, or several, to the outputs of a row
  bool copies = false;       // lines of x
  bool by_lines = false;     // each line is folded by itself, for all windows that see it
  bool joined = false;       // and all of a band in one go
  int64_t width = 0;         // of a line or its copy
  int64_t results = 0;       // of a line by itself; at least a vector unless they are joined
  int64_t rows_of_band = 1, bands = 1;

  BandPlan() = default;
  BandPlan(const PoolAxis& down, const PoolAxis& across)
      : rows(down), columns(across), along(pool_line_for<Fold>(columns)) {
    for (int64_t row = 0; row < rows.out; ++row) windows.push_back(rows.window(row));
    joined = columns.out <= kShortLine && rows.kernel >= rows.stride;
    by_lines = joined || (rows.stride == 1 && rows.kernel > 1);
    if (joined)
      join_lines();
    else
      keep_lines_apart();
    cut_bands();
    if (!joined || copies || !has_short_band()) return;
    copy_lines();
    cut_bands();
  }

  const WindowPart<int64_t>& window(int64_t row) const { return windows[static_cast<size_t>(row)]; }
  /// Lines [first, second) of x that output rows [begin, end) see.
  std::array<int64_t, 2> lines_of(int64_t begin, int64_t end) const {
    const int64_t first = std::clamp<int64_t>(window(begin).start, 0, rows.in);
    const int64_t last = window(end - 1).start + (rows.kernel - 1) * rows.dilation + 1;
    return {first, std::clamp(last, first, rows.in)};
  }

  int64_t most_lines() const {
    return std::min((rows_of_band - 1) * rows.stride + (rows.kernel - 1) * rows.dilation + 1,
                    rows.in);
  }
  int64_t copied_floats() const {
    return copies ? most_lines() * width + beyond(columns.stride) : 0;
  }
  int64_t buffer_floats() const {
    return copied_floats() + (by_lines ? most_lines() * results + beyond(1) : 0);
  }
  /// Dilation and padding may make copies many times as long as x.
  bool is_usable() const { return buffer_floats() <= int64_t{1} << 20; }
  size_t workspace_bytes(const StepFacts& facts) const {
    if (!is_usable()) return 0;
    return static_cast<size_t>(pool_tasks(facts) * buffer_floats()) * sizeof(float);
  }

 private:
  static constexpr int64_t kShortLine = 40;  // outputs

  int64_t reach() const { return (columns.kernel - 1) * columns.dilation; }
  /// What vectors read behind the last line of joined ones.
  int64_t beyond(int64_t stride) const { return joined ? FloatVec::kCount * stride + reach() : 0; }

  void keep_lines_apart() {
    results = std::max(columns.out, FloatVec::kCount);
    width = (results - 1) * columns.stride + reach() + 1;
    copies = columns.pad > 0 || width > columns.in;
    if (!copies) width = columns.in;
  }

  void join_lines() {
    width = columns.in;
    results = width / columns.stride;
    if (columns.pad > 0 || seen() > width || width % columns.stride != 0) copy_lines();
  }
  void copy_lines() {
    copies = true;
    width = ceil_div(seen(), columns.stride) * columns.stride;
    results = width / columns.stride;
  }
  /// Positions of a line that its windows see.
  int64_t seen() const {
    return std::max<int64_t>((columns.out - 1) * columns.stride + reach() + 1, 1);
  }

  void cut_bands() {
    constexpr int64_t kFloats = 6144;  // of a band's buffers, which stay in the first cache
    const int64_t lines = kFloats / std::max<int64_t>((copies ? width : 0) + results, 1);
    const int64_t fit = (lines - (rows.kernel - 1) * rows.dilation - 1) / rows.stride + 1;
    rows_of_band = std::clamp<int64_t>(fit, 1, std::max<int64_t>(rows.out, 1));
    bands = ceil_div(rows.out, rows_of_band);
  }
  /// Whether some band has less than a vector of results: one would read behind the end of x.
  bool has_short_band() const {
    for (int64_t band = 0; band < bands; ++band) {
      const int64_t row = band * rows_of_band;
      const auto [first, last] = lines_of(row, std::min(row + rows_of_band, rows.out));
      if ((last - first - 1) * results + columns.out < FloatVec::kCount) return true;
    }
    return false;
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
    const auto [first, last] = plan_.lines_of(begin, end);
    const float* lines = plane + first * columns.in;
    if (plan_.copies) {
      for (int64_t i = 0; i < last - first; ++i) copy_line(lines + i * columns.in, i);
      lines = copied_;
    }
    LineWindows w{1, rows.dilation * plan_.width, columns.kernel, columns.dilation, columns.stride};
    if (!plan_.by_lines) {
      const bool in_place = !plan_.copies;
      return for_each_row(begin, end, [&](int64_t row, const WindowPart<int64_t>& part) {
        w.lines = part.last - part.first;
        if (in_place) prefetch(lines + (part.start + 2 * rows.stride - first) * plan_.width);
        plan_.along(lines + (part.start + part.first * rows.dilation - first) * plan_.width, w,
                    columns.out, y + row * columns.out);
      });
    }
    if (plan_.joined && last > first)
      plan_.along(lines, w, (last - first - 1) * plan_.results + columns.out, found_);
    for (int64_t i = 0; i < last - first && !plan_.joined; ++i)
      plan_.along(lines + i * plan_.width, w, plan_.results, found_ + i * plan_.results);
    LineWindows down{1, rows.dilation * plan_.results, 1, 1, 1};
    for_each_row(begin, end, [&](int64_t row, const WindowPart<int64_t>& part) {
      down.lines = part.last - part.first;
      const float* top = found_ + (part.start + part.first * rows.dilation - first) * plan_.results;
      float* to = y + row * columns.out;
      if (columns.out >= FloatVec::kCount || (end - row) * columns.out < FloatVec::kCount)
        return pool_line<Fold, 1, 1>(top, down, columns.out, to);
      FloatVec results[1];  // a whole vector, whose rest the next rows write over
      pool_vectors<Fold, 1, 1>(top, down, results);
      results[0].store(to);
    });
  }

 private:
  template <class Body>
  void for_each_row(int64_t begin, int64_t end, const Body& body) const {
    for (int64_t row = begin; row < end; ++row) body(row, plan_.window(row));
  }

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
