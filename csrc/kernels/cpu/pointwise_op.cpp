#include "kernels/cpu/pointwise_op.h"

namespace ortmodule {
inline namespace ORTM_ISA {

MicroFn find_loop(const PointwiseRow& row) {
  for (std::span<const MicroOp> table : {arithmetic_ops(), comparison_ops(), activation_ops(),
                                         elementary_ops(), gradient_ops(), random_ops()})
    for (const MicroOp& op : table)
      if (op.name == row.name && op.in == row.in) return op.run;
  return nullptr;
}

}  // namespace ORTM_ISA
}  // namespace ortmodule
