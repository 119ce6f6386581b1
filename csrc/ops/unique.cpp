// Import of Unique, a SizedOp.
#include "ops/onnx_call.h"

namespace ortmodule {
namespace {

Attrs sized_unique(OnnxCall& c) {
  const size_t rank = c.rank(0);
  if (is_complex(c.dtype(0))) c.refuse("complex numbers have no order");
  Attrs attrs{{"sorted", c.integer("sorted", 1)}};
  if (c.has_attr("axis")) attrs.set("axis", c.axis_attr("axis", 0, rank));
  return attrs;
}

// Without the places of the first ones, in their order.
Attrs sized_contrib_unique(OnnxCall& c) {
  if (c.rank(0) != 1) c.refuse("x must have one dimension");
  return {{"sorted", 0}, {"without_firsts", 1}};
}

REGISTER_ONNX({{"Unique", 11, nullptr, nullptr, "", sized_unique, reads_texts()},
               {"Unique", 1, nullptr, nullptr, "com.microsoft", sized_contrib_unique}});

}  // namespace
}  // namespace ortmodule
