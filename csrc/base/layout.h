// Memory layout of a tensor: sizes, strides and offset, all in elements.
#pragma once

#include <cstdint>
#include <vector>

#include "base/sizes.h"

namespace ortmodule {

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

/// Row-major and dense. Dimensions of size 1 may have any stride; empty tensors are contiguous.
bool is_contiguous(const Layout& layout);

/// Without gaps or overlap, in any order of dimensions.
bool is_dense(const Layout& layout);

/// The last dimension has stride 1 or at most one element.
bool is_inner_contiguous(const Layout& layout);

/// One of the last two dimensions has stride 1 and the other does not overlap it, as GEMM requires.
bool is_matrix(const Layout& layout);
/// torch.channels_last of rank 4 or channels_last_3d of rank 5: dense, the channels (dimension 1)
/// innermost and the others in their order.
bool is_channels_last(const Layout& layout);

/// An image of rank 4 in channels-last, or a slice of one: the channels are neighbours, the other
/// dimensions in their order.
bool is_channels_last_slice(const Layout& layout);

/// Span in elements from the first to one past the last element; 0 for empty tensors.
int64_t extent(const Layout& layout);

/// Dense strides for `sizes` with the dimension order of `like` (of equal rank), as TensorIterator
/// chooses for the result of a pointwise op.
Sizes strides_like(const Sizes& sizes, const Layout& like);

}  // namespace ortmodule
