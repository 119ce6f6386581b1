// Memory that outputs are bound to, compared with the plan.
#pragma once

#include <string>
#include <vector>

#include "importer/import_model.h"
#include "inference/host_tensor.h"
#include "onnx/onnx_model.h"
#include "plan/plan.h"

namespace ortmodule {

/// The targets by output of the plan, from those by output of the model. `device`: that of the
/// session. Throws Error where type, sizes or place do not fit, and where targets overlap.
HostTargets plan_targets(const Plan& plan, const std::vector<ValueForm>& forms,
                         const std::vector<OnnxValue>& outputs, int device,
                         const HostTargets& targets);

/// Moves results to the caller's memory, by output of the model. Returns the bytes that were
/// copied. Throws Error, before anything is written, where type or sizes do not fit.
int64_t copy_to_targets(std::vector<HostResult>& results, const HostTargets& targets,
                        const std::vector<OnnxValue>& outputs);

}  // namespace ortmodule
