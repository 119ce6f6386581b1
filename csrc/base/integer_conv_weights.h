// The layout of the weights of an integer convolution once they are packed, of the same size on
// every machine: a word that names the way to multiply, the sum of each output's weights, how many
// rests each has (kernels/cpu/integer_rests.h), room for rests, and the weights of each output by
// groups of channels, places of the window and the channels of a group. For channels-last images it
// is a matrix for each group (base/integer_panels.h), [places and channels, outputs].
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/integer_panels.h"

namespace ortmodule {

/// Channels are padded to a multiple of this.
inline constexpr int64_t kIntegerChannels = 4;

struct IntegerConvWeights {
  int64_t outputs = 0;   // of all groups
  int64_t channels = 0;  // of a group
  int64_t places = 0;    // of the window

  int64_t padded_channels() const {
    return (channels + kIntegerChannels - 1) / kIntegerChannels * kIntegerChannels;
  }
  /// Weights of an output, with those of padded channels.
  int64_t inner() const { return padded_channels() * places; }
  /// Bytes of them; an even number of groups of four.
  int64_t row_bytes() const { return (inner() + 7) / 8 * 8; }
  /// Words of 32 bits in front of the rests: one, sums, and counts of 16 bits.
  int64_t words() const { return 1 + outputs + (outputs + 1) / 2; }
  int64_t given_bytes() const { return outputs * channels * places; }
  /// What packed weights may take: 5 % more than they are, or 64 KiB.
  int64_t most_bytes() const {
    return std::max<int64_t>(given_bytes() + given_bytes() / 20, 65536);
  }
  /// Rests take up to 2 % of the bytes, as long as the better instruction saves.
  int64_t most_rests() const {
    const int64_t spare = most_bytes() - words() * 4 - outputs * row_bytes();
    return std::max<int64_t>(0, std::min(spare, given_bytes() / 50) / 4);
  }
  int64_t bytes() const { return (words() + most_rests()) * 4 + outputs * row_bytes(); }
  /// Bytes of the matrices for channels-last images.
  int64_t matrix_bytes(int64_t groups) const {
    return groups * integer_panel_bytes(channels * places, outputs / groups);
  }
};

}  // namespace ortmodule
