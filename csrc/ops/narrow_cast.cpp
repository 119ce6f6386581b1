// NarrowCast: y = x between float32 and a float of 4 or 8 bits, `to`, with the rounding of ONNX's
// Cast.

#include "base/error.h"
#include "ops/infer_rules.h"
#include "ops/op_def.h"

namespace ortmodule {
namespace {

void infer_narrow_cast(InferContext& c) {
  const DType from = c.input(0).dtype, to = c.attrs().dtype("to");
  const bool widens = is_narrow_float(from) && to == DType::Float32;
  const bool narrows = from == DType::Float32 && is_narrow_float(to);
  if (!widens && !narrows)
    c.fail(str("one type must be f32 and the other a narrow float, but found ", name_of(from),
               " and ", name_of(to)));
  c.set(0, to, c.input(0).dims);
}

void export_narrow_cast(const OnnxRuleContext& c) {
  const DType to = c.attrs().dtype("to");
  if (to == DType::Float32) return c.set(0, "Cast", {c.in(0)}, {{"to", to}});
  const std::string mode = c.attrs().string("round_mode", "up");
  if (mode != "up")
    return c.set(
        0, "Cast", {c.in(0)},
        {{"to", to}, {"saturate", c.attrs().integer("saturate", 1)}, {"round_mode", mode}});
  c.set(0, "Cast", {c.in(0)}, {{"to", to}, {"saturate", c.attrs().integer("saturate", 1)}});
}

REGISTER_OP(NarrowCast, {.domain = "com.microsoft",
                         .inputs = {"x"},
                         .outputs = {"y"},
                         .attrs = {{"saturate", 1}, {"round_mode", "up"}},
                         .kind = OpKind::Data,
                         .infer = infer_narrow_cast,
                         .onnx = {export_narrow_cast}});

}  // namespace
}  // namespace ortmodule
