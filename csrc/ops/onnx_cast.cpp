// Import of Cast and CastLike.
#include "ops/onnx_cast.h"

#include "base/error.h"
#include "ops/known_arithmetic.h"
#include "ops/op_def.h"

namespace ortmodule {

Value* widened(OnnxCall& c, Value* x) {
  if (is_narrow_float(x->dtype)) return c.emit("NarrowCast", {x}, {{"to", DType::Float32}});
  if (is_narrow_integer(x->dtype)) return c.emit("BitCast", {x}, {{"to", byte_dtype(x->dtype)}});
  return x;
}

Value* flipped_order(OnnxCall& c, Value* x) {
  const bool back = x->dtype == DType::Int64;
  if (back) x = c.cast(x, DType::UInt64);
  x = c.emit("BitwiseXor", {x, c.literal(0x1p63, DType::UInt64)});
  return back ? x : c.cast(x, DType::Int64);
}

Value* as_narrow_integer(OnnxCall& c, Value* x, DType to) {
  return c.emit("BitCast", {c.cast(x, byte_dtype(to))}, {{"to", to}});
}

namespace {

// The lowest bits of integers, with the sign of `to`.
Value* wrapped(OnnxCall& c, Value* x, DType to) {
  const auto count = static_cast<double>(1 << packed_bits(to));
  x = c.cast(x, DType::Int32);
  const bool is_signed = byte_dtype(to) == DType::Int8;
  Value* half = c.literal(is_signed ? count / 2 : 0, DType::Int32);
  Value* low = c.emit("BitwiseAnd", {c.emit("Add", {x, half}), c.literal(count - 1, DType::Int32)});
  return as_narrow_integer(c, c.emit("Sub", {low, half}), to);
}

OnnxCastMode mode_of(OnnxCall& c) {
  return {c.flag("saturate", true), c.word("round_mode", {"up", "down", "nearest"})};
}

// Between texts and numbers a run casts, which has the table of texts.
void cast_texts(OnnxCall& c, bool to_texts, DType to) {
  if (!c.has_texts(0) && !to_texts) return;
  c.in(0);  // is there
  if (is_complex(to) || is_narrow_float(to) || is_narrow_integer(to))
    c.unsupported(str("strings cannot be cast to ", name_of(to)));
  DataNeeded needed("texts are made in a run");
  needed.sized = Attrs{{"to", to_texts ? DType::Int64 : to}};
  throw needed;
}

bool casts_to_texts(OnnxCall& c) {
  if (c.node().op == "CastLike") return c.has_texts(1);
  return c.integer("to") == kOnnxString;
}

DType cast_target(OnnxCall& c) {
  return c.node().op == "CastLike" ? c.dtype(1) : c.dtype_attr("to");
}

Values import_cast(OnnxCall& c) {
  const bool to_texts = casts_to_texts(c);
  if (to_texts && c.has_texts(0)) {
    c.set_meaning(0, OnnxMeaning::Texts);
    return {c.emit("Identity", {c.in(0)})};
  }
  cast_texts(c, to_texts, to_texts ? DType::Int64 : cast_target(c));
  return {onnx_cast(c, c.in(0), cast_target(c), mode_of(c))};
}

std::optional<std::vector<KnownValue>> known_cast_of(OnnxCall& c) {
  if (c.has_texts(0) || casts_to_texts(c)) return std::nullopt;
  const KnownValue* x = c.known(0);
  if (!x) return std::nullopt;
  const DType to = cast_target(c);
  if (!is_floating(to) && !has_known_content(to)) return std::nullopt;
  if (to == DType::Bool && x->elements.size() > 1 && c.is_input_content(*x)) return std::nullopt;
  KnownValue result{to, x->dims, {}};
  for (const KnownNumber& number : x->elements)
    result.elements.push_back(known_cast(c, number, to));
  return std::vector{std::move(result)};
}

// Operand 1 of CastLike gives its type only.
REGISTER_ONNX({{"Cast", 1, import_cast, known_cast_of, "", nullptr, reads_texts()},
               {"CastLike", 15, import_cast, known_cast_of, "", nullptr, {3, false, true}}});

}  // namespace

Value* onnx_cast(OnnxCall& c, Value* x, DType to, const OnnxCastMode& mode) {
  if (x->dtype == to) return c.emit("Identity", {x});
  if (is_complex(x->dtype) || is_complex(to)) c.refuse("complex numbers have no Cast");
  x = widened(c, x);
  if (is_narrow_integer(to)) return wrapped(c, x, to);
  if (is_narrow_float(to))
    return c.emit(
        "NarrowCast", {c.cast(x, DType::Float32)},
        {{"to", to}, {"saturate", mode.saturate ? 1 : 0}, {"round_mode", mode.round_mode}});
  return c.cast(x, to);
}

}  // namespace ortmodule
