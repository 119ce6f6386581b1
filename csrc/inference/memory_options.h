// What a session does with memory.
#pragma once

#include <cstdint>

#include "plan/placement.h"

namespace ortmodule {

struct RunMemoryOptions {
  /// The block stays while runs follow each other; false: it is returned after each run.
  bool keep_block = true;
  /// Values share one block by offsets; false: each has memory of its own while it lives.
  bool one_block = true;
  /// False: no value takes memory of another, and nothing is computed in place.
  bool reuse = true;
  /// The block is rounded up to a power of two, so that a slightly larger shape needs no other.
  bool power_of_two_block = false;
  /// Most bytes of the weights and of all runs together; 0: no limit.
  int64_t limit_bytes = 0;

  PlacementOptions placement() const {
    return {one_block ? Placement::OneBlock : Placement::Apart, reuse, power_of_two_block};
  }
};

}  // namespace ortmodule
