// Tree ensembles: rows in parallel. Each thread takes a block of rows through one tree after
// another, eight rows at a time, so that the loads of their nodes overlap; few rows go through
// eight trees at a time. The sums of a block stay on the stack where they fit.
#include <cstring>
#include <limits>

#include "base/tree_node.h"
#include "kernels/cpu/cpu_kernel.h"
#include "kernels/dtype_dispatch.h"

namespace ortmodule {
inline namespace ORTM_ISA {
namespace {

constexpr int kLanes = 8;
constexpr int64_t kStackSums = 4096, kMostRows = 1024;
enum class Aggregate : uint8_t { Sum, Average, Min, Max };

/// The weights of all leaves, and where the targets of a leaf are.
struct LeafWeights {
  const void* values = nullptr;
  const int32_t* starts = nullptr;  // null: one weight for each target
  const int32_t* targets = nullptr;
};

struct Ensemble {
  int64_t rows, features, targets, trees, first_leaf, levels;
  const int32_t* roots;
  LeafWeights weights;
  Aggregate aggregate;

  explicit Ensemble(const KernelArgs& args)
      : rows(args.in[0].sizes[0]), features(args.in[0].sizes[1]), targets(args.out[0].sizes[1]) {
    const Attrs& attrs = args.facts.node().attrs;
    trees = args.in[2].sizes[0];
    first_leaf = args.in[1].sizes[0] - attrs.integer("leaves");
    levels = attrs.integer("levels");
    aggregate = static_cast<Aggregate>(attrs.integer("aggregate"));
    roots = args.in[2].as<const int32_t>();
    weights.values = args.in[3].data;
    if (args.in.size() > 5 && args.in[4].data) {
      weights.starts = args.in[4].as<const int32_t>();
      weights.targets = args.in[5].as<const int32_t>();
    }
  }
  bool on_stack() const { return targets <= kStackSums; }
};

/// The scores of a block, and which of them a leaf had a weight for.
struct Sums {
  double* values;
  bool* scored;
};

template <class T, bool kHasEqual, bool kHasMissing>
inline int32_t child(const TreeNode<T>* nodes, int32_t at, const T* x) {
  using Node = TreeNode<T>;
  const Node& node = nodes[at];
  const T value = x[kHasEqual || kHasMissing ? node.feature & Node::kFeature : node.feature];
  bool holds = value <= node.threshold;
  if constexpr (kHasEqual)
    holds = (node.feature & Node::kEqual) != 0 ? value == node.threshold : holds;
  if constexpr (kHasMissing) holds |= (value != value) & (node.feature >> 31 != 0);
  // Without a branch, which would be mispredicted half of the time.
  return node.no ^ ((node.yes ^ node.no) & -static_cast<int32_t>(holds));
}

/// Moves each lane from its node to a leaf.
template <class T, bool kHasEqual, bool kHasMissing>
inline void descend(const TreeNode<T>* nodes, int64_t levels, const T* const (&x)[kLanes],
                    int32_t (&at)[kLanes]) {
  for (int64_t level = 0; level < levels; ++level) {
    int32_t moved = 0;
    ORTM_UNROLL
    for (int lane = 0; lane < kLanes; ++lane) {
      const int32_t next = child<T, kHasEqual, kHasMissing>(nodes, at[lane], x[lane]);
      moved |= next ^ at[lane];
      at[lane] = next;
    }
    if (moved == 0) return;
  }
}

template <bool kAdds>
inline void take(Aggregate aggregate, double weight, double& sum, bool& scored) {
  if constexpr (kAdds) {
    sum += weight;
  } else {
    const bool less = weight < sum;
    if (!scored || less == (aggregate == Aggregate::Min)) sum = weight;
  }
  scored = true;
}

template <class T, bool kAdds>
inline void take_leaf(const Ensemble& e, int64_t leaf, double* sums, bool* scored) {
  const auto* values = static_cast<const T*>(e.weights.values);
  if (!e.weights.starts) {
    values += leaf * e.targets;
    for (int64_t i = 0; i < e.targets; ++i) take<kAdds>(e.aggregate, values[i], sums[i], scored[i]);
    return;
  }
  for (int32_t i = e.weights.starts[leaf]; i < e.weights.starts[leaf + 1]; ++i) {
    const int32_t target = e.weights.targets[i];
    take<kAdds>(e.aggregate, values[i], sums[target], scored[target]);
  }
}

template <class T, bool kHasEqual, bool kHasMissing, bool kAdds>
void walk_rows(const Ensemble& e, const TreeNode<T>* nodes, const T* x, int64_t count,
               const Sums& sums) {
  const T* lanes[kLanes];
  int32_t at[kLanes];
  if (count < kLanes) {  // trees side by side
    for (int64_t row = 0; row < count; ++row)
      for (int64_t tree = 0; tree < e.trees; tree += kLanes) {
        for (int lane = 0; lane < kLanes; ++lane) {
          at[lane] = e.roots[std::min(tree + lane, e.trees - 1)];
          lanes[lane] = x + row * e.features;
        }
        descend<T, kHasEqual, kHasMissing>(nodes, e.levels, lanes, at);
        for (int lane = 0; lane < std::min<int64_t>(kLanes, e.trees - tree); ++lane)
          take_leaf<T, kAdds>(e, at[lane] - e.first_leaf, sums.values + row * e.targets,
                              sums.scored + row * e.targets);
      }
    return;
  }
  for (int64_t tree = 0; tree < e.trees; ++tree)
    for (int64_t row = 0; row < count; row += kLanes) {
      for (int lane = 0; lane < kLanes; ++lane) {
        at[lane] = e.roots[tree];
        lanes[lane] = x + std::min(row + lane, count - 1) * e.features;
      }
      descend<T, kHasEqual, kHasMissing>(nodes, e.levels, lanes, at);
      for (int lane = 0; lane < std::min<int64_t>(kLanes, count - row); ++lane)
        take_leaf<T, kAdds>(e, at[lane] - e.first_leaf, sums.values + (row + lane) * e.targets,
                            sums.scored + (row + lane) * e.targets);
    }
}

template <class T, bool kAdds>
void walk(const KernelArgs& args, const Ensemble& e, int64_t first, int64_t count,
          const Sums& sums) {
  const auto* nodes = static_cast<const TreeNode<T>*>(args.in[1].data);
  const T* x = args.in[0].as<const T>() + first * e.features;
  const Attrs& attrs = args.facts.node().attrs;
  const bool equal = attrs.flag("equal"), missing = attrs.flag("missing");
  if (equal)
    walk_rows<T, true, true, kAdds>(e, nodes, x, count, sums);
  else if (missing)
    walk_rows<T, false, true, kAdds>(e, nodes, x, count, sums);
  else
    walk_rows<T, false, false, kAdds>(e, nodes, x, count, sums);
}

/// The rows from `first`, with their sums in `values` and `scored`.
template <class T>
void run_block(const KernelArgs& args, const Ensemble& e, int64_t first, int64_t count,
               const Sums& sums) {
  const int64_t scores = count * e.targets;
  std::fill_n(sums.values, scores, 0.0);
  std::fill_n(sums.scored, scores, false);
  if (e.aggregate == Aggregate::Sum || e.aggregate == Aggregate::Average)
    walk<T, true>(args, e, first, count, sums);
  else
    walk<T, false>(args, e, first, count, sums);
  const double divisor = e.aggregate == Aggregate::Average ? static_cast<double>(e.trees) : 1.0;
  dispatch_float(args.out[0].dtype, [&]<class Out> {
    Out* out = args.out[0].as<Out>() + first * e.targets;
    for (int64_t i = 0; i < scores; ++i) out[i] = stored<Out>(sums.values[i] / divisor);
  });
  if (args.out[1].data)
    std::memcpy(args.out[1].as<bool>() + first * e.targets, sums.scored,
                static_cast<size_t>(scores));
}

/// Rows of a block: its sums on the stack, its part of x in the second-level cache.
int64_t block_rows(const Ensemble& e) {
  constexpr int64_t kElements = 64 << 10;
  const int64_t cached = std::max<int64_t>(kElements / std::max<int64_t>(e.features, 1), 64);
  const int64_t fit = e.on_stack() ? kStackSums / std::max<int64_t>(e.targets, 1) : 1;
  return std::clamp<int64_t>(std::min(cached, fit), 1, kMostRows);
}

void run_tree_ensemble(const KernelArgs& args) {
  const Ensemble e(args);
  if (e.rows == 0 || e.targets == 0) return;
  const int64_t rows = block_rows(e);
  const int64_t work = e.trees * (e.levels + e.targets);
  const auto body = [&]<class T>(int64_t begin, int64_t end) {
    double values[kStackSums];  // NOLINT: filled by run_block
    bool scored[kStackSums];    // NOLINT
    for (int64_t first = begin; first < end; first += rows) {
      Sums sums{values, scored};
      if (!e.on_stack()) {
        sums.values = static_cast<double*>(args.workspace) + first * e.targets;
        sums.scored = static_cast<bool*>(args.workspace) +
                      e.rows * e.targets * static_cast<int64_t>(sizeof(double)) + first * e.targets;
      }
      run_block<T>(args, e, first, std::min(rows, end - first), sums);
    }
  };
  parallel_ranges(args.context, e.rows, grain_for(work), [&](int64_t begin, int64_t end) {
    if (args.in[0].dtype == DType::Float32)
      body.template operator()<float>(begin, end);
    else
      body.template operator()<double>(begin, end);
  });
}

size_t tree_workspace(const StepFacts& facts) {
  const Sizes& sizes = facts.outputs[0].layout.sizes;
  if (sizes[1] <= kStackSums) return 0;
  return static_cast<size_t>(sizes[0] * sizes[1]) * (sizeof(double) + sizeof(bool));
}

REGISTER_CPU_KERNEL({.op = "TreeEnsemble",
                     .name = "tree_ensemble_cpu",
                     .dtypes = kFloats,
                     .run = run_tree_ensemble,
                     .workspace_bytes = tree_workspace,
                     .leaves_out_unused = true});

}  // namespace
}  // namespace ORTM_ISA
}  // namespace ortmodule
