// Import of Compress, a SizedOp.
#include "ops/onnx_call.h"

namespace ortmodule {
namespace {

Attrs sized_compress(OnnxCall& c) {
  const size_t rank = c.rank(0);
  if (c.dtype(1) != DType::Bool || c.rank(1) != 1) c.refuse("the condition must be a bool vector");
  Attrs attrs;
  if (c.has_attr("axis")) attrs.set("axis", c.axis_attr("axis", 0, rank));
  return attrs;
}

REGISTER_ONNX({{"Compress", 9, nullptr, nullptr, "", sized_compress, reads_texts()}});

}  // namespace
}  // namespace ortmodule
