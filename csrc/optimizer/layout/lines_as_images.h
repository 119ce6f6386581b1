// Convolutions over one dimension as those of images.
#pragma once

#include "optimizer/pass.h"

namespace ortmodule {

/// On CUDA, makes convolutions of lines [N, C, L] in 16 bits those of images of one line
/// [N, C, 1, L], for prefer_channels_last, whose reason holds for them, too.
bool lines_as_images(Graph& graph, PassContext& context);

}  // namespace ortmodule
