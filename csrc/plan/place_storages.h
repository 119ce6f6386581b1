// Places storages in buffers: saved segments, arenas of temporaries, outputs, gradients.
#pragma once

#include "plan/placement.h"
#include "plan/plan.h"

namespace ortmodule {

/// Assigns a buffer and an offset to every storage. With `base`, the buffers of its forward part,
/// saved segments included, are kept.
void place_storages(Plan& plan, const Plan* base = nullptr, const PlacementOptions& options = {});

}  // namespace ortmodule
