// Paddings that repeat elements of x (reflection, replication, circular), as concatenations of x
// with what is looked up of it. Their gradient adds what the lookups get to the middle, in place,
// and reads no x.

#include "ops/op_def.h"
#include "ops/torch_rules.h"

namespace ortmodule {
namespace {

enum class Repeats { Reflected, Edge, Around };

/// `count` places from `first` on, each `delta` (1 or -1) behind the last.
Value* row_of_places(TorchCall& t, const DimExpr& first, const DimExpr& count, int64_t delta) {
  const DimExpr limit = delta > 0 ? first + count : first - count;
  return t.emit(
      "Range", {},
      {{"start", first}, {"limit", limit}, {"delta", DimExpr(delta)}, {"dtype", DType::Int64}});
}

/// The places of an axis of `size` elements that `count` elements before or behind it show.
Value* shown_places(TorchCall& t, Repeats repeats, const DimExpr& size, const DimExpr& count,
                    bool before) {
  if (repeats == Repeats::Reflected)
    return row_of_places(t, before ? count : size - DimExpr(2), count, -1);
  if (repeats == Repeats::Around)
    return row_of_places(t, before ? size - count : DimExpr(0), count, 1);
  Value* edge = row_of_places(t, before ? DimExpr(0) : size - DimExpr(1), 1, 1);
  return t.emit("Expand", {edge}, {{"shape", Dims{count}}});
}

// torch lists (before, after) from the last dimension backwards.
template <Repeats repeats>
Values convert_repeating_pad(TorchCall& t) {
  require_real(t);
  Value* x = t.tensor("self");
  const Dims pads = t.dims(t.has("padding") ? "padding" : "pad");
  for (const DimExpr& pad : pads)
    if (t.range_of(pad).least < 0) t.refuse("pads must not be negative");
  for (size_t i = 0; i + 1 < pads.size(); i += 2) {
    const auto axis = static_cast<int64_t>(x->rank() - 1 - i / 2);
    const DimExpr& size = x->dims.at(static_cast<size_t>(axis));
    Values parts = {x};
    for (bool before : {true, false}) {
      const DimExpr& count = before ? pads[i] : pads[i + 1];
      if (count == DimExpr(0)) continue;
      Value* part = t.emit("Gather", {x, shown_places(t, repeats, size, count, before)},
                           {{"axis", axis}, {"from_front", 1}});
      parts.insert(before ? parts.begin() : parts.end(), part);
    }
    if (parts.size() > 1) x = t.emit("Concat", parts, {{"axis", axis}});
  }
  return {x == t.tensor("self") ? t.emit("Identity", {x}) : x};
}

REGISTER_TORCH({{"aten._pad_circular.default", convert_repeating_pad<Repeats::Around>},
                {"aten.reflection_pad1d.default", convert_repeating_pad<Repeats::Reflected>},
                {"aten.reflection_pad2d.default", convert_repeating_pad<Repeats::Reflected>},
                {"aten.reflection_pad3d.default", convert_repeating_pad<Repeats::Reflected>},
                {"aten.replication_pad1d.default", convert_repeating_pad<Repeats::Edge>},
                {"aten.replication_pad2d.default", convert_repeating_pad<Repeats::Edge>},
                {"aten.replication_pad3d.default", convert_repeating_pad<Repeats::Edge>}});

// The elements of a x b in the three places of the axis.
Values convert_cross(TorchCall& t) {
  require_real(t, true);
  const DType dtype = t.output().dtype, inside = compute_dtype(dtype);
  const int64_t axis = t.axis("dim", t.output().dims.size(), -1);
  const auto part = [&](std::string_view name, int64_t place) {
    Value* x = t.cast(t.operand(name, dtype), inside);
    return t.emit("Slice", {x}, {{"axis", axis}, {"start", place}, {"end", place + 1}});
  };
  Values parts;
  for (int64_t i = 0; i < 3; ++i) {
    const int64_t next = (i + 1) % 3, last = (i + 2) % 3;
    Value* first = t.emit("Mul", {part("self", next), part("other", last)});
    Value* second = t.emit("Mul", {part("self", last), part("other", next)});
    parts.push_back(t.emit("Sub", {first, second}));
  }
  return {t.cast(t.emit("Concat", parts, {{"axis", axis}}), dtype)};
}

REGISTER_TORCH({{"aten.linalg_cross.default", convert_cross}});

}  // namespace
}  // namespace ortmodule
