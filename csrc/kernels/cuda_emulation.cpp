#include "kernels/cuda_emulation.h"

namespace ortmodule::cuda {

static bool linked = false;

bool emulated() { return linked; }

LinkedEmulation::LinkedEmulation() { linked = true; }

}  // namespace ortmodule::cuda
