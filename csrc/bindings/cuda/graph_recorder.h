// Records steps as CUDA graphs, with torch's graph objects.
#pragma once

#include <c10/core/Device.h>

#include <memory>

#include "bindings/step_recorder.h"

namespace ortmodule::bindings {

class DeviceRuntime;

/// A recorder for steps on the GPU of `runtime`, which must be present.
std::unique_ptr<StepRecorder> cuda_graph_recorder(const DeviceRuntime& runtime);

}  // namespace ortmodule::bindings
