// The leaves that the rows of x reach in each tree, and their weights added up by target: scores
// [rows, targets] and, of each score, whether a leaf had a weight for it. Operands: x [rows,
// features] in float32 or float64; the nodes (base/tree_node.h) as integers; the roots; the weights
// of leaf i from starts[i] to starts[i + 1] with the target of each. `starts` and `targets` are
// absent if every leaf has one weight for each target, in order. Floats add up in double.
#include "ops/infer_rules.h"
#include "ops/op_def.h"

namespace ortmodule {
namespace {

void infer_tree_ensemble(InferContext& c) {
  const Value& x = c.input(0);
  if (x.rank() != 2 || (x.dtype != DType::Float32 && x.dtype != DType::Float64))
    c.fail(str("x must be f32 or f64 of rank 2, but found ", name_of(x.dtype), " ",
               dims_text(x.dims)));
  if (c.input(1).dtype != (x.dtype == DType::Float32 ? DType::Int32 : DType::Int64))
    c.fail("nodes must have the type of x's thresholds");
  const Dims dims{x.dims.at(0), c.attrs().dim("n_targets")};
  c.set(0, c.attrs().dtype("dtype"), dims);
  c.set(1, DType::Bool, dims);
}

// aggregate: 0 sum, 1 average, 2 minimum, 3 maximum. levels: of the deepest leaf. equal, missing:
// whether nodes have those bits.
REGISTER_OP(TreeEnsemble, {.domain = "com.microsoft",
                           .inputs = {"x", "nodes", "roots", "weights", "starts?", "targets?"},
                           .outputs = {"scores", "scored"},
                           .attrs = {{"n_targets", 1},
                                     {"leaves", 0},
                                     {"levels", 0},
                                     {"aggregate", 0},
                                     {"equal", 0},
                                     {"missing", 0},
                                     {"dtype", DType::Float32}},
                           .infer = infer_tree_ensemble,
                           .non_differentiable = {0, 1, 2, 3, 4, 5}});

}  // namespace
}  // namespace ortmodule
