// Trees of a model as the tables that the op TreeEnsemble reads. Everything a file says about them
// is checked here, so that no kernel reads outside of its operands.
#pragma once

#include <cstdint>
#include <vector>

#include "onnx/onnx_model.h"

namespace ortmodule {

enum class BranchMode : uint8_t {
  LessOrEqual,
  Less,
  GreaterOrEqual,
  Greater,
  Equal,
  NotEqual,
  Member
};

/// A node with two children. A child is the place of a branch, or ~i for leaf i.
struct TreeBranch {
  BranchMode mode = BranchMode::LessOrEqual;
  bool missing_is_yes = false;  // NaN goes to `yes`, whatever the mode
  int64_t feature = 0;
  double threshold = 0;
  int64_t yes = 0, no = 0;
  std::vector<double> members = {};  // of mode Member
};

struct LeafWeight {
  int64_t leaf = 0, target = 0;
  double weight = 0;
};

/// Trees as a file describes them.
struct Trees {
  std::vector<TreeBranch> branches;
  std::vector<int64_t> roots;  // like children
  int64_t leaves = 0;
  std::vector<LeafWeight> weights;  // in any order
};

/// Operands of TreeEnsemble behind x, and facts for its attributes.
struct TreeTables {
  OnnxTensor nodes, roots, weights, starts, targets;
  bool dense = false;  // `starts` and `targets` are not needed
  int64_t leaves = 0, levels = 0;
  int64_t features = 0;  // that nodes read, at least
  bool equal = false, missing = false;
  bool all_positive = true;             // weights
  std::vector<bool> always, sometimes;  // by target: each row, or some rows, have a weight for it
};

/// For x of float32 or float64. Throws Refused if children do not form trees, or an index is out of
/// range.
TreeTables make_tree_tables(const Trees& trees, int64_t n_targets, DType dtype);

}  // namespace ortmodule
