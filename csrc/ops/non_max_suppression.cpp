// Import of NonMaxSuppression, a SizedOp.
#include "base/error.h"
#include "ops/onnx_call.h"

namespace ortmodule {
namespace {

Attrs sized_non_max_suppression(OnnxCall& c) {
  for (size_t i : {0, 1})
    if (c.rank(i) != 3 || c.dtype(i) != DType::Float32)
      c.refuse(str("operand ", i, " must be float32 of rank 3, but is ", name_of(c.dtype(i)),
                   " of rank ", c.rank(i)));
  if (c.has(2) && c.dtype(2) != DType::Int64) c.refuse("max_output_boxes_per_class must be int64");
  for (size_t i : {3, 4})
    if (c.has(i) && c.dtype(i) != DType::Float32)
      c.refuse(str("operand ", i, " must be a float32 number"));
  return {{"center_point_box", c.integer("center_point_box", 0)}};
}

REGISTER_ONNX({{"NonMaxSuppression", 10, nullptr, nullptr, "", sized_non_max_suppression}});

}  // namespace
}  // namespace ortmodule
