// The op TreeEnsemble for rules of ai.onnx.ml.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/onnx_call.h"
#include "ops/tree_tables.h"

namespace ortmodule {

/// The attribute `aggregate` of TreeEnsemble.
enum class TreeAggregate : uint8_t { Sum, Average, Min, Max };

struct MlTreeScores {
  Value* scores = nullptr;              // [rows, targets]
  Value* scored = nullptr;              // whether a row has a weight for a target
  std::vector<bool> always, sometimes;  // by target: all rows have, some rows have
  bool all_positive = true;             // all weights
};

/// Operand 0 as the rows of trees: float64 as it is, all others as float32.
Value* ml_tree_operand(OnnxCall& c);

/// Emits the trees. `dtype`: of the scores.
MlTreeScores ml_tree_scores(OnnxCall& c, Value* x, const Trees& trees, int64_t targets,
                            TreeAggregate aggregate, DType dtype);

}  // namespace ortmodule
