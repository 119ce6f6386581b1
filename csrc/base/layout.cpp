#include "base/layout.h"

#include <algorithm>
#include <numeric>

namespace ortmodule {

int64_t element_count(const Sizes& sizes) {
  int64_t count = 1;
  for (int64_t size : sizes) count *= size;
  return count;
}

Sizes contiguous_strides(const Sizes& sizes) {
  Sizes strides(sizes.size());
  int64_t next = 1;
  for (size_t i = sizes.size(); i-- > 0;) {
    strides[i] = next;
    next *= std::max<int64_t>(sizes[i], 1);
  }
  return strides;
}

bool is_contiguous(const Layout& layout) {
  if (element_count(layout.sizes) == 0) return true;
  int64_t expected = 1;
  for (size_t i = layout.sizes.size(); i-- > 0;) {
    if (layout.sizes[i] == 1) continue;
    if (layout.strides[i] != expected) return false;
    expected *= layout.sizes[i];
  }
  return true;
}

namespace {

// Dimensions larger than 1 in `layout` or `sizes`, innermost (smallest stride) first.
Sizes dims_by_stride(const Layout& layout, const Sizes& sizes) {
  Sizes order;
  for (size_t i = layout.sizes.size(); i-- > 0;) {
    if (layout.sizes[i] == 1 && sizes[i] == 1) continue;
    size_t place = order.size();
    order.push_back(0);
    for (; place > 0 && layout.strides[i] < layout.strides[static_cast<size_t>(order[place - 1])];
         --place)
      order[place] = order[place - 1];
    order[place] = static_cast<int64_t>(i);
  }
  return order;
}

}  // namespace

bool is_dense(const Layout& layout) {
  if (element_count(layout.sizes) == 0) return true;
  int64_t expected = 1;
  for (int64_t dim : dims_by_stride(layout, layout.sizes)) {
    const auto d = static_cast<size_t>(dim);
    if (layout.strides[d] != expected) return false;
    expected *= layout.sizes[d];
  }
  return true;
}

bool is_inner_contiguous(const Layout& layout) {
  return layout.sizes.empty() || layout.sizes.back() <= 1 || layout.strides.back() == 1;
}

bool is_matrix(const Layout& layout) {
  const size_t rank = layout.sizes.size();
  if (rank < 2) return is_contiguous(layout);
  const int64_t rows = layout.sizes[rank - 2], columns = layout.sizes[rank - 1];
  const int64_t row_stride = layout.strides[rank - 2], column_stride = layout.strides[rank - 1];
  const bool row_major = column_stride == 1 && row_stride >= std::max<int64_t>(columns, 1);
  const bool column_major = row_stride == 1 && column_stride >= std::max<int64_t>(rows, 1);
  return row_major || column_major;
}

bool is_channels_last(const Layout& layout) {
  const size_t rank = layout.sizes.size();
  if (rank != 4 && rank != 5) return false;
  int64_t expected = 1;
  for (size_t i = 0; i < rank; ++i) {
    const size_t dim = i == 0 ? 1 : i + 1 == rank ? 0 : rank - i;
    if (layout.sizes[dim] != 1 && layout.strides[dim] != expected) return false;
    expected *= layout.sizes[dim];
  }
  return true;
}

int64_t extent(const Layout& layout) {
  int64_t last = 0;
  for (size_t i = 0; i < layout.sizes.size(); ++i) {
    if (layout.sizes[i] == 0) return 0;
    last += (layout.sizes[i] - 1) * layout.strides[i];
  }
  return last + 1;
}

bool is_channels_last_slice(const Layout& layout) {
  const Sizes &sizes = layout.sizes, &strides = layout.strides;
  if (sizes.size() != 4) return false;
  if (is_channels_last(layout)) return true;
  return sizes[1] > 1 && strides[1] == 1 && strides[3] >= sizes[1] &&
         strides[2] >= sizes[3] * strides[3] && strides[0] >= sizes[2] * strides[2];
}

Sizes strides_like(const Sizes& sizes, const Layout& like) {
  Sizes strides = contiguous_strides(sizes);
  if (is_contiguous(like)) return strides;
  int64_t next = 1;
  for (int64_t dim : dims_by_stride(like, sizes)) {
    const auto d = static_cast<size_t>(dim);
    strides[d] = next;
    next *= std::max<int64_t>(sizes[d], 1);
  }
  return strides;
}

}  // namespace ortmodule
