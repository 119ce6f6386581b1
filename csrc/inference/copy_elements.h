// Copies between tensors of any strides, and what such tensors cover.
#pragma once

#include <cstddef>
#include <cstdint>

#include "inference/host_tensor.h"

namespace ortmodule {

/// The bytes that a tensor covers, as addresses; empty without elements.
struct ByteRange {
  uintptr_t begin = 0;
  uintptr_t end = 0;

  bool overlaps(const ByteRange& other) const { return begin < other.end && other.begin < end; }
};

/// `strides` empty: row-major.
ByteRange byte_range(const void* data, const Sizes& sizes, const Sizes& strides,
                     size_t element_bytes);

/// The strides without what addresses nothing, so that equal layouts have equal strides: empty if
/// row-major, else row-major in dimensions of at most one element.
Sizes canonical_strides(const Sizes& sizes, const Sizes& strides);

/// Whether two elements may lie at one place (never false where they do).
bool has_shared_elements(const Sizes& sizes, const Sizes& strides);

/// Copies elements of `element_bytes` between memory that does not overlap.
void copy_elements(const Sizes& sizes, size_t element_bytes, const void* from,
                   const Sizes& from_strides, void* to, const Sizes& to_strides);

}  // namespace ortmodule
