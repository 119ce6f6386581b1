// How ONNX, which has no packed batches, finds their rows in a padded one.
#pragma once

#include "ops/op_def.h"

namespace ortmodule {

/// Which sequences of the batch have which steps, bool [T, B], from the batch sizes [T].
std::string packed_mask(const OnnxRuleContext& c, const std::string& batch_sizes,
                        const DimExpr& batch);
/// The positions (step, row) of the packed rows, int64 [rows of all steps, 2], in their order.
std::string packed_positions(const OnnxRuleContext& c, const std::string& mask);
/// A padded batch [T, B, ...] of these dims, filled with `value`, with `data` at the positions.
std::string padded_batch(const OnnxRuleContext& c, const std::string& data,
                         const std::string& positions, const Dims& dims, double value, DType dtype);

}  // namespace ortmodule
