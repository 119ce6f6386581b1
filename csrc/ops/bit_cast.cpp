// BitCast: the bytes of x as elements of type `to`, which has as many bytes.

#include "base/error.h"
#include "ops/infer_rules.h"
#include "ops/onnx_call.h"
#include "ops/op_def.h"

namespace ortmodule {
namespace {

void infer_bit_cast(InferContext& c) {
  const Value& x = c.input(0);
  const DType to = c.attrs().dtype("to");
  if (size_of(to) != size_of(x.dtype) || to == DType::Bool)
    c.fail(str(name_of(to), " must have the size of ", name_of(x.dtype), " and not be bool"));
  c.set(0, to, x.dims);
}

std::optional<Layout> bit_cast_view(const Layout& in, const Attrs&, const Sizes&, size_t) {
  return in;
}

// Narrow integers and their bytes are the same numbers. Other bits need an operator that is newer
// than the files.
void export_bit_cast(const OnnxRuleContext& c) {
  const DType from = c.value(0).dtype, to = c.attrs().dtype("to");
  ORTM_CHECK(is_narrow_integer(from) || is_narrow_integer(to), "[onnx] a BitCast of ",
             name_of(from), " to ", name_of(to),
             " must be written in operator set 26, but found 23");
  c.set(0, "Cast", {c.in(0)}, {{"to", to}});
}

REGISTER_OP(BitCast, {.inputs = {"x"},
                      .outputs = {"y"},
                      .kind = OpKind::View,
                      .infer = infer_bit_cast,
                      .view = bit_cast_view,
                      .onnx = {export_bit_cast}});

Values import_bit_cast(OnnxCall& c) {
  Value* x = c.in(0);
  const DType to = c.dtype_attr("to");
  if (packed_bits(to) != packed_bits(x->dtype))
    c.refuse(str("a type of ", packed_bits(x->dtype),
                 " bits must become one of as many, but found ", name_of(to)));
  if (x->dtype == to) return {c.emit("Identity", {x})};
  // Every byte but 0 is true.
  if (to == DType::Bool)
    return {c.cast(x->dtype == DType::UInt8 ? x : c.emit("BitCast", {x}, {{"to", DType::UInt8}}),
                   DType::Bool)};
  return {c.emit("BitCast", {x}, {{"to", to}})};
}

REGISTER_ONNX({{"BitCast", 26, import_bit_cast}});

}  // namespace
}  // namespace ortmodule
