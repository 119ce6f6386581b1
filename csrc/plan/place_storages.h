// Second half of planning: lifetimes, in-place reuse, saved segments, arenas, and the replay that
// gives the peak.
#pragma once

#include "plan/plan.h"

namespace ortmodule {

/// Fills first_step and last_step of every storage from the steps, and the roles that follow from
/// them (Saved; which arguments and outputs backward reads).
void find_lifetimes(Plan& plan);

/// Lets outputs of kernels that allow it take the storage of a dying operand. Only a pass that may
/// not run again (no retain_graph) overwrites what forward saved. With `forward_is_fixed`, forward
/// has been placed already, for another backward.
void reuse_in_place(Plan& plan, bool overwrite_saved, bool forward_is_fixed);

/// Assigns every engine-owned storage to a buffer and an offset. With `base`, the buffers of its
/// forward part and its saved segments stay as they are.
void place_storages(Plan& plan, const Plan* base = nullptr);

/// Cuts a placed plan's backward pass into ranges of about equal gradient bytes, or, with `base`,
/// at the same gradients as `base`; see the source.
void cut_ranges(Plan& plan, const Plan* base = nullptr);

/// Bytes of engine-owned buffers and declared library allocations at each step, and their maximum,
/// written into the plan. The one model of the peak.
void replay_events(Plan& plan);

}  // namespace ortmodule
