// Pools of row-major float32 of any number of dimensions, by lines of outputs: the lines of x that
// the windows of a line share are folded into one, vector by vector, and the windows then along it.
// That reads a window of K x K places as 2 K lines instead of K^2 places. Several lines are folded
// before the first is read: a vector that is read from two stores waits for both.
//
// Of elements that compare equal, as zeros of both signs do, any may be the largest.
#pragma once

#include <span>

#include "kernels/cpu/pixel_windows.h"
#include "kernels/cpu/pool_line.h"

namespace ortmodule {
inline namespace ORTM_ISA {

inline PoolAxis pool_axis(const PatchAxis& axis) {
  const int64_t pad = -axis.offsets[0];
  const int64_t dilation = axis.places() > 1 ? axis.offsets[1] + pad : 1;
  return {axis.in, axis.out, axis.places(), axis.stride, pad, dilation};
}

/// How output lines are cut into blocks, from the shape of windows alone.
struct LinePlan {
  static constexpr int64_t kFloats = 4096;  // that a block sees: they stay in the first cache

  PoolAxis columns;
  PoolLine along = nullptr;
  std::vector<int64_t> seen;  // of each line of outputs: where the lines begin that it sees, ...
  std::vector<size_t> ends;   // ... and where they end in `seen`
  bool in_place = false;      // windows of one line, which lie inside of it
  int64_t block = 1;          // outputs at a time
  int64_t width = 0;          // places that the windows of a block see, at least a vector of them
  int64_t together = 1;       // lines of outputs that are folded one after the other

  static bool stays_inside(const PatchAxis& axis) {
    return axis.offsets.front() >= 0 &&
           (axis.out - 1) * axis.stride + axis.offsets.back() < axis.in;
  }

  LinePlan() = default;
  LinePlan(const PatchShape& windows, PoolLine fold)
      : columns(pool_axis(windows.last())), along(fold) {
    const int64_t reach = (columns.kernel - 1) * columns.dilation + 1;
    const int64_t fit = (kFloats - reach) / columns.stride / FloatVec::kCount * FloatVec::kCount;
    block = std::clamp<int64_t>(fit, FloatVec::kCount, std::max(columns.out, FloatVec::kCount));
    width = (block - 1) * columns.stride + reach;
    if (block >= columns.out) together = std::clamp<int64_t>(kFloats / width, 1, 8);
    in_place = windows.places == columns.kernel && columns.out >= FloatVec::kCount &&
               std::all_of(windows.axes.begin(), windows.axes.end(), stays_inside);
    std::vector<int64_t> lines;
    windows.for_each_segment(0, windows.pixels, [&](const PatchSegment& segment) {
      find_lines(windows, segment, lines);
      seen.insert(seen.end(), lines.begin(), lines.end());
      ends.push_back(seen.size());
    });
  }

  std::span<const int64_t> lines_of(size_t line) const {
    const size_t first = line == 0 ? 0 : ends[line - 1];
    return {seen.data() + first, ends[line] - first};
  }

  /// Dilation may make blocks many times as long as x.
  bool is_usable() const { return width <= int64_t{1} << 20; }
  int64_t buffer_floats() const { return together * width; }
  size_t workspace_bytes(const StepFacts& facts) const {
    if (!is_usable() || in_place) return 0;
    return static_cast<size_t>(pool_tasks(facts) * buffer_floats()) * sizeof(float);
  }
};

/// to[i] = the fold of x[line + i] over `lines`, for kVectors whole vectors.
template <class Fold, int kVectors>
void fold_vectors(const float* x, std::span<const int64_t> lines, float* to) {
  FloatVec folded[kVectors];
  ORTM_UNROLL
  for (FloatVec& vector : folded) vector = Fold::start();
  for (const int64_t line : lines) {
    ORTM_UNROLL
    for (int64_t v = 0; v < kVectors; ++v)
      folded[v] = Fold::add(folded[v], FloatVec::load(x + line + v * FloatVec::kCount));
  }
  ORTM_UNROLL
  for (int64_t v = 0; v < kVectors; ++v) folded[v].store(to + v * FloatVec::kCount);
}

/// The same for any number of places.
template <class Fold>
void fold_lines(const float* x, std::span<const int64_t> lines, int64_t count, float* to) {
  constexpr int64_t kCount = FloatVec::kCount;
  if (count < kCount) {
    FloatVec folded = Fold::start();
    for (const int64_t line : lines) folded = Fold::add(folded, FloatVec::load(x + line, count));
    return folded.store(to, count);
  }
  int64_t at = 0;
  for (; at + 4 * kCount <= count; at += 4 * kCount) fold_vectors<Fold, 4>(x + at, lines, to + at);
  for (; at + 2 * kCount <= count; at += 2 * kCount) fold_vectors<Fold, 2>(x + at, lines, to + at);
  for (; at < count; at += kCount) {
    at = std::min(at, count - kCount);  // some once more
    fold_vectors<Fold, 1>(x + at, lines, to + at);
  }
}

/// The lines of a task, which has a buffer.
template <class Fold>
class LinePool {
 public:
  LinePool(const LinePlan& plan, float* buffer) : plan_(plan), buffer_(buffer) {
    if (!plan.in_place) std::fill_n(buffer, plan.buffer_floats(), nothing());
  }

  /// Outputs of lines [line, line + lines) of a plane from `first` on, `count` of each.
  void run(const float* image, int64_t line, int64_t lines, int64_t first, int64_t count,
           float* y) {
    const PoolAxis& columns = plan_.columns;
    const LineWindows w{1, 0, columns.kernel, columns.dilation, columns.stride};
    const int64_t start = first * columns.stride - columns.pad;
    for (int64_t i = 0; i < lines && !plan_.in_place; ++i)
      fold(image, plan_.lines_of(static_cast<size_t>(line + i)), start, buffer_ + i * plan_.width);
    for (int64_t i = 0; i < lines; ++i) {
      const float* from = buffer_ + i * plan_.width;
      if (plan_.in_place) from = image + plan_.lines_of(static_cast<size_t>(line + i))[0] + start;
      plan_.along(from, w, count, y + i * columns.out + first);
    }
  }

 private:
  static float nothing() { return Fold::start().v[0]; }

  /// The places of a line from `start` on.
  void fold(const float* image, std::span<const int64_t> lines, int64_t start, float* to) const {
    const PoolAxis& columns = plan_.columns;
    const int64_t begin = std::clamp<int64_t>(start, 0, columns.in);
    const int64_t end = std::clamp(start + plan_.width, begin, columns.in);
    if (plan_.block < columns.out) {  // else what lies beside x is the same in all lines
      std::fill_n(to, begin - start, nothing());
      std::fill_n(to + (end - start), plan_.width - (end - start), nothing());
    }
    fold_lines<Fold>(image + begin, lines, end - begin, to + (begin - start));
  }

  const LinePlan& plan_;
  float* buffer_;
};

/// Pools all planes of x; finish(line, first, count, y) sees outputs of each line of a plane.
template <class Fold, class Finish>
void pool_lines(const KernelArgs& args, const PatchShape& windows, const LinePlan& plan,
                const Finish& finish) {
  const Sizes& sizes = args.facts.inputs[0].layout.sizes;
  const int64_t columns = plan.columns.out, lines = std::ssize(plan.ends);
  const int64_t units = sizes[0] * sizes[1] * lines,
                tasks = std::min(pool_tasks(args.facts), units);
  if (tasks == 0) return;
  const int64_t work = windows.places * columns / FloatVec::kCount;
  const auto run_task = [&](int64_t task) {
    auto* buffer = plan.in_place ? nullptr : static_cast<float*>(args.workspace);
    LinePool<Fold> pool(plan, buffer ? buffer + task * plan.buffer_floats() : nullptr);
    const int64_t from = units * task / tasks, stop = units * (task + 1) / tasks;
    const float* image = args.in[0].as<float>() + from / lines * windows.in_pixels;
    float* y = args.out[0].as<float>() + from * columns;
    for (int64_t at = from, line = from % lines, step = 1; at < stop; at += step) {
      step = std::min({plan.together, stop - at, lines - line});
      for (int64_t first = 0, count = 0; first < columns; first += count) {
        count = std::min(plan.block, columns - first);
        if (plan.in_place && count < FloatVec::kCount)  // some once more
          first = columns - (count = FloatVec::kCount);
        pool.run(image, line, step, first, count, y);
        for (int64_t i = 0; i < step; ++i) finish(line + i, first, count, y + i * columns + first);
      }
      y += step * columns;
      if ((line += step) < lines) continue;
      line = 0;
      image += windows.in_pixels;
    }
  };
  parallel_ranges(args.context, tasks, grain_for(ceil_div(units, tasks) * work),
                  [&](int64_t begin, int64_t end) {
                    for (int64_t task = begin; task < end; ++task) run_task(task);
                  });
}

}  // namespace ORTM_ISA
}  // namespace ortmodule
