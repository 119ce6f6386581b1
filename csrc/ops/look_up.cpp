// y = the place of x in `keys`, a sorted vector without equal elements; the number of keys where it
// is none of them, which is an error if each element must be found. NaN equals NaN, and comes last.
#include "ops/infer_rules.h"
#include "ops/op_def.h"

namespace ortmodule {
namespace {

void infer_look_up(InferContext& c) {
  const Value &x = c.input(0), &keys = c.input(1);
  if (keys.rank() != 1 || keys.dtype != x.dtype)
    c.fail(str("keys must be a vector of the type of x, but found ", name_of(keys.dtype), " ",
               dims_text(keys.dims)));
  c.set(0, DType::Int64, x.dims);
}

REGISTER_OP(LookUp, {.domain = "com.microsoft",
                     .inputs = {"x", "keys"},
                     .outputs = {"y"},
                     .attrs = {{"must_find", 0}},
                     .infer = infer_look_up,
                     .non_differentiable = {0, 1}});

}  // namespace
}  // namespace ortmodule
