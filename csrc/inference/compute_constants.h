// Computes the part of a model that depends on weights alone.
#pragma once

#include <vector>

#include "inference/constant_part.h"
#include "inference/host_tensor.h"
#include "inference/loaded_model.h"
#include "onnx/onnx_model.h"
#include "runtime/worker_pool.h"
#include "session.h"

namespace ortmodule {

/// Runs a constant part; `weights` are those of its inputs. A weight that kernels cannot read where
/// it is in its file is copied for the steps that read it only.
std::vector<HostTensor> compute_constants(ConstantPart part, const SessionOptions& options,
                                          const LoadedModel& model,
                                          const std::vector<OnnxTensor>& weights, WorkerPool& pool);

/// The same with results that are worth it in float16 (half_weights.h), in bfloat16 if float16 does
/// not hold them, and in float32 if neither does. One is in float32 at a time.
std::vector<HostTensor> compute_halves(ConstantPart part, const SessionOptions& options,
                                       const LoadedModel& model,
                                       const std::vector<OnnxTensor>& weights, WorkerPool& pool);

}  // namespace ortmodule
