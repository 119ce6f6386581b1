// Sort and TopK along an axis: elements in order with their indices, of equal ones the lower index
// first; NaN counts as largest, as in torch. torch's kernels are taken where there are any, except
// for a TopK whose ties must be in this order (`stable`).
// Method: an element and its index become one number, so that any sort of these is stable; of a
// TopK only what comes first is sorted, and a few first ones are found by insertion.
#include <bit>

#include "kernels/axis.h"
#include "kernels/cpu/elementary_vec.h"
#include "kernels/dtype_dispatch.h"

namespace ortmodule {
inline namespace ORTM_ISA {
namespace {

/// An integer with the order of the elements of T.
template <class T>
auto order_of(T x) {
  const auto value = computed(x);
  using C = std::remove_const_t<decltype(value)>;
  using U = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;
  constexpr U kSign = U(1) << (sizeof(U) * 8 - 1);
  if constexpr (std::is_floating_point_v<C>) {
    if (value != value) return static_cast<U>(~U(0));
    const U bits = std::bit_cast<U>(value == C(0) ? C(0) : value);  // one zero for both
    return static_cast<U>(bits & kSign ? ~bits : bits | kSign);
  } else if constexpr (std::is_unsigned_v<C> && !std::is_same_v<C, bool>) {
    return static_cast<U>(value);
  } else {
    using S = std::make_signed_t<U>;
    return static_cast<U>(static_cast<U>(static_cast<S>(value)) ^ kSign);
  }
}

/// An element in the order of the result, and its index.
struct WideEntry {
  uint64_t order, index;
  friend bool operator<(const WideEntry& a, const WideEntry& b) {
    return a.order != b.order ? a.order < b.order : a.index < b.index;
  }
};

inline uint64_t make_entry(uint32_t order, int64_t index) {
  return (uint64_t{order} << 32) | static_cast<uint64_t>(index);
}
inline WideEntry make_entry(uint64_t order, int64_t index) {
  return {order, static_cast<uint64_t>(index)};
}
inline int64_t index_of(uint64_t entry) { return static_cast<int64_t>(entry & 0xffffffffu); }
inline int64_t index_of(const WideEntry& entry) { return static_cast<int64_t>(entry.index); }

struct SortShape {
  AxisSplit split;
  int64_t kept = 0;  // elements of the result along the axis
  bool descending = false;

  explicit SortShape(const StepFacts& facts)
      : split(split_at(facts.inputs[0].layout.sizes, facts.node().attrs.integer("axis", -1))) {
    const Attrs& attrs = facts.node().attrs;
    const Sizes& out = facts.outputs[0].layout.sizes;
    kept = split_at(out, attrs.integer("axis", -1)).axis;
    descending =
        facts.node().op == "TopK" ? attrs.integer("largest", 1) != 0 : attrs.flag("descending");
  }
  int64_t lines() const { return split.outer * split.inner; }
  size_t entry_bytes(DType dtype) const {
    return size_of(dtype) == 8 ? sizeof(WideEntry) : sizeof(uint64_t);
  }
  /// Lines that are sorted at a time, each in a part of the workspace.
  int64_t tasks(DType dtype) const {
    constexpr int64_t kMostTasks = 16, kMostBytes = int64_t{4} << 20;
    const auto bytes = static_cast<int64_t>(entry_bytes(dtype)) * std::max<int64_t>(split.axis, 1);
    return std::min(lines(), std::clamp<int64_t>(kMostBytes / bytes, 1, kMostTasks));
  }
};

Reason unsupported(const StepFacts& facts) {
  if (SortShape(facts).split.axis >= int64_t{1} << 32) return "an index takes more than 32 bits";
  return {};
}

Reason ties_unsupported(const StepFacts& facts) {
  if (!facts.node().attrs.flag("stable")) return "ties are torch's";
  return unsupported(facts);
}

size_t workspace_bytes(const StepFacts& facts) {
  const SortShape s(facts);
  const DType dtype = facts.inputs[0].dtype;
  return static_cast<size_t>(s.tasks(dtype) * s.split.axis) * s.entry_bytes(dtype);
}

constexpr int64_t kInserted = 16;

/// Whether none of a vector of elements comes before an earlier one `last`.
inline bool are_behind(const float* x, float last, bool descending) {
  const FloatVec v = FloatVec::load(x), limit(last);
  if (descending) return !any_of((v > limit) | ~(v == v));
  return !any_of((v < limit) | ((v == v) & ~(limit == limit)));
}

/// The first `kept` <= kInserted entries of a line, in order. Most elements are behind all of them.
template <class T, class Entry>
void insert_line(const SortShape& s, const T* x, Entry* entries) {
  using U = std::remove_const_t<decltype(order_of(T()))>;
  const int64_t n = s.split.axis, step = s.split.inner;
  const U flip = s.descending ? ~U(0) : U(0);
  int64_t found = 0;
  for (int64_t i = 0; i < n; ++i) {
    if constexpr (std::is_same_v<T, float>) {
      const bool all_found = step == 1 && found == s.kept;
      const auto last = all_found ? static_cast<size_t>(index_of(entries[found - 1])) : 0;
      while (all_found && i + FloatVec::kCount <= n && are_behind(x + i, x[last], s.descending))
        i += FloatVec::kCount;
      if (i >= n) break;
    }
    const U order = static_cast<U>(order_of(x[i * step]) ^ flip);
    const Entry entry = make_entry(order, i);
    if (found == s.kept && !(entry < entries[found - 1])) continue;
    int64_t at = found < s.kept ? found++ : found - 1;
    for (; at > 0 && entry < entries[at - 1]; --at) entries[at] = entries[at - 1];
    entries[at] = entry;
  }
}

template <class T, class Entry>
void sort_line(const SortShape& s, const T* x, Entry* entries, T* values, int64_t* indices) {
  const int64_t n = s.split.axis, step = s.split.inner;
  if (s.kept <= kInserted && s.kept < n) {
    insert_line(s, x, entries);
  } else {
    for (int64_t i = 0; i < n; ++i) {
      const auto order = order_of(x[i * step]);
      using U = std::remove_const_t<decltype(order)>;
      entries[i] = make_entry(static_cast<U>(s.descending ? ~order : order), i);
    }
    if (s.kept < n) std::nth_element(entries, entries + s.kept, entries + n);
    std::sort(entries, entries + s.kept);
  }
  for (int64_t i = 0; i < s.kept; ++i) {
    const int64_t index = index_of(entries[i]);
    values[i * step] = x[index * step];
    indices[i * step] = index;
  }
}

template <class T>
void sort_all(const KernelArgs& args) {
  using Entry = std::conditional_t<sizeof(T) == 8, WideEntry, uint64_t>;
  const SortShape s(args.facts);
  const int64_t lines = s.lines(), tasks = s.tasks(args.in[0].dtype);
  if (lines == 0 || s.kept == 0) return;
  constexpr int64_t kCost = 16;  // of an element, in those that are only read
  parallel_ranges(
      args.context, tasks, grain_for(kCost * ceil_div(lines, tasks) * s.split.axis),
      [&](int64_t begin, int64_t end) {
        for (int64_t task = begin; task < end; ++task) {
          Entry* entries = static_cast<Entry*>(args.workspace) + task * s.split.axis;
          for (int64_t line = lines * task / tasks; line < lines * (task + 1) / tasks; ++line) {
            const int64_t outer = line / s.split.inner, inner = line % s.split.inner;
            const int64_t to = outer * s.kept * s.split.inner + inner;
            sort_line(s, args.in[0].as<T>() + outer * s.split.axis * s.split.inner + inner, entries,
                      args.out[0].as<T>() + to, args.out[1].as<int64_t>() + to);
          }
        }
      });
}

void sort(const KernelArgs& args) {
  dispatch_number(args.in[0].dtype, [&]<class T> { sort_all<T>(args); });
}

REGISTER_CPU_KERNEL({.op = "Sort",
                     .name = "sort_cpu",
                     .dtypes = kRealTypes | kWideUnsigned,
                     .run = sort,
                     .unsupported = unsupported,
                     .workspace_bytes = workspace_bytes,
                     .priority = -1});
REGISTER_CPU_KERNEL({.op = "TopK",
                     .name = "top_k_cpu",
                     .dtypes = kRealTypes | kWideUnsigned,
                     .run = sort,
                     .unsupported = unsupported,
                     .workspace_bytes = workspace_bytes,
                     .priority = -1});
REGISTER_CPU_KERNEL({.op = "TopK",
                     .name = "stable_top_k_cpu",
                     .dtypes = kRealTypes | kWideUnsigned,
                     .run = sort,
                     .unsupported = ties_unsupported,
                     .workspace_bytes = workspace_bytes,
                     .priority = 1});

}  // namespace
}  // namespace ORTM_ISA
}  // namespace ortmodule
