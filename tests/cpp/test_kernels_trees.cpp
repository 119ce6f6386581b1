// TreeEnsemble against a walk row by row, LookUp and PowerDistances against plain loops.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>

#include "ops/torch_call.h"
#include "ops/tree_tables.h"
#include "test_kernels_harness.h"

namespace ortmodule::testing {
namespace {

/// A full tree of `depth` levels below the root, with the leaf weights of two targets.
Trees full_trees(int64_t count, int64_t depth, int64_t features) {
  Trees trees;
  for (int64_t tree = 0; tree < count; ++tree) {
    const auto first = static_cast<int64_t>(trees.branches.size());
    const int64_t inner = (int64_t{1} << depth) - 1;
    trees.roots.push_back(first);
    for (int64_t node = 0; node < inner; ++node) {
      const auto child = [&](int64_t at) {
        return at < inner ? first + at : ~(trees.leaves + at - inner);
      };
      TreeBranch branch;
      branch.mode = static_cast<BranchMode>((node + tree) % 6);
      branch.missing_is_yes = node % 3 == 0;
      branch.feature = (node * 7 + tree) % features;
      branch.threshold = static_cast<double>(node % 5) - 2;
      branch.yes = child(2 * node + 1);
      branch.no = child(2 * node + 2);
      trees.branches.push_back(branch);
    }
    for (int64_t leaf = trees.leaves; leaf < trees.leaves + inner + 1; ++leaf) {
      trees.weights.push_back({leaf, leaf % 2, std::sin(static_cast<double>(leaf))});
      if (leaf % 4 == 0) trees.weights.push_back({leaf, 1 - leaf % 2, 0.25});
    }
    trees.leaves += inner + 1;
  }
  return trees;
}

bool holds(const TreeBranch& branch, double x) {
  if (std::isnan(x) && branch.missing_is_yes) return true;
  switch (branch.mode) {
    case BranchMode::LessOrEqual: return x <= branch.threshold;
    case BranchMode::Less: return x < branch.threshold;
    case BranchMode::GreaterOrEqual: return x >= branch.threshold;
    case BranchMode::Greater: return x > branch.threshold;
    case BranchMode::Equal: return x == branch.threshold;
    default: return x != branch.threshold;
  }
}

/// Scores [rows, 2].
std::vector<double> walked(const Trees& trees, const Tensor& x) {
  const int64_t rows = x.sizes()[0], features = x.sizes()[1];
  std::vector<double> scores(static_cast<size_t>(rows * 2), 0.0);
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t at : trees.roots) {
      while (at >= 0) {
        const TreeBranch& branch = trees.branches[static_cast<size_t>(at)];
        at = holds(branch, x.get(row * features + branch.feature)) ? branch.yes : branch.no;
      }
      for (const LeafWeight& each : trees.weights)
        if (each.leaf == ~at) scores[static_cast<size_t>(row * 2 + each.target)] += each.weight;
    }
  return scores;
}

Tensor tensor_of(const OnnxTensor& tensor) {
  Tensor made(tensor.dtype, tensor.dims);
  std::memcpy(made.data(), tensor.bytes.data(), tensor.bytes.size());
  return made;
}

TEST(TreeEnsemble, FollowsEveryComparison) {
  constexpr int64_t kFeatures = 5;
  const Trees trees = full_trees(11, 4, kFeatures);
  for (DType dtype : {DType::Float32, DType::Float64})
    for (int64_t rows : {0, 1, 7, 8, 100}) {
      SCOPED_TRACE(str(name_of(dtype), " ", rows, " rows"));
      Tensor whole = Tensor::random(DType::Int64, {rows, kFeatures}, 3, -3, 4);
      Tensor x(dtype, {rows, kFeatures});
      for (int64_t i = 0; i < x.count(); ++i)
        x.set(i, i % 9 == 0 ? std::nan("") : whole.get(i) + (i % 2 ? 0.5 : 0.0));
      const TreeTables tables = make_tree_tables(trees, 2, dtype);
      Tensor nodes = tensor_of(tables.nodes), roots = tensor_of(tables.roots),
             weights = tensor_of(tables.weights), starts = tensor_of(tables.starts),
             targets = tensor_of(tables.targets), scores(DType::Float32, {rows, 2}),
             scored(DType::Bool, {rows, 2});
      run_op("TreeEnsemble",
             {{"n_targets", 2},
              {"leaves", tables.leaves},
              {"levels", tables.levels},
              {"aggregate", 0},
              {"equal", 1},
              {"missing", 1}},
             {&x, &nodes, &roots, &weights, &starts, &targets}, {&scores, &scored},
             [&] { expect_close(scores, walked(trees, x), 4, 1.0, "scores"); });
    }
}

TEST(TreeTables, RefuseWhatIsNoTree) {
  const auto refused = [](const std::function<void(Trees&)>& change) {
    Trees trees = full_trees(2, 3, 4);
    change(trees);
    EXPECT_THROW(make_tree_tables(trees, 2, DType::Float32), Refused);
  };
  refused([](Trees& trees) { trees.branches[4].yes = 0; });        // a cycle
  refused([](Trees& trees) { trees.roots[1] = trees.roots[0]; });  // two trees share
  refused([](Trees& trees) { trees.branches[2].no = 1000; });
  refused([](Trees& trees) { trees.branches[2].no = ~int64_t{1000}; });
  refused([](Trees& trees) { trees.branches[2].feature = -1; });
  refused([](Trees& trees) { trees.branches[2].threshold = std::nan(""); });
  refused([](Trees& trees) { trees.weights[0].target = 2; });
  refused([](Trees& trees) { trees.weights[0].leaf = trees.leaves; });
  refused([](Trees& trees) { trees.roots.clear(); });
}

TEST(LookUp, FindsPlacesOfKeys) {
  for (DType dtype : {DType::Float32, DType::Float64, DType::Int64, DType::Int32})
    for (int64_t count : {0, 1, 2, 7, 8, 100}) {
      const bool real = kFloats.contains(dtype);
      Tensor keys(dtype, {count}), x(dtype, {300}), y(DType::Int64, {300});
      for (int64_t i = 0; i < count; ++i)
        keys.set(i, real && i == count - 1 ? std::nan("") : static_cast<double>(3 * i - 20));
      std::vector<double> expected;
      for (int64_t i = 0; i < x.count(); ++i) {
        const double value = real && i % 50 == 0 ? std::nan("") : static_cast<double>(i - 25);
        x.set(i, value);
        int64_t place = 0;
        while (place < count && keys.get(place) != value &&
               !(std::isnan(value) && std::isnan(keys.get(place))))
          ++place;
        expected.push_back(static_cast<double>(place));
      }
      run_op("LookUp", {}, {&x, &keys}, {&y}, [&] { expect_close(y, expected, 0, 0, "places"); });
    }
}

TEST(PowerDistances, DoNotCancel) {
  for (DType dtype : {DType::Float32, DType::Float64}) {
    Tensor x = Tensor::random(dtype, {9, 3}, 1, 1000, 1001);
    Tensor z = Tensor::random(dtype, {3, 1030}, 2, 1000, 1001), y(dtype, {9, 1030});
    for (double p : {1.0, 2.0, 3.0}) {
      std::vector<double> expected;
      for (int64_t i = 0; i < 9; ++i)
        for (int64_t j = 0; j < 1030; ++j) {
          double sum = 0;
          for (int64_t f = 0; f < 3; ++f)
            sum += std::pow(std::fabs(x.get(i * 3 + f) - z.get(f * 1030 + j)), p);
          expected.push_back(sum);
        }
      run_op("PowerDistances", {{"p", p}}, {&x, &z}, {&y},
             [&] { expect_close(y, expected, 16, 1e-12, "distances"); });
    }
  }
}

}  // namespace
}  // namespace ortmodule::testing
