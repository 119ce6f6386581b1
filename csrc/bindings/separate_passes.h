// Backward passes of single outputs, one after the other, without retain_graph.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "plan/plan.h"

namespace ortmodule::bindings {

struct RunState;

inline constexpr const char* kSecondBackward =
    "Trying to backward through the graph a second time (or directly access saved tensors "
    "after they have already been freed). Specify retain_graph=True if you need to "
    "backward through the graph a second time. Outputs of one call of an ORTModule that share "
    "saved activations share one backward pass: add up their losses, or retain the graph for all "
    "but the last.";

/// What a later pass reads of a buffer of saved activations that an earlier pass has freed.
struct KeptActivation {
  BufferId buffer;
  int64_t offset_bytes = 0;
  at::Tensor bytes;
};

/// Throws eager's error if `arrived` has an output that shares saved activations with one whose
/// pass has freed them.
void check_separate(const RunState& state, const std::vector<bool>& arrived);

/// The outputs that can still have a pass behind one of `arrived`; none if all share saved
/// activations with those.
std::vector<bool> outputs_behind(RunState& state, const std::vector<bool>& arrived);

/// Takes over, before a pass that frees what is saved, what passes of `left` read.
void keep_for(RunState& state, const std::vector<bool>& left);

/// Puts what was taken over back into buffers of the frame.
void put_back(RunState& state);

}  // namespace ortmodule::bindings
