// How the lines of a Resize are worked out, which is decided when a plan is made (resize.cpp).
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "kernels/memory_format.h"
#include "kernels/resize_taps.h"

namespace ortmodule {
inline namespace ORTM_ISA {

constexpr size_t kMostSpatial = 6;
constexpr size_t kMostKept = 16;    // stretched lines of a task
constexpr size_t kWidestStep = 16;  // floats of a vector

/// The same number of taps for each output of an axis, tap by tap, padded to whole vectors. An
/// output that has fewer adds its last in parts, which are exact as they are powers of two of it;
/// one without taps, and the padding, reads element 0.
struct EvenTaps {
  size_t count = 0, width = 0;
  std::vector<int32_t> indices;
  std::vector<double> doubles;
  std::vector<float> floats;
  std::vector<int64_t> outside;  // outputs without taps
  bool is_doubled = false;       // each element for two outputs

  template <class C>
  const C* weights(size_t tap) const {
    if constexpr (sizeof(C) == sizeof(float))
      return floats.data() + tap * width;
    else
      return doubles.data() + tap * width;
  }
  const int32_t* at(size_t tap) const { return indices.data() + tap * width; }
};

/// A line of x that a line of y reads, and where a task keeps it.
struct LineSource {
  int64_t line;
  double weight;
  int64_t place;
};

struct Resizing {
  std::vector<ResizeTaps> axes;
  int64_t planes = 1, in_lines = 1, lines = 1;  // lines of a plane of x and y
  int64_t channels = 1;                         // elements that lie together, and move together
  bool copies = false;                          // all weights are 1
  bool doubles_lines = false;                   // each line of x for two neighbouring ones of y
  double outside = 0;                           // the value for extrapolation
  EvenTaps even;                                // of the last axis
  std::vector<int64_t> kept_along;              // by outer axis: lines that a task keeps stretched
  size_t kept = 0;                              // lines together; 0: lines of x are added first
  std::vector<LineSource> sources;              // by line of y, if they are not too many
  std::vector<int64_t> source_begin;

  const ResizeTaps& last() const { return axes.back(); }
  int64_t in_width() const { return last().in * channels; }
  int64_t out_width() const { return last().out * channels; }
  /// Of a stretched line.
  int64_t row_elements() const {
    return channels > 1 ? out_width() : static_cast<int64_t>(even.width);
  }
  /// Of the workspace of a task: a line of x, and stretched lines.
  int64_t task_elements() const {
    return in_width() + static_cast<int64_t>(std::max<size_t>(1, kept)) * row_elements();
  }
};

/// body(source) for the lines of x that a line of y reads; nothing if it lies outside.
template <class Body>
void for_each_source(const Resizing& r, int64_t line, const Body& body) {
  if (!r.source_begin.empty()) {
    const auto at = static_cast<size_t>(line);
    for (int64_t i = r.source_begin[at]; i < r.source_begin[at + 1]; ++i)
      body(r.sources[static_cast<size_t>(i)]);
    return;
  }
  const size_t outer = r.axes.size() - 1;
  std::array<int64_t, kMostSpatial> first{}, count{}, tap{};
  for (size_t d = outer; d-- > 0;) {
    const ResizeTaps& axis = r.axes[d];
    const auto o = static_cast<size_t>(line % axis.out);
    line /= axis.out;
    first[d] = axis.begin[o];
    count[d] = axis.begin[o + 1] - axis.begin[o];
    if (count[d] == 0) return;
  }
  for (bool more = true; more;) {
    LineSource source{0, 1, 0};
    for (size_t d = 0; d < outer; ++d) {
      const auto t = static_cast<size_t>(first[d] + tap[d]);
      const int64_t index = r.axes[d].indices[t];
      source.line = source.line * r.axes[d].in + index;
      source.weight *= r.axes[d].weights[t];
      if (r.kept > 0) source.place = source.place * r.kept_along[d] + index % r.kept_along[d];
    }
    body(source);
    more = false;
    for (size_t d = outer; d-- > 0 && !more;) {
      more = ++tap[d] < count[d];
      if (!more) tap[d] = 0;
    }
  }
}

namespace resize_order {

inline int64_t most_taps(const ResizeTaps& axis) {
  int64_t most = 1;
  for (size_t o = 0; o + 1 < axis.begin.size(); ++o)
    most = std::max(most, axis.begin[o + 1] - axis.begin[o]);
  return most;
}

/// Whether each element is for two outputs.
inline bool is_doubled(const ResizeTaps& axis) {
  const auto outputs = static_cast<size_t>(axis.out);
  if (axis.out != 2 * axis.in || axis.indices.size() != outputs) return false;
  for (size_t o = 0; o < outputs; ++o)
    if (axis.begin[o] != static_cast<int64_t>(o) || axis.indices[o] != static_cast<int64_t>(o / 2))
      return false;
  return true;
}

inline EvenTaps even_taps(const ResizeTaps& axis) {
  EvenTaps even;
  const auto outputs = static_cast<size_t>(axis.out);
  even.count = static_cast<size_t>(most_taps(axis));
  even.width = (outputs + kWidestStep - 1) / kWidestStep * kWidestStep;
  even.indices.assign(even.count * even.width, 0);
  even.doubles.assign(even.count * even.width, 0.0);
  for (size_t o = 0; o < outputs; ++o) {
    const auto begin = static_cast<size_t>(axis.begin[o]);
    const auto found = static_cast<size_t>(axis.begin[o + 1]) - begin;
    if (found == 0) even.outside.push_back(static_cast<int64_t>(o));
    double weight = 0;
    for (size_t t = 0; t < even.count && found > 0; ++t) {
      const size_t tap = begin + std::min(t, found - 1);
      if (t < found) weight = axis.weights[tap];
      if (t + 1 >= found && t + 1 < even.count) weight /= 2;
      even.indices[t * even.width + o] = static_cast<int32_t>(axis.indices[tap]);
      even.doubles[t * even.width + o] = weight;
    }
  }
  even.floats.assign(even.doubles.begin(), even.doubles.end());
  even.is_doubled = is_doubled(axis);
  return even;
}

inline bool is_unchanged(const ResizeTaps& axis) {
  if (axis.in != axis.out || axis.indices.size() != static_cast<size_t>(axis.in)) return false;
  for (size_t o = 0; o < axis.indices.size(); ++o)
    if (axis.begin[o] != static_cast<int64_t>(o) || axis.indices[o] != static_cast<int64_t>(o) ||
        axis.weights[o] != 1)
      return false;
  return true;
}

/// Whether the lines that an output reads have places of their own, modulo `places`.
inline bool are_apart(const ResizeTaps& axis, int64_t places) {
  for (size_t o = 0; o + 1 < axis.begin.size(); ++o)
    for (int64_t t = axis.begin[o]; t < axis.begin[o + 1]; ++t)
      for (int64_t u = axis.begin[o]; u < t; ++u) {
        const int64_t a = axis.indices[static_cast<size_t>(t)];
        const int64_t b = axis.indices[static_cast<size_t>(u)];
        if (a != b && a % places == b % places) return false;
      }
  return true;
}

/// Lines of x are stretched before they are added if y has at least as many.
inline void choose_order(Resizing& r) {
  if (r.copies || r.axes.size() < 2 || r.lines < r.in_lines) return;
  std::vector<int64_t> along;
  size_t kept = 1;
  for (size_t d = 0; d + 1 < r.axes.size(); ++d) {
    along.push_back(most_taps(r.axes[d]));
    kept *= static_cast<size_t>(along.back());
    if (kept > kMostKept || !are_apart(r.axes[d], along.back())) return;
  }
  r.kept_along = std::move(along);
  r.kept = kept;
}

inline void list_sources(Resizing& r) {
  constexpr int64_t kMostListed = 65536;
  std::vector<LineSource> sources;
  std::vector<int64_t> begin;
  for (int64_t line = 0; line < r.lines; ++line) {
    begin.push_back(static_cast<int64_t>(sources.size()));
    for_each_source(r, line, [&](const LineSource& source) { sources.push_back(source); });
    if (static_cast<int64_t>(sources.size()) > kMostListed) return;
  }
  begin.push_back(static_cast<int64_t>(sources.size()));
  r.sources = std::move(sources);
  r.source_begin = std::move(begin);
}

}  // namespace resize_order

/// `mode`: of the step. Axes that keep their size are planes or channels where nothing lies
/// between.
inline std::shared_ptr<Resizing> resizing_of(const ResizeMode& mode, const StepFacts& facts) {
  const Sizes& x = facts.inputs[0].layout.sizes;
  auto r = std::make_shared<Resizing>();
  r->channels = is_pixel_major(facts.inputs[0].layout) ? x[1] : 1;
  r->planes = x[0] * x[1] / r->channels;
  r->copies = mode.kind == ResizeMode::Kind::Nearest;
  r->outside = facts.node().attrs.number("extrapolation_value", 0.0);
  for (size_t d = 0; d + 2 < x.size(); ++d) r->axes.push_back(resize_taps(mode, facts, d));
  while (r->axes.size() > 1 && resize_order::is_unchanged(r->axes.back())) {
    r->channels *= r->last().in;
    r->axes.pop_back();
  }
  while (r->axes.size() > 1 && resize_order::is_unchanged(r->axes.front())) {
    r->planes *= r->axes.front().in;
    r->axes.erase(r->axes.begin());
  }
  for (size_t d = 0; d + 1 < r->axes.size(); ++d) {
    r->in_lines *= r->axes[d].in;
    r->lines *= r->axes[d].out;
  }
  r->even = resize_order::even_taps(r->last());
  r->doubles_lines = r->axes.size() == 2 && resize_order::is_doubled(r->axes.front());
  resize_order::choose_order(*r);
  resize_order::list_sources(*r);
  return r;
}

}  // namespace ORTM_ISA
}  // namespace ortmodule
