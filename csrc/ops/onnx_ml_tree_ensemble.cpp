// Import of TreeEnsemble (operator set 5 of ai.onnx.ml), whose nodes refer to each other by place.
#include <array>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "ops/onnx_ml.h"
#include "ops/onnx_ml_trees.h"
#include "ops/op_def.h"

namespace ortmodule {
namespace {

const OnnxTensor& tensor(OnnxCall& c, const char* name) {
  const OnnxTensor* found = c.tensor_attr(name);
  if (!found) c.refuse(str("attribute '", name, "' must be given"));
  return *found;
}

/// The sets of nodes of mode Member, in their order; NaN ends each.
std::vector<std::vector<double>> member_sets(OnnxCall& c) {
  std::vector<std::vector<double>> sets;
  const OnnxTensor* members = c.tensor_attr("membership_values");
  if (!members) return sets;
  sets.emplace_back();
  for (double member : ml_tensor_numbers(c, *members)) {
    if (std::isnan(member))
      sets.emplace_back();
    else
      sets.back().push_back(member);
  }
  if (sets.back().empty()) sets.pop_back();
  return sets;
}

std::vector<BranchMode> modes(OnnxCall& c) {
  const OnnxTensor& given = tensor(c, "nodes_modes");
  if (given.dtype != DType::UInt8) c.refuse("nodes_modes must be uint8");
  std::vector<BranchMode> found;
  for (char byte : given.bytes.view()) {
    const auto mode = static_cast<uint8_t>(byte);
    if (mode > static_cast<uint8_t>(BranchMode::Member))
      c.refuse(str("the mode of a node must be 0 to 6, but found ", int{mode}));
    found.push_back(static_cast<BranchMode>(mode));
  }
  return found;
}

Trees read_trees(OnnxCall& c) {
  const std::vector<BranchMode> mode = modes(c);
  const std::vector<double> splits = ml_tensor_numbers(c, tensor(c, "nodes_splits"));
  const std::vector<int64_t> features = ml_exact_integers(c, "nodes_featureids"),
                             yes = ml_exact_integers(c, "nodes_truenodeids"),
                             no = ml_exact_integers(c, "nodes_falsenodeids"),
                             yes_leaf = ml_exact_integers(c, "nodes_trueleafs"),
                             no_leaf = ml_exact_integers(c, "nodes_falseleafs");
  std::vector<int64_t> missing = ml_exact_integers(c, "nodes_missing_value_tracks_true");
  if (missing.empty()) missing.assign(mode.size(), 0);
  for (size_t size : {splits.size(), features.size(), yes.size(), no.size(), yes_leaf.size(),
                      no_leaf.size(), missing.size()})
    if (size != mode.size()) c.refuse("the lists of nodes must have the same length");
  const std::vector<std::vector<double>> sets = member_sets(c);
  const auto child = [&](int64_t at, int64_t is_leaf) {
    if (at < 0) c.refuse(str("a node's child must not be negative, but found ", at));
    return is_leaf != 0 ? ~at : at;
  };
  Trees trees;
  size_t set = 0;
  for (size_t i = 0; i < mode.size(); ++i) {
    TreeBranch branch{mode[i],
                      missing[i] != 0,
                      features[i],
                      splits[i],
                      child(yes[i], yes_leaf[i]),
                      child(no[i], no_leaf[i]),
                      {}};
    if (branch.mode == BranchMode::Member) {
      if (set == sets.size()) c.refuse("there must be members for each node of mode BRANCH_MEMBER");
      branch.members = sets[set++];
    }
    trees.branches.push_back(std::move(branch));
  }
  trees.roots = ml_exact_integers(c, "tree_roots");
  for (int64_t root : trees.roots) child(root, 0);
  const std::vector<int64_t> targets = ml_exact_integers(c, "leaf_targetids");
  const std::vector<double> weights = ml_tensor_numbers(c, tensor(c, "leaf_weights"));
  if (targets.size() != weights.size()) c.refuse("each leaf must have a target and a weight");
  trees.leaves = static_cast<int64_t>(targets.size());
  for (size_t i = 0; i < targets.size(); ++i)
    trees.weights.push_back({static_cast<int64_t>(i), targets[i], weights[i]});
  return trees;
}

Values import_tree_ensemble(OnnxCall& c) {
  constexpr std::array kKinds{TreeAggregate::Average, TreeAggregate::Sum, TreeAggregate::Min,
                              TreeAggregate::Max};
  constexpr std::array<std::string_view, 5> kTransforms{"NONE", "SOFTMAX", "LOGISTIC",
                                                        "SOFTMAX_ZERO", "PROBIT"};
  const int64_t aggregate = c.integer("aggregate_function", 1),
                transform = c.integer("post_transform", 0);
  if (aggregate < 0 || aggregate >= static_cast<int64_t>(kKinds.size()))
    c.refuse(str("aggregate_function must be 0 to 3, but found ", aggregate));
  if (transform < 0 || transform >= static_cast<int64_t>(kTransforms.size()))
    c.refuse(str("post_transform must be 0 to 4, but found ", transform));
  Value* x = ml_tree_operand(c);
  Value* y = ml_tree_scores(c, x, read_trees(c), c.integer("n_targets", 1),
                            kKinds.at(static_cast<size_t>(aggregate)), x->dtype)
                 .scores;
  y = ml_transformed(c, y, kTransforms.at(static_cast<size_t>(transform)));
  return {c.cast(y, c.dtype(0))};
}

REGISTER_ONNX({{"TreeEnsemble", 5, import_tree_ensemble, nullptr, kMlDomain}});

}  // namespace
}  // namespace ortmodule
