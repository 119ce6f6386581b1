// Import of tree ensembles of ai.onnx.ml: files of both forms become tables (ops/tree_tables.h).
#include "ops/onnx_ml_trees.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "ops/onnx_ml.h"
#include "ops/op_def.h"

namespace ortmodule {

Value* ml_tree_operand(OnnxCall& c) {
  Value* x = ml_rows(c);
  return x->dtype == DType::Float64 ? x : c.cast(x, DType::Float32);
}

MlTreeScores ml_tree_scores(OnnxCall& c, Value* x, const Trees& trees, int64_t targets,
                            TreeAggregate aggregate, DType dtype) {
  TreeTables tables = make_tree_tables(trees, targets, x->dtype);
  if (!c.sizes().at_most(tables.features, x->dims.at(1)))
    c.refuse(str("x must have ", tables.features, " columns, but found ", x->dims.at(1)));
  Values operands{x, c.weight(tables.nodes), c.weight(tables.roots), c.weight(tables.weights)};
  if (!tables.dense) {
    operands.push_back(c.weight(tables.starts));
    operands.push_back(c.weight(tables.targets));
  }
  const Values outputs = c.emit_all("TreeEnsemble", std::move(operands),
                                    {{"n_targets", targets},
                                     {"leaves", tables.leaves},
                                     {"levels", tables.levels},
                                     {"aggregate", static_cast<int64_t>(aggregate)},
                                     {"equal", tables.equal ? 1 : 0},
                                     {"missing", tables.missing ? 1 : 0},
                                     {"dtype", dtype}});
  return {outputs.at(0), outputs.at(1), std::move(tables.always), std::move(tables.sometimes),
          tables.all_positive};
}

namespace {

/// The lists of a file's nodes before operator set 5.
struct NodeLists {
  std::vector<int64_t> trees, nodes, features, yes, no, missing;
  std::vector<double> thresholds;
  std::vector<BranchMode> modes;
  std::vector<bool> is_leaf;

  size_t size() const { return nodes.size(); }
  std::pair<int64_t, int64_t> id(size_t i) const { return {trees[i], nodes[i]}; }
};

BranchMode mode_of(OnnxCall& c, const std::string& name) {
  if (name == "BRANCH_LEQ") return BranchMode::LessOrEqual;
  if (name == "BRANCH_LT") return BranchMode::Less;
  if (name == "BRANCH_GTE") return BranchMode::GreaterOrEqual;
  if (name == "BRANCH_GT") return BranchMode::Greater;
  if (name == "BRANCH_EQ") return BranchMode::Equal;
  if (name == "BRANCH_NEQ") return BranchMode::NotEqual;
  c.unsupported(str("node mode ", name, " is not supported"));
}

/// Numbers from a list, or from a tensor of float32 or float64.
std::vector<double> list_or_tensor(OnnxCall& c, const std::string& name) {
  const OnnxTensor* tensor = c.tensor_attr(name + "_as_tensor");
  return tensor ? ml_tensor_numbers(c, *tensor) : c.numbers(name);
}

NodeLists read_nodes(OnnxCall& c) {
  NodeLists lists;
  lists.trees = ml_exact_integers(c, "nodes_treeids");
  lists.nodes = ml_exact_integers(c, "nodes_nodeids");
  lists.features = ml_exact_integers(c, "nodes_featureids");
  lists.yes = ml_exact_integers(c, "nodes_truenodeids");
  lists.no = ml_exact_integers(c, "nodes_falsenodeids");
  lists.missing = ml_exact_integers(c, "nodes_missing_value_tracks_true");
  lists.thresholds = list_or_tensor(c, "nodes_values");
  const OnnxAttr* attr = c.find("nodes_modes");
  const auto* modes = attr ? std::get_if<std::vector<std::string>>(attr) : nullptr;
  if (!modes || lists.size() == 0) c.refuse("there must be nodes");
  if (lists.missing.empty()) lists.missing.assign(lists.size(), 0);
  for (size_t size : {lists.trees.size(), lists.features.size(), lists.yes.size(), lists.no.size(),
                      lists.missing.size(), lists.thresholds.size(), modes->size()})
    if (size != lists.size()) c.refuse("the lists of nodes must have the same length");
  for (const std::string& mode : *modes) {
    lists.is_leaf.push_back(mode == "LEAF");
    lists.modes.push_back(lists.is_leaf.back() ? BranchMode::LessOrEqual : mode_of(c, mode));
  }
  return lists;
}

/// Nodes by tree and node number.
class NodePlaces {
 public:
  NodePlaces(OnnxCall& c, const NodeLists& lists) : lists_(lists), order_(lists.size()) {
    std::iota(order_.begin(), order_.end(), size_t{0});
    const auto before = [&](size_t a, size_t b) { return lists.id(a) < lists.id(b); };
    if (!std::is_sorted(order_.begin(), order_.end(), before))
      std::sort(order_.begin(), order_.end(), before);
    for (size_t i = 1; i < order_.size(); ++i)
      if (lists.id(order_[i]) == lists.id(order_[i - 1])) c.refuse("a tree's nodes must differ");
  }
  /// The node's place in the lists, or -1.
  int64_t find(int64_t tree, int64_t node) const {
    const std::pair<int64_t, int64_t> id(tree, node);
    const auto found =
        std::lower_bound(order_.begin(), order_.end(), id,
                         [&](size_t i, const auto& key) { return lists_.id(i) < key; });
    return found != order_.end() && lists_.id(*found) == id ? static_cast<int64_t>(*found) : -1;
  }
  /// Sorted by tree.
  const std::vector<size_t>& order() const { return order_; }

 private:
  const NodeLists& lists_;
  std::vector<size_t> order_;
};

/// The nodes that no other has as a child, one for each tree.
std::vector<size_t> roots_of(OnnxCall& c, const NodeLists& lists, const NodePlaces& places,
                             const std::vector<bool>& is_child) {
  std::vector<size_t> roots;
  int64_t last = 0;
  for (size_t i : places.order()) {
    if (is_child[i]) continue;
    if (!roots.empty() && last == lists.trees[i]) c.refuse("each tree must have one root");
    last = lists.trees[i];
    roots.push_back(i);
  }
  size_t trees = 0;
  for (size_t i = 0; i < places.order().size(); ++i)
    if (i == 0 || lists.trees[places.order()[i]] != lists.trees[places.order()[i - 1]]) ++trees;
  if (roots.size() != trees) c.refuse("each tree must have one root");
  return roots;
}

/// Weights of leaves, from the lists whose names begin with `kind`.
std::vector<LeafWeight> read_weights(OnnxCall& c, const NodePlaces& places,
                                     const std::vector<int64_t>& children,
                                     const std::string& kind) {
  const std::vector<int64_t> trees = ml_exact_integers(c, kind + "_treeids"),
                             nodes = ml_exact_integers(c, kind + "_nodeids"),
                             ids = ml_exact_integers(c, kind + "_ids");
  const std::vector<double> numbers = list_or_tensor(c, kind + "_weights");
  if (trees.size() != numbers.size() || nodes.size() != numbers.size() ||
      ids.size() != numbers.size())
    c.refuse("the lists of weights must have the same length");
  std::vector<LeafWeight> weights;
  for (size_t i = 0; i < numbers.size(); ++i) {
    const int64_t node = places.find(trees[i], nodes[i]);
    if (node < 0) c.refuse("a weight must be of a node");
    const int64_t child = children[static_cast<size_t>(node)];
    if (child >= 0) c.refuse("a weight must be of a leaf");
    weights.push_back({~child, ids[i], numbers[i]});
  }
  return weights;
}

Trees read_trees(OnnxCall& c, const std::string& kind) {
  const NodeLists lists = read_nodes(c);
  const NodePlaces places(c, lists);
  std::vector<int64_t> children;  // how a parent refers to each node
  Trees trees;
  int64_t branches = 0;
  for (size_t i = 0; i < lists.size(); ++i)
    children.push_back(lists.is_leaf[i] ? ~trees.leaves++ : branches++);
  std::vector<bool> is_child(lists.size(), false);
  for (size_t i = 0; i < lists.size(); ++i) {
    if (lists.is_leaf[i]) continue;
    const auto child = [&](int64_t node) {
      const int64_t place = places.find(lists.trees[i], node);
      if (place < 0) c.refuse("a node's child must be in its tree");
      is_child[static_cast<size_t>(place)] = true;
      return children[static_cast<size_t>(place)];
    };
    TreeBranch branch{
        lists.modes[i], lists.missing[i] != 0, lists.features[i], lists.thresholds[i], 0, 0, {}};
    branch.yes = child(lists.yes[i]);
    branch.no = child(lists.no[i]);
    trees.branches.push_back(std::move(branch));
  }
  for (size_t root : roots_of(c, lists, places, is_child)) trees.roots.push_back(children[root]);
  trees.weights = read_weights(c, places, children, kind);
  return trees;
}

Value* with_base(OnnxCall& c, Value* scores, const std::vector<double>& base) {
  return c.emit("Add", {scores, ml_numbers(c, base, {static_cast<int64_t>(base.size())})});
}

Values import_tree_regressor(OnnxCall& c) {
  const int64_t targets = c.integer("n_targets", 1);
  const std::string aggregate = c.word("aggregate_function", {"SUM", "AVERAGE", "MIN", "MAX"});
  TreeAggregate kind = TreeAggregate::Sum;
  if (aggregate == "AVERAGE") kind = TreeAggregate::Average;
  if (aggregate == "MIN") kind = TreeAggregate::Min;
  if (aggregate == "MAX") kind = TreeAggregate::Max;
  Value* x = ml_tree_operand(c);
  Value* y = ml_tree_scores(c, x, read_trees(c, "target"), targets, kind, DType::Float32).scores;
  const std::vector<double> base = list_or_tensor(c, "base_values");
  if (!base.empty()) {
    if (static_cast<int64_t>(base.size()) != targets)
      c.refuse("there must be a base for each target");
    y = with_base(c, y, base);
  }
  return {ml_transformed(c, y, c.string("post_transform", "NONE"))};
}

/// The class of the largest score among those that a row has a weight for.
Value* best_class(OnnxCall& c, const MlTreeScores& found, Value* scores, bool all_scored) {
  const auto is_true = [](bool value) { return value; };
  if (!all_scored && !std::all_of(found.always.begin(), found.always.end(), is_true)) {
    Value* lowest = c.literal(-INFINITY, scores->dtype);
    scores = c.emit("Where", {found.scored, scores, lowest});
  }
  return c.emit("ArgMax", {scores}, {{"axis", 1}, {"keepdims", 0}});
}

/// Two classes of which only one has weights: its score decides, as in onnxruntime. That of the
/// first class stands for both, beside that of the second there is a zero.
Values one_score(OnnxCall& c, const MlLabels& labels, const MlTreeScores& found,
                 const std::vector<double>& base, const std::string& transform) {
  const bool is_second = found.sometimes[1];
  const int64_t scored = is_second ? 1 : 0;
  Value* score = c.slice(found.scores, 1, scored, scored + 1);
  double other = 0;
  if (!base.empty() && (!is_second || base.size() == 2))
    score = c.emit("Add", {score, c.literal(base.at(static_cast<size_t>(scored)), score->dtype)});
  if (is_second && base.size() == 2) other = base[0];
  Value* limit = c.literal(found.all_positive ? 0.5 : 0, score->dtype);
  Value* decided = c.cast(c.emit("Greater", {score, limit}), DType::Int64);
  Value* label = ml_label_output(c, labels, c.reshape(decided, {score->dims.at(0)}));
  Value* fixed = c.full(other, score->dims, score->dtype);
  if (is_second) return {label, ml_transformed(c, c.concat({fixed, score}, 1), transform)};
  if (base.size() == 2) return {label, ml_transformed(c, c.concat({score, fixed}, 1), transform)};
  if (transform == "PROBIT")
    return {label, c.concat({ml_transformed(c, score, transform), fixed}, 1)};
  const SecondScore kind = found.all_positive ? SecondScore::Probability : SecondScore::Margin;
  return {label, ml_two_scores(c, score, kind, transform)};
}

/// Two classes with a score each. (onnxruntime gives 1 as the label where the second is positive.)
Values two_scores(OnnxCall& c, const MlLabels& labels, const MlTreeScores& found,
                  std::vector<double> base, const std::string& transform) {
  base.resize(2, 0.0);
  Value* scores = base[0] == 0 && base[1] == 0 ? found.scores : with_base(c, found.scores, base);
  Value* index = best_class(c, found, scores, true);
  return {ml_label_output(c, labels, index), ml_transformed(c, scores, transform)};
}

Values import_tree_classifier(OnnxCall& c) {
  const MlLabels labels = ml_labels(c, "classlabels_int64s", "classlabels_strings");
  const std::vector<double> base = list_or_tensor(c, "base_values");
  const std::string transform = c.string("post_transform", "NONE");
  Value* x = ml_tree_operand(c);
  const MlTreeScores found = ml_tree_scores(c, x, read_trees(c, "class"), labels.count(),
                                            TreeAggregate::Sum, DType::Float32);
  if (labels.count() == 2 && found.sometimes[0] != found.sometimes[1])
    return one_score(c, labels, found, base, transform);
  if (labels.count() == 2) return two_scores(c, labels, found, base, transform);
  Value* scores = found.scores;
  if (!base.empty()) {
    if (static_cast<int64_t>(base.size()) != labels.count())
      c.refuse("there must be a base for each class");
    scores = with_base(c, scores, base);
  }
  Value* index = best_class(c, found, scores, !base.empty());
  return {ml_label_output(c, labels, index), ml_transformed(c, scores, transform)};
}

REGISTER_ONNX({{"TreeEnsembleRegressor", 1, import_tree_regressor, nullptr, kMlDomain},
               {"TreeEnsembleClassifier", 1, import_tree_classifier, nullptr, kMlDomain}});

}  // namespace
}  // namespace ortmodule
