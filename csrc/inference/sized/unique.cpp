// Unique: the different slices of x along `axis` (without an axis: elements), with the index of
// the first of each, the place of each slice among them, and how often each occurs. Sorted, or in
// the order of their first occurrence. NaN are equal to each other and come last.
// Method: a stable sort of the slices' numbers, in which equal ones stand side by side; elements
// are looked up in a table.
#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>
#include <unordered_map>
#include <vector>

#include "inference/sized/element_reader.h"
#include "inference/sized/sized_op.h"

namespace ortmodule {
namespace {

struct Slices {
  int64_t outer = 1, count = 1, inner = 1;
  bool flat = true;
  size_t axis = 0;

  explicit Slices(const SizedCall& call) {
    const Sizes& sizes = call.operand(0).sizes;
    flat = !call.attrs().has("axis");
    count = element_count(sizes);
    if (flat) return;
    axis = static_cast<size_t>(call.attrs().integer("axis"));
    count = sizes[axis];
    for (size_t d = 0; d < sizes.size(); ++d)
      (d < axis ? outer : inner) *= d == axis ? 1 : sizes[d];
  }

  Sizes sizes(const SizedCall& call, int64_t kept) const {
    if (flat) return {kept};
    Sizes result = call.operand(0).sizes;
    result[axis] = kept;
    return result;
  }
};

template <class T>
int compare(T a, T b) {
  const bool a_nan = a != a, b_nan = b != b;
  if (a_nan || b_nan) return static_cast<int>(a_nan) - static_cast<int>(b_nan);
  return a < b ? -1 : b < a ? 1 : 0;
}

template <class Read>
int compare_slices(const Slices& s, const Read& read, int64_t a, int64_t b) {
  for (int64_t outer = 0; outer < s.outer; ++outer)
    for (int64_t i = 0; i < s.inner; ++i) {
      const int64_t at = outer * s.count * s.inner + i;
      if (const int order = compare(read(at + a * s.inner), read(at + b * s.inner))) return order;
    }
  return 0;
}

// The first slice of each kind, and the kind of each slice.
struct Kinds {
  std::vector<int64_t> firsts, kind_of;
};

template <class Read>
Kinds find_kinds_of_slices(const Slices& s, const Read& read, bool sorted) {
  std::vector<int64_t> order(static_cast<size_t>(s.count));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return compare_slices(s, read, a, b) < 0; });
  Kinds kinds;
  kinds.kind_of.resize(order.size());
  for (size_t i = 0; i < order.size(); ++i) {
    if (i == 0 || compare_slices(s, read, order[i - 1], order[i]) != 0)
      kinds.firsts.push_back(order[i]);
    kinds.kind_of[static_cast<size_t>(order[i])] = static_cast<int64_t>(kinds.firsts.size()) - 1;
  }
  if (sorted) return kinds;
  std::vector<int64_t> by_first(kinds.firsts.size()), place(kinds.firsts.size());
  std::iota(by_first.begin(), by_first.end(), 0);
  std::sort(by_first.begin(), by_first.end(), [&](int64_t a, int64_t b) {
    return kinds.firsts[static_cast<size_t>(a)] < kinds.firsts[static_cast<size_t>(b)];
  });
  for (size_t i = 0; i < by_first.size(); ++i)
    place[static_cast<size_t>(by_first[i])] = static_cast<int64_t>(i);
  for (int64_t& kind : kinds.kind_of) kind = place[static_cast<size_t>(kind)];
  std::sort(kinds.firsts.begin(), kinds.firsts.end());
  return kinds;
}

template <class T>
uint64_t key_of(T value) {
  if constexpr (std::is_floating_point_v<T>) {
    if (value != value) return ~uint64_t{0};  // not the bits of a number
    return std::bit_cast<uint64_t>(static_cast<double>(value == 0 ? T(0) : value));
  } else {
    return static_cast<uint64_t>(value);
  }
}

// The same of single elements, which are looked up instead of compared.
template <class Read>
Kinds find_kinds_of_elements(int64_t count, const Read& read, bool sorted) {
  Kinds kinds;
  std::unordered_map<uint64_t, int64_t> known;
  kinds.kind_of.reserve(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    const auto [at, added] =
        known.emplace(key_of(read(i)), static_cast<int64_t>(kinds.firsts.size()));
    if (added) kinds.firsts.push_back(i);
    kinds.kind_of.push_back(at->second);
  }
  if (!sorted) return kinds;
  std::vector<int64_t> order(kinds.firsts.size()), place(order.size());
  std::iota(order.begin(), order.end(), 0);
  const auto first = [&](int64_t kind) { return kinds.firsts[static_cast<size_t>(kind)]; };
  std::sort(order.begin(), order.end(),
            [&](int64_t a, int64_t b) { return compare(read(first(a)), read(first(b))) < 0; });
  std::vector<int64_t> firsts;
  for (const int64_t kind : order) {
    place[static_cast<size_t>(kind)] = static_cast<int64_t>(firsts.size());
    firsts.push_back(first(kind));
  }
  kinds.firsts = std::move(firsts);
  for (int64_t& kind : kinds.kind_of) kind = place[static_cast<size_t>(kind)];
  return kinds;
}

// For each element, a number that compares as its text does.
std::vector<int64_t> places_of_texts(const SizedCall& call) {
  const auto* numbers = call.data<int64_t>(0);
  const int64_t count = element_count(call.operand(0).sizes);
  std::vector<int64_t> different(numbers, numbers + count);
  std::sort(different.begin(), different.end());
  different.erase(std::unique(different.begin(), different.end()), different.end());
  std::sort(different.begin(), different.end(),
            [&](int64_t a, int64_t b) { return call.texts().text(a) < call.texts().text(b); });
  std::unordered_map<int64_t, int64_t> places;
  for (size_t i = 0; i < different.size(); ++i)
    places.emplace(different[i], static_cast<int64_t>(i));
  std::vector<int64_t> result;
  for (int64_t i = 0; i < count; ++i) result.push_back(places.at(numbers[i]));
  return result;
}

template <class Read>
Kinds find_kinds(const Slices& s, const Read& read, bool sorted) {
  return s.flat ? find_kinds_of_elements(s.count, read, sorted)
                : find_kinds_of_slices(s, read, sorted);
}

void run_unique(const SizedCall& call) {
  const HostTensorView& x = call.operand(0);
  const Slices s(call);
  Kinds kinds;
  const bool sorted = call.attrs().integer("sorted", 1) != 0;
  if (x.texts) {
    const std::vector<int64_t> places = places_of_texts(call);
    const auto read = [&](int64_t i) { return places[static_cast<size_t>(i)]; };
    kinds = find_kinds(s, read, sorted);
  } else {
    with_reader(x, [&](const auto& read) { kinds = find_kinds(s, read, sorted); });
  }
  const auto kept = static_cast<int64_t>(kinds.firsts.size());
  const auto bytes = static_cast<size_t>(s.inner) * size_of(x.dtype);
  const Sizes sizes = s.sizes(call, kept);
  auto* y = x.texts ? reinterpret_cast<char*>(call.texts_result(sizes))
                    : call.result<char>(x.dtype, sizes);
  const auto* from = call.data<char>(0);
  for (int64_t outer = 0; outer < s.outer && bytes > 0; ++outer)
    for (int64_t i = 0; i < kept; ++i)
      std::memcpy(
          y + static_cast<size_t>(outer * kept + i) * bytes,
          from +
              static_cast<size_t>(outer * s.count + kinds.firsts[static_cast<size_t>(i)]) * bytes,
          bytes);
  if (call.attrs().integer("without_firsts", 0) == 0) {
    auto* indices = call.result<int64_t>(DType::Int64, {kept});
    std::copy(kinds.firsts.begin(), kinds.firsts.end(), indices);
  }
  auto* inverse = call.result<int64_t>(DType::Int64, {s.count});
  std::copy(kinds.kind_of.begin(), kinds.kind_of.end(), inverse);
  auto* counts = call.result<int64_t>(DType::Int64, {kept});
  std::fill_n(counts, kept, 0);
  for (int64_t kind : kinds.kind_of) ++counts[kind];
}

std::vector<SizedResult> most_unique(const SizedCall& call) {
  const Slices s(call);
  std::vector<SizedResult> most(4, {DType::Int64, {s.count}});
  most[0] = {call.operand(0).dtype, s.sizes(call, s.count)};
  if (call.attrs().integer("without_firsts", 0) != 0) most.pop_back();
  return most;
}

const SizedRegistrar kOp({"Unique", run_unique, most_unique});

}  // namespace
}  // namespace ortmodule
