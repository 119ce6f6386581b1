// Import of tree ensembles: all trees go down one level at a time, by reading tables of their
// nodes.
#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "base/error.h"
#include "ops/onnx_call.h"
#include "ops/op_def.h"

namespace ortmodule {
namespace {

/// Nodes of all trees, one after another. A leaf is its own child.
struct Forest {
  std::vector<int64_t> features, yes, no, missing;
  std::vector<double> thresholds;
  std::vector<int64_t> roots;
  std::string_view comparison;  // of all nodes: yes if feature `comparison` threshold
  int64_t levels = 0;
  std::map<std::pair<int64_t, int64_t>, int64_t> places;  // by tree and node

  size_t size() const { return features.size(); }
};

std::string_view comparison_of(OnnxCall& c, const std::string& mode) {
  if (mode == "BRANCH_LEQ") return "LessOrEqual";
  if (mode == "BRANCH_LT") return "Less";
  if (mode == "BRANCH_GTE") return "GreaterOrEqual";
  if (mode == "BRANCH_GT") return "Greater";
  if (mode == "BRANCH_EQ") return "Equal";
  if (mode == "BRANCH_NEQ") return "NotEqual";
  c.refuse(str("node mode ", mode, " is not supported"));
}

// The most levels below a root. Refuses nodes that have two parents.
int64_t levels_of(OnnxCall& c, const Forest& f) {
  int64_t most = 0;
  std::vector<std::pair<int64_t, int64_t>> open;  // node, level
  size_t visited = 0;
  for (int64_t root : f.roots) open.emplace_back(root, 0);
  while (!open.empty()) {
    const auto [node, level] = open.back();
    open.pop_back();
    most = std::max(most, level);
    if (++visited > f.size()) c.refuse("nodes must form trees");
    const auto at = static_cast<size_t>(node);
    if (f.yes[at] == node) continue;
    open.emplace_back(f.yes[at], level + 1);
    open.emplace_back(f.no[at], level + 1);
  }
  return most;
}

Forest read_forest(OnnxCall& c) {
  for (std::string_view name :
       {"nodes_values_as_tensor", "base_values_as_tensor", "target_weights_as_tensor"})
    if (c.has_attr(name)) c.refuse(str("attribute ", name, " is not supported"));
  const std::vector<int64_t> trees = c.integers("nodes_treeids"),
                             nodes = c.integers("nodes_nodeids"),
                             yes = c.integers("nodes_truenodeids"),
                             no = c.integers("nodes_falsenodeids"),
                             missing = c.integers("nodes_missing_value_tracks_true");
  const OnnxAttr* attr = c.find("nodes_modes");
  const auto* modes = attr ? std::get_if<std::vector<std::string>>(attr) : nullptr;
  Forest f;
  f.features = c.integers("nodes_featureids");
  f.thresholds = c.numbers("nodes_values");
  f.missing = missing.empty() ? std::vector<int64_t>(f.size(), 0) : missing;
  const size_t count = f.size();
  if (!modes || count == 0) c.refuse("there must be nodes");
  for (size_t size : {trees.size(), nodes.size(), yes.size(), no.size(), modes->size(),
                      f.thresholds.size(), f.missing.size()})
    if (size != count) c.refuse("the lists of nodes must have the same length");
  for (size_t i = 0; i < count; ++i)
    if (!f.places.emplace(std::pair(trees[i], nodes[i]), static_cast<int64_t>(i)).second)
      c.refuse("a tree's nodes must differ");
  std::vector<bool> is_child(count, false);
  for (size_t i = 0; i < count; ++i) {
    const auto self = static_cast<int64_t>(i);
    f.yes.push_back(self);
    f.no.push_back(self);
    if ((*modes)[i] == "LEAF") {
      f.features[i] = 0;
      continue;
    }
    const std::string_view comparison = comparison_of(c, (*modes)[i]);
    if (!f.comparison.empty() && f.comparison != comparison)
      c.refuse("nodes must have one mode, but found several");
    f.comparison = comparison;
    for (const auto& [child, to] : {std::pair(yes[i], &f.yes), std::pair(no[i], &f.no)}) {
      const auto found = f.places.find({trees[i], child});
      if (found == f.places.end()) c.refuse("a node's child must be in its tree");
      to->back() = found->second;
      is_child[static_cast<size_t>(found->second)] = true;
    }
  }
  for (size_t i = 0; i < count; ++i)
    if (!is_child[i]) f.roots.push_back(static_cast<int64_t>(i));
  if (f.roots.size() != std::set<int64_t>(trees.begin(), trees.end()).size())
    c.refuse("each tree must have one root");
  f.levels = levels_of(c, f);
  return f;
}

Value* table(OnnxCall& c, const std::vector<int64_t>& numbers) {
  KnownValue value{DType::Int64, {static_cast<int64_t>(numbers.size())}, {}};
  for (int64_t each : numbers) value.elements.emplace_back(each);
  return c.constant(value);
}

Value* table(OnnxCall& c, const std::vector<double>& numbers, std::vector<int64_t> dims,
             DType dtype) {
  KnownValue value{dtype, std::move(dims), {}};
  for (double each : numbers) value.elements.push_back(KnownNumber::real(each));
  return c.constant(value);
}

// The leaf of each row and tree: [rows, trees]
Value* leaves(OnnxCall& c, const Forest& f, Value* x) {
  const auto count = static_cast<int64_t>(f.size()), trees = static_cast<int64_t>(f.roots.size());
  auto pick = [&](Value* from, Value* at) { return c.emit("Gather", {from, at}, {{"axis", 0}}); };
  Value *features = table(c, f.features), *yes = table(c, f.yes), *no = table(c, f.no);
  Value* thresholds = table(c, f.thresholds, {count}, x->dtype);
  const bool tracks =
      std::any_of(f.missing.begin(), f.missing.end(), [](int64_t m) { return m != 0; });
  Value* missing = tracks ? c.cast(table(c, f.missing), DType::Bool) : nullptr;
  Value* at = c.emit("Expand", {c.reshape(table(c, f.roots), {1, trees})},
                     {{"shape", Dims{x->dims.at(0), trees}}});
  for (int64_t level = 0; level < f.levels; ++level) {
    Value* feature = c.emit("GatherElements", {x, pick(features, at)}, {{"axis", 1}});
    Value* holds = c.emit(f.comparison, {feature, pick(thresholds, at)});
    if (missing)
      holds = c.emit("Or", {holds, c.emit("And", {c.emit("IsNaN", {feature}), pick(missing, at)})});
    at = c.emit("Where", {holds, pick(yes, at), pick(no, at)});
  }
  return at;
}

// Weights by leaf and target, summed over the trees: [rows, targets]
Value* summed_weights(OnnxCall& c, const Forest& f, const std::string& kind, int64_t targets) {
  constexpr int64_t kMostWeights = int64_t{1} << 24;
  const auto count = static_cast<int64_t>(f.size());
  if (targets <= 0 || count > kMostWeights / targets)
    c.refuse("there are too many nodes and targets");
  const std::vector<int64_t> trees = c.integers(kind + "_treeids"),
                             nodes = c.integers(kind + "_nodeids"), ids = c.integers(kind + "_ids");
  const std::vector<double> weights = c.numbers(kind + "_weights");
  if (trees.size() != weights.size() || nodes.size() != weights.size() ||
      ids.size() != weights.size())
    c.refuse("the lists of weights must have the same length");
  std::vector<double> dense(static_cast<size_t>(count * targets), 0.0);
  for (size_t i = 0; i < weights.size(); ++i) {
    const auto node = f.places.find({trees[i], nodes[i]});
    if (node == f.places.end() || ids[i] < 0 || ids[i] >= targets)
      c.refuse("a weight must be of a node and a target");
    if (f.yes[static_cast<size_t>(node->second)] != node->second)
      c.refuse("a weight must be of a leaf");
    dense[static_cast<size_t>(node->second * targets + ids[i])] += weights.at(i);
  }
  Value* x = c.in(0);
  if (x->rank() == 1) x = c.reshape(x, {1, x->dims.at(0)});
  if (x->rank() != 2) c.refuse("x must have rank 1 or 2");
  const int64_t widest = *std::max_element(f.features.begin(), f.features.end());
  if (!c.sizes().at_most(widest + 1, x->dims.at(1)))
    c.refuse(str("x must have ", widest + 1, " columns, but found ", x->dims.at(1)));
  if (!is_floating(x->dtype)) x = c.cast(x, DType::Float32);
  Value* from = table(c, dense, {count, targets}, DType::Float32);
  Value* picked = c.emit("Gather", {from, leaves(c, f, x)}, {{"axis", 0}});
  return c.reduce("ReduceSum", picked, {1}, false);
}

Values import_tree_regressor(OnnxCall& c) {
  const Forest f = read_forest(c);
  const int64_t targets = c.integer("n_targets", 1);
  Value* y = summed_weights(c, f, "target", targets);
  const std::string aggregate = c.string("aggregate_function", "SUM");
  if (aggregate == "AVERAGE")
    y = c.emit("Div", {y, c.literal(static_cast<double>(f.roots.size()), y->dtype)});
  else if (aggregate != "SUM")
    c.refuse(str("aggregate_function ", aggregate, " is not supported"));
  const std::vector<double> base = c.numbers("base_values");
  if (!base.empty()) {
    if (static_cast<int64_t>(base.size()) != targets)
      c.refuse("there must be a base for each target");
    y = c.emit("Add", {y, table(c, base, {targets}, y->dtype)});
  }
  if (c.string("post_transform", "NONE") != "NONE") c.refuse("post_transform must be NONE");
  return {y};
}

// Refuses leaves without a weight for a class that other leaves of the tree have, and classes
// without a tree: whether such a class has a score would depend on data.
void require_all_scores(OnnxCall& c, const Forest& f, size_t classes) {
  const std::vector<int64_t> trees = c.integers("class_treeids"),
                             nodes = c.integers("class_nodeids"), ids = c.integers("class_ids");
  std::map<int64_t, std::map<int64_t, std::set<int64_t>>> found;  // classes by leaf, by tree
  for (size_t i = 0; i < std::min({trees.size(), nodes.size(), ids.size()}); ++i)
    found[trees[i]][nodes[i]].insert(ids[i]);
  std::set<int64_t> scored;
  for (const auto& [tree, leaves_of_tree] : found) {
    for (const auto& [node, at] : f.places)
      if (node.first == tree && f.yes[static_cast<size_t>(at)] == at)
        if (!leaves_of_tree.contains(node.second) ||
            leaves_of_tree.at(node.second) != leaves_of_tree.begin()->second)
          c.refuse("the leaves of a tree must have weights for the same classes");
    scored.insert(leaves_of_tree.begin()->second.begin(), leaves_of_tree.begin()->second.end());
  }
  if (scored.size() != classes) c.refuse("each class must have weights");
}

// Labels of the largest sum of weights, where each class has weights of its own.
Values import_tree_classifier(OnnxCall& c) {
  const Forest f = read_forest(c);
  const std::vector<int64_t> labels = c.integers("classlabels_int64s");
  if (labels.empty()) c.refuse("labels must be integers");
  if (labels.size() == 2) c.refuse("two classes, which share one score, are not supported");
  const auto classes = static_cast<int64_t>(labels.size());
  require_all_scores(c, f, labels.size());
  Value* scores = summed_weights(c, f, "class", classes);
  const std::vector<double> base = c.numbers("base_values");
  if (!base.empty()) {
    if (static_cast<int64_t>(base.size()) != classes)
      c.refuse("there must be a base for each class");
    scores = c.emit("Add", {scores, table(c, base, {classes}, scores->dtype)});
  }
  Value* index = c.emit("ArgMax", {scores}, {{"axis", 1}, {"keepdims", 0}});
  if (c.string("post_transform", "NONE") != "NONE") c.refuse("post_transform must be NONE");
  return {c.emit("Gather", {table(c, labels), index}, {{"axis", 0}}), scores};
}

REGISTER_ONNX({{"TreeEnsembleRegressor", 1, import_tree_regressor, nullptr, "ai.onnx.ml"},
               {"TreeEnsembleClassifier", 1, import_tree_classifier, nullptr, "ai.onnx.ml"}});

}  // namespace
}  // namespace ortmodule
