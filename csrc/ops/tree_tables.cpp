#include "ops/tree_tables.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/tree_node.h"
#include "ops/torch_call.h"

namespace ortmodule {
namespace {

constexpr int64_t kMostNodes = int64_t{1} << 30, kMostFeatures = int64_t{1} << 30;

/// A comparison of a node as `at most` or `equal`, with children exchanged where that needs it.
struct Comparison {
  double threshold = 0;
  bool equal = false, swapped = false, missing_is_yes = false;
};

/// The largest number of T below `value`; NaN, which nothing is at most, below the smallest.
template <class T>
double below(double value) {
  constexpr T kLowest = -std::numeric_limits<T>::infinity();
  if (value == kLowest) return std::numeric_limits<double>::quiet_NaN();
  return std::nextafter(static_cast<T>(value), kLowest);
}

/// The same comparison for numbers of type T: the largest one that is at most the threshold.
template <class T>
double rounded_down(double threshold) {
  const T near = static_cast<T>(threshold);
  return static_cast<double>(near) > threshold ? below<T>(near) : static_cast<double>(near);
}

template <class T>
Comparison comparison_of(const TreeBranch& branch) {
  if (std::isnan(branch.threshold) && branch.mode != BranchMode::Member)
    throw Refused("the threshold of a node must be a number");
  const double t = branch.threshold, down = rounded_down<T>(t);
  const bool exact = down == t, missing = branch.missing_is_yes;
  // Below t there are exactly the numbers that are at most `under`.
  const double under = exact ? below<T>(t) : down;
  // Exchanged children: what is missing and does not go to `yes` must find its way to `no`.
  switch (branch.mode) {
    case BranchMode::LessOrEqual: return {down, false, false, missing};
    case BranchMode::Less: return {under, false, false, missing};
    case BranchMode::GreaterOrEqual: return {under, false, true, !missing};
    case BranchMode::Greater: return {down, false, true, !missing};
    case BranchMode::Equal:
    case BranchMode::NotEqual: break;
    case BranchMode::Member: throw InternalError("a set has no one threshold");
  }
  const double same = exact ? t : std::numeric_limits<double>::quiet_NaN();
  const bool differs = branch.mode == BranchMode::NotEqual;
  // NaN differs from every number.
  return {same, true, differs, !differs && missing};
}

/// Nodes that a branch becomes: a set of n members is a chain of n comparisons.
int64_t node_count(const TreeBranch& branch) {
  if (branch.mode != BranchMode::Member) return 1;
  return std::max<int64_t>(static_cast<int64_t>(branch.members.size()), 1);
}

/// The branches level by level, tree by tree, and where their nodes are.
struct Walk {
  std::vector<int64_t> order, place;  // of branches; place: of the first node, -1: not reached
  int64_t nodes = 0, levels = 0;
  std::vector<int64_t> tree_of_leaf;  // the last tree that has it, -1: none
};

void check_child(const Trees& trees, int64_t child) {
  const int64_t leaf = ~child;
  if (child >= static_cast<int64_t>(trees.branches.size()) || leaf >= trees.leaves)
    throw Refused(str("a node's child must be in its tree, but found node ", child));
}

Walk walk(const Trees& trees) {
  Walk w;
  w.place.assign(trees.branches.size(), -1);
  w.tree_of_leaf.assign(static_cast<size_t>(trees.leaves), -1);
  std::vector<std::pair<int64_t, int64_t>> open;  // branch, level of its first node
  for (size_t tree = 0; tree < trees.roots.size(); ++tree) {
    open.assign(1, {trees.roots[tree], 0});
    for (size_t next = 0; next < open.size(); ++next) {
      const auto [child, level] = open[next];
      check_child(trees, child);
      w.levels = std::max(w.levels, level);
      if (child < 0) {
        w.tree_of_leaf[static_cast<size_t>(~child)] = static_cast<int64_t>(tree);
        continue;
      }
      int64_t& place = w.place[static_cast<size_t>(child)];
      if (place >= 0) throw Refused("the nodes of a tree must have one parent each");
      const TreeBranch& branch = trees.branches[static_cast<size_t>(child)];
      place = w.nodes;
      w.nodes += node_count(branch);
      if (w.nodes + trees.leaves > kMostNodes)
        throw Unsupported(str("there must be at most ", kMostNodes, " nodes"));
      w.order.push_back(child);
      open.emplace_back(branch.yes, level + node_count(branch));
      open.emplace_back(branch.no, level + node_count(branch));
    }
  }
  if (std::find(w.place.begin(), w.place.end(), -1) != w.place.end())
    throw Refused("each node must be in a tree whose root leads to it, but some form a cycle");
  return w;
}

template <class T>
std::vector<TreeNode<T>> nodes_of(const Trees& trees, const Walk& w, TreeTables& tables) {
  using Node = TreeNode<T>;
  std::vector<Node> nodes;
  nodes.reserve(static_cast<size_t>(w.nodes + trees.leaves));
  const auto place = [&](int64_t child) {
    return static_cast<int32_t>(child < 0 ? w.nodes + ~child : w.place[static_cast<size_t>(child)]);
  };
  const auto add = [&](const TreeBranch& branch, const Comparison& c, int32_t yes, int32_t no) {
    auto feature = static_cast<uint32_t>(branch.feature);
    if (c.equal) feature |= Node::kEqual;
    if (c.missing_is_yes) feature |= Node::kMissingIsYes;
    tables.equal = tables.equal || c.equal;
    tables.missing = tables.missing || c.missing_is_yes;
    if (c.swapped) std::swap(yes, no);
    nodes.push_back({static_cast<T>(c.threshold), feature, yes, no});
  };
  for (int64_t index : w.order) {
    const TreeBranch& branch = trees.branches[static_cast<size_t>(index)];
    if (branch.feature < 0 || branch.feature >= kMostFeatures)
      throw Refused(str("the feature of a node must be a column of x, but found ", branch.feature));
    tables.features = std::max(tables.features, branch.feature + 1);
    const int32_t yes = place(branch.yes), no = place(branch.no);
    if (branch.mode != BranchMode::Member) {
      add(branch, comparison_of<T>(branch), yes, no);
      continue;
    }
    TreeBranch each{BranchMode::Equal, branch.missing_is_yes, branch.feature, 0, 0, 0, {}};
    for (const double& member : branch.members) {
      each.threshold = member;
      const auto next = static_cast<int32_t>(nodes.size() + 1);
      add(each, comparison_of<T>(each), yes, &member == &branch.members.back() ? no : next);
      each.missing_is_yes = false;
    }
    if (branch.members.empty())
      add(each, {std::numeric_limits<double>::quiet_NaN(), true, false, each.missing_is_yes}, yes,
          no);
  }
  for (int64_t leaf = 0; leaf < trees.leaves; ++leaf) {
    const auto self = static_cast<int32_t>(nodes.size());
    nodes.push_back({T(0), 0, self, self});
  }
  return nodes;
}

template <class T>
OnnxTensor tensor_of(DType dtype, std::vector<int64_t> dims, const std::vector<T>& elements) {
  std::string bytes(reinterpret_cast<const char*>(elements.data()), elements.size() * sizeof(T));
  return {dtype, std::move(dims), std::move(bytes)};
}

OnnxTensor vector_of(const std::vector<int32_t>& elements) {
  return tensor_of(DType::Int32, {static_cast<int64_t>(elements.size())}, elements);
}

/// The weights by leaf and target, checked.
std::vector<LeafWeight> sorted_weights(const Trees& trees, int64_t n_targets) {
  std::vector<LeafWeight> weights = trees.weights;
  for (const LeafWeight& each : weights) {
    if (each.leaf < 0 || each.leaf >= trees.leaves) throw Refused("a weight must be of a leaf");
    if (each.target < 0 || each.target >= n_targets)
      throw Refused(
          str("the target of a weight must be less than ", n_targets, ", but found ", each.target));
  }
  if (weights.size() >= static_cast<size_t>(kMostNodes))
    throw Unsupported(str("there must be at most ", kMostNodes, " weights"));
  std::stable_sort(weights.begin(), weights.end(), [](const LeafWeight& a, const LeafWeight& b) {
    return std::pair(a.leaf, a.target) < std::pair(b.leaf, b.target);
  });
  return weights;
}

/// Which targets have a weight in all leaves of a tree, or in some leaf.
void note_scored(const Walk& w, const std::vector<LeafWeight>& weights, size_t trees,
                 TreeTables& tables) {
  std::vector<int64_t> leaves(trees, 0);
  for (int64_t tree : w.tree_of_leaf)
    if (tree >= 0) ++leaves[static_cast<size_t>(tree)];
  std::vector<std::pair<int64_t, int64_t>> found;  // target, tree
  for (size_t i = 0; i < weights.size(); ++i) {
    const bool repeated = i > 0 && weights[i].leaf == weights[i - 1].leaf &&
                          weights[i].target == weights[i - 1].target;
    const int64_t tree = w.tree_of_leaf[static_cast<size_t>(weights[i].leaf)];
    if (!repeated && tree >= 0) found.emplace_back(weights[i].target, tree);
  }
  std::sort(found.begin(), found.end());
  for (size_t i = 0; i < found.size();) {
    size_t end = i;
    while (end < found.size() && found[end] == found[i]) ++end;
    const auto target = static_cast<size_t>(found[i].first);
    tables.sometimes[target] = true;
    if (static_cast<int64_t>(end - i) == leaves[static_cast<size_t>(found[i].second)])
      tables.always[target] = true;
    i = end;
  }
}

template <class T>
void add_weights(const std::vector<LeafWeight>& weights, int64_t n_targets, DType dtype,
                 TreeTables& tables) {
  std::vector<T> values;
  std::vector<int32_t> targets, starts(static_cast<size_t>(tables.leaves) + 1, 0);
  tables.dense = static_cast<int64_t>(weights.size()) == tables.leaves * n_targets;
  for (const LeafWeight& each : weights) {
    const auto i = static_cast<int64_t>(values.size());
    tables.dense = tables.dense && each.leaf == i / n_targets && each.target == i % n_targets;
    tables.all_positive = tables.all_positive && each.weight >= 0;
    values.push_back(static_cast<T>(each.weight));
    targets.push_back(static_cast<int32_t>(each.target));
    ++starts[static_cast<size_t>(each.leaf) + 1];
  }
  for (size_t i = 1; i < starts.size(); ++i) starts[i] += starts[i - 1];
  tables.weights = tensor_of(dtype, {static_cast<int64_t>(values.size())}, values);
  tables.starts = vector_of(starts);
  tables.targets = vector_of(targets);
}

template <class T>
TreeTables make(const Trees& trees, int64_t n_targets, DType dtype) {
  TreeTables tables;
  const Walk w = walk(trees);
  tables.leaves = trees.leaves;
  tables.levels = w.levels;
  const std::vector<TreeNode<T>> nodes = nodes_of<T>(trees, w, tables);
  const bool wide = sizeof(T) == 8;
  tables.nodes = tensor_of(wide ? DType::Int64 : DType::Int32,
                           {static_cast<int64_t>(nodes.size()), wide ? 3 : 4}, nodes);
  std::vector<int32_t> roots;
  for (int64_t root : trees.roots)
    roots.push_back(
        static_cast<int32_t>(root < 0 ? w.nodes + ~root : w.place[static_cast<size_t>(root)]));
  tables.roots = vector_of(roots);
  tables.always.assign(static_cast<size_t>(n_targets), false);
  tables.sometimes = tables.always;
  const std::vector<LeafWeight> weights = sorted_weights(trees, n_targets);
  note_scored(w, weights, trees.roots.size(), tables);
  add_weights<T>(weights, n_targets, dtype, tables);
  return tables;
}

}  // namespace

TreeTables make_tree_tables(const Trees& trees, int64_t n_targets, DType dtype) {
  constexpr int64_t kMostTargets = int64_t{1} << 20;
  if (n_targets < 1 || n_targets > kMostTargets)
    throw Refused(str("there must be 1 to ", kMostTargets, " targets, but found ", n_targets));
  if (trees.roots.empty()) throw Refused("there must be a tree");
  return dtype == DType::Float64 ? make<double>(trees, n_targets, dtype)
                                 : make<float>(trees, n_targets, DType::Float32);
}

}  // namespace ortmodule
