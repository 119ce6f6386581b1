// Where the elements of a tensor lie: sizes, strides and an offset, all counted in elements.
#pragma once

#include <cstdint>
#include <vector>

namespace ortmodule {

using Sizes = std::vector<int64_t>;

struct Layout {
  Sizes sizes;
  Sizes strides;
  int64_t offset = 0;  // from the start of the storage
  friend bool operator==(const Layout&, const Layout&) = default;
};

/// Number of elements.
int64_t element_count(const Sizes& sizes);

/// Row-major strides of `sizes`.
Sizes contiguous_strides(const Sizes& sizes);

/// Row-major without gaps; dimensions of size 1 may have any stride, empty tensors are contiguous.
bool is_contiguous(const Layout& layout);

/// Occupies exactly its elements in some order of dimensions: no gaps, no overlap.
bool is_dense(const Layout& layout);

/// The last dimension has stride 1 or at most one element.
bool is_inner_contiguous(const Layout& layout);

/// One of the last two dimensions has stride 1 and the other steps over it: what GEMM takes.
bool is_matrix(const Layout& layout);
/// torch.channels_last of rank 4 or channels_last_3d of rank 5: dense, the channels (dimension 1)
/// innermost and the others in their order.
bool is_channels_last(const Layout& layout);

/// Elements between the first and one past the last that are touched; 0 for empty tensors.
int64_t extent(const Layout& layout);

/// Dense strides for `sizes` whose dimensions nest in the same order as those of `like` (equal
/// rank): what TensorIterator gives a pointwise result.
Sizes strides_like(const Sizes& sizes, const Layout& like);

}  // namespace ortmodule
