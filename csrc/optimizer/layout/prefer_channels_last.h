// Passes that choose memory layouts.
#pragma once

#include "optimizer/pass.h"

namespace ortmodule {

/// Inserts ChannelsLast before 2-D convolutions if the ops between them mostly keep that layout.
/// Does nothing unless OptimizerOptions::channels_last is set.
bool prefer_channels_last(Graph& graph, PassContext& context);

/// Lets backward copy graph inputs to channels-last again, so that forward's copy is not saved.
bool copy_channels_last_again(Graph& graph, PassContext& context);

}  // namespace ortmodule
