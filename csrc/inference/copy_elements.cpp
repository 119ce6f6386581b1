#include "inference/copy_elements.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

namespace ortmodule {
namespace {

// A dimension of a copy; strides in bytes.
struct Axis {
  int64_t size = 1;
  int64_t from = 0;
  int64_t to = 0;
};

// The dimensions of more than one element; those that continue each other are one.
std::vector<Axis> copied_axes(const Sizes& sizes, const Sizes& from, const Sizes& to,
                              int64_t element_bytes) {
  std::vector<Axis> axes;
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] == 1) continue;
    const Axis axis{sizes[d], from[d] * element_bytes, to[d] * element_bytes};
    if (!axes.empty() && axes.back().from == axis.from * axis.size &&
        axes.back().to == axis.to * axis.size) {
      axes.back() = {axes.back().size * axis.size, axis.from, axis.to};
    } else {
      axes.push_back(axis);
    }
  }
  return axes;
}

template <size_t kBytes>
void copy_row(const char* from, char* to, const Axis& row) {
  for (int64_t i = 0; i < row.size; ++i) std::memcpy(to + i * row.to, from + i * row.from, kBytes);
}

void copy_row(const char* from, char* to, const Axis& row, int64_t element_bytes) {
  if (row.from == element_bytes && row.to == element_bytes) {
    std::memcpy(to, from, static_cast<size_t>(row.size * element_bytes));
    return;
  }
  switch (element_bytes) {
    case 1: return copy_row<1>(from, to, row);
    case 2: return copy_row<2>(from, to, row);
    case 4: return copy_row<4>(from, to, row);
    case 8: return copy_row<8>(from, to, row);
    default:
      for (int64_t i = 0; i < row.size; ++i)
        std::memcpy(to + i * row.to, from + i * row.from, static_cast<size_t>(element_bytes));
  }
}

void copy_axes(const char* from, char* to, const Axis* axes, size_t count, int64_t element_bytes) {
  if (count == 1) return copy_row(from, to, axes[0], element_bytes);
  for (int64_t i = 0; i < axes[0].size; ++i)
    copy_axes(from + i * axes[0].from, to + i * axes[0].to, axes + 1, count - 1, element_bytes);
}

}  // namespace

ByteRange byte_range(const void* data, const Sizes& sizes, const Sizes& strides,
                     size_t element_bytes) {
  const int64_t count = element_count(sizes);
  if (!data || count == 0) return {};
  int64_t first = 0, last = count - 1;
  if (!strides.empty()) {
    last = 0;
    for (size_t d = 0; d < sizes.size(); ++d)
      (strides[d] < 0 ? first : last) += strides[d] * (sizes[d] - 1);
  }
  const auto address = reinterpret_cast<uintptr_t>(data);
  const auto bytes = static_cast<int64_t>(element_bytes);
  return {address + static_cast<uintptr_t>(first * bytes),
          address + static_cast<uintptr_t>((last + 1) * bytes)};
}

Sizes canonical_strides(const Sizes& sizes, const Sizes& strides) {
  if (strides.empty() || is_contiguous({sizes, strides, 0})) return {};
  Sizes canonical = contiguous_strides(sizes);
  for (size_t d = 0; d < sizes.size(); ++d)
    if (sizes[d] > 1) canonical[d] = strides[d];
  return canonical;
}

bool has_shared_elements(const Sizes& sizes, const Sizes& strides) {
  if (strides.empty() || element_count(sizes) == 0) return false;
  std::vector<std::pair<int64_t, int64_t>> axes;  // stride, size
  for (size_t d = 0; d < sizes.size(); ++d)
    if (sizes[d] > 1) axes.emplace_back(std::abs(strides[d]), sizes[d]);
  std::sort(axes.begin(), axes.end());
  int64_t covered = 1;
  for (const auto& [stride, size] : axes) {
    if (stride < covered) return true;
    covered += stride * (size - 1);
  }
  return false;
}

void copy_elements(const Sizes& sizes, size_t element_bytes, const void* from,
                   const Sizes& from_strides, void* to, const Sizes& to_strides) {
  if (element_count(sizes) == 0) return;
  const auto bytes = static_cast<int64_t>(element_bytes);
  const Sizes dense = contiguous_strides(sizes);
  std::vector<Axis> axes = copied_axes(sizes, from_strides.empty() ? dense : from_strides,
                                       to_strides.empty() ? dense : to_strides, bytes);
  if (axes.empty()) axes.push_back({1, bytes, bytes});
  copy_axes(static_cast<const char*>(from), static_cast<char*>(to), axes.data(), axes.size(),
            bytes);
}

}  // namespace ortmodule
