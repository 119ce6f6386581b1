// How the nodes of tree ensembles lie in memory: written at import, read by kernels.
#pragma once

#include <cstdint>

namespace ortmodule {

/// A node: `yes` if the feature is at most the threshold, or equal to it, else `no`. The nodes of
/// all trees are one array, leaves behind all others; a leaf is its own child, so that rows whose
/// leaves are at different depths go down together.
template <class T>
struct TreeNode {
  T threshold;
  uint32_t feature;  // and the bits below
  int32_t yes, no;   // places in the array

  static constexpr uint32_t kMissingIsYes = uint32_t{1} << 31;  // NaN goes to `yes`, else to `no`
  static constexpr uint32_t kEqual = uint32_t{1} << 30;
  static constexpr uint32_t kFeature = kEqual - 1;
};

static_assert(sizeof(TreeNode<float>) == 16 && sizeof(TreeNode<double>) == 24);

}  // namespace ortmodule
