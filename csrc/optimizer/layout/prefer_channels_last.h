// Passes that choose memory layouts.
#pragma once

#include "optimizer/pass.h"

namespace ortmodule {

/// Inserts ChannelsLast before 2-D convolutions if the ops between them mostly keep that layout.
/// Does nothing unless OptimizerOptions::channels_last is set.
bool prefer_channels_last(Graph& graph, PassContext& context);

/// Lets backward copy graph inputs to channels-last again, so that forward's copy is not saved.
bool copy_channels_last_again(Graph& graph, PassContext& context);

/// On CUDA, lays out what convolutions of channels-last operands in 16 bits get as the gradient of
/// their result as these, so that cuDNN takes all three.
bool lay_out_conv_gradients(Graph& graph, PassContext& context);

}  // namespace ortmodule
