// Where the channels-last layout goes, as far as the ops say.
#pragma once

#include <set>
#include <vector>

#include "base/device.h"
#include "ir/graph.h"
#include "ops/op_def.h"

namespace ortmodule {

/// Of images [N, C, H, W], or of volumes [N, C, D, H, W].
bool is_image(const Value& value);
/// Both row-major and channels-last: one pixel, or one channel.
bool lies_both_ways(const Value& value);
/// Whether the device's convolutions of this type gain by channels-last images. Our own take bytes,
/// too.
bool gains_by_channels_last(DType dtype, Device device);
/// Operands of a convolution that are images: x, and what a FusedConv adds.
std::vector<size_t> image_operands(const Node& node);

/// Propagates the channels-last layout from the convolutions and counts the copies between layouts.
class LayoutFlow {
 public:
  LayoutFlow(const Graph& graph, Device device);

  const std::vector<Node*>& convolutions() const { return convolutions_; }
  /// Whether a convolution can read this operand as channels-last without a copy.
  bool reads(const Node& convolution, size_t operand) const;
  /// Channels-last, as far as operands and ops say; the caller's own tensors may be, too.
  bool is_known_last(const Value& value) const;
  /// Number of tensors copied between the layouts, without images of few channels.
  size_t copies() const { return copied_.size(); }

 private:
  bool differs(const Value& value) const;
  void visit(Node& node);
  bool result_is_channels_last(const Node& node, const OpDef& def) const;
  void add_results(const Node& node);

  const Device device_;
  const bool ours_;  // the convolutions are by kernels of our own
  std::set<const Value*> last_, slices_, copied_;
  std::vector<Node*> convolutions_;
};

}  // namespace ortmodule
