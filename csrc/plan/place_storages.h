// Buffers and offsets of storages: saved segments, arenas of transient values, outputs, gradients.
#pragma once

#include "plan/plan.h"

namespace ortmodule {

/// Assigns every engine-owned storage to a buffer and an offset. With `base`, the buffers of its
/// forward part and its saved segments stay as they are.
void place_storages(Plan& plan, const Plan* base = nullptr);

}  // namespace ortmodule
