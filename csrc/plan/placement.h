// How the temporaries of a plan get their memory.
#pragma once

#include <cstdint>

namespace ortmodule {

enum class Placement : uint8_t {
  Phases,    // several arenas, which follow the live bytes of a long run more closely
  OneBlock,  // one arena, which a session can keep for its next run
  Apart,     // each value in memory of its own while it lives
};

struct PlacementOptions {
  Placement placement = Placement::Phases;
  bool reuse = true;          // false: no memory is shared, nothing is computed in place
  bool power_of_two = false;  // OneBlock: its size is rounded up to a power of two
};

}  // namespace ortmodule
