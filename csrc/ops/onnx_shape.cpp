// Import of operators on shapes: views, joins and parts of tensors, with the contents that are
// known.
#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "base/layout.h"
#include "ops/known_arithmetic.h"
#include "ops/op_def.h"

namespace ortmodule {
namespace {

using Known = std::optional<std::vector<KnownValue>>;

Known one_known(KnownValue value) { return std::vector{std::move(value)}; }

// A known value of these sizes whose element at `place` is that of x at source(place).
template <class Source>
KnownValue rearranged(const KnownValue& x, Sizes sizes, const Source& source) {
  KnownValue result{x.dtype, sizes.vector(), {}};
  const Sizes strides = contiguous_strides(x.dims);
  Sizes place(result.dims.size(), 0);
  for (int64_t i = 0; i < element_count(result.dims); ++i) {
    const Sizes from = source(place);
    int64_t at = 0;
    for (size_t d = 0; d < from.size(); ++d) at += from.at(d) * strides.at(d);
    result.elements.push_back(x.elements.at(static_cast<size_t>(at)));
    for (size_t d = place.size(); d-- > 0 && ++place.at(d) == result.dims.at(d);) place.at(d) = 0;
  }
  return result;
}

// ---- Shape, Size, Constant ---------------------------------------------------------------------

Known known_shape(OnnxCall& c) {
  const Dims dims = c.dims(0);
  const auto rank = static_cast<int64_t>(dims.size());
  auto bound = [&](std::string_view name, int64_t fallback) {
    const int64_t given = c.integer(name, fallback);
    return std::clamp<int64_t>(given < 0 ? given + rank : given, 0, rank);
  };
  const int64_t start = bound("start", 0), end = std::max(start, bound("end", rank));
  return one_known(OnnxCall::known_sizes(Dims(dims.begin() + start, dims.begin() + end)));
}

Known known_size(OnnxCall& c) {
  return one_known({DType::Int64, {}, {KnownNumber(product(c.dims(0)))}});
}

// ---- Reshape and its like ----------------------------------------------------------------------

// `wanted` with 0 for a size of x and -1 for what is left.
Dims reshaped(OnnxCall& c, const Dims& x, Dims wanted, bool allow_zero) {
  std::optional<size_t> rest;
  DimExpr others = 1;
  for (size_t i = 0; i < wanted.size(); ++i) {
    DimExpr& dim = wanted.at(i);
    if (!dim.is_constant() && !c.sizes().at_most(1, dim)) dim = c.sizes().fix(dim);
    if (dim.is_constant() && dim.value() == -1) {
      if (rest) c.refuse("a shape may have one -1");
      rest = i;
      continue;
    }
    if (dim.is_constant() && dim.value() == 0 && !allow_zero) {
      if (i >= x.size()) c.refuse("a 0 in the shape must stand for a size of the operand");
      dim = x[i];
    }
    others = others * dim;
  }
  const DimExpr total = product(x);
  if (!rest) {
    if (!c.sizes().equal(total, others))
      c.refuse(str("the shape must have ", total, " elements, but found ", others));
    return wanted;
  }
  if (others.is_constant() && others.value() == 0) {
    wanted.at(*rest) = 0;
  } else if (others == total) {
    wanted.at(*rest) = 1;
  } else {
    // Sizes that occur on both sides cancel, so that the rest needs no division.
    DimExpr left = 1, right = 1;
    Dims up = x;
    for (size_t i = 0; i < wanted.size(); ++i) {
      if (i == *rest) continue;
      auto same = std::find(up.begin(), up.end(), wanted.at(i));
      if (same != up.end() && !wanted.at(i).is_constant())
        up.erase(same);
      else
        right = right * wanted.at(i);
    }
    for (const DimExpr& dim : up) left = left * dim;
    if (!c.sizes().equal(DimExpr::mod(left, right), 0))
      c.refuse(str("the shape must divide ", total, " elements"));
    wanted.at(*rest) = DimExpr::floor_div(left, right);
  }
  return wanted;
}

Dims reshape_target(OnnxCall& c) {
  if (c.opset() >= 5) return reshaped(c, c.dims(0), c.content_sizes(1), c.flag("allowzero"));
  const std::vector<int64_t> shape = c.integers("shape");
  return reshaped(c, c.dims(0), Dims(shape.begin(), shape.end()), false);
}

Values import_reshape(OnnxCall& c) {
  return {c.emit("Reshape", {c.in(0)}, {{"shape", reshape_target(c)}})};
}

Known with_dims(OnnxCall& c, const Dims& dims) {
  const KnownValue* x = c.known(0);
  const std::optional<Sizes> sizes = c.known_size_of(dims);
  if (!x || !sizes) return std::nullopt;
  return one_known({x->dtype, sizes->vector(), x->elements});
}

Known known_reshape(OnnxCall& c) {
  if (!c.known(0) || (c.opset() >= 5 && !c.known(1))) return std::nullopt;
  return with_dims(c, reshape_target(c));
}

Values import_flatten(OnnxCall& c) {
  const Dims dims = c.dims(0);
  const auto rank = static_cast<int64_t>(dims.size());
  const int64_t given = c.integer("axis", 1);
  const int64_t axis = given < 0 ? given + rank : given;
  if (axis < 0 || axis > rank) c.refuse(str("axis must be within rank ", rank));
  const Dims outer(dims.begin(), dims.begin() + axis), inner(dims.begin() + axis, dims.end());
  return {c.emit("Reshape", {c.in(0)}, {{"shape", Dims{product(outer), product(inner)}}})};
}

std::vector<int64_t> squeezed_axes(OnnxCall& c) {
  const Dims dims = c.dims(0);
  const bool by_operand = c.opset() >= 13;
  if (by_operand ? c.has(1) : c.has_attr("axes")) {
    std::vector<int64_t> axes = by_operand ? c.fixed_integers(1) : c.integers("axes");
    for (int64_t& axis : axes) {
      axis = c.axis(axis, dims.size());
      if (c.sizes().fix(dims.at(static_cast<size_t>(axis))) != 1)
        c.refuse(str("a squeezed size must be 1, but found ", dims.at(static_cast<size_t>(axis))));
    }
    return axes;
  }
  std::vector<int64_t> axes;
  for (size_t axis = 0; axis < dims.size(); ++axis)
    if (c.sizes().equal(dims.at(axis), 1)) axes.push_back(static_cast<int64_t>(axis));
  return axes;
}

Dims squeezed(OnnxCall& c) {
  const Dims dims = c.dims(0);
  const std::vector<int64_t> axes = squeezed_axes(c);
  Dims left;
  for (size_t axis = 0; axis < dims.size(); ++axis)
    if (std::find(axes.begin(), axes.end(), static_cast<int64_t>(axis)) == axes.end())
      left.push_back(dims.at(axis));
  return left;
}

Values import_squeeze(OnnxCall& c) {
  return {c.emit("Reshape", {c.in(0)}, {{"shape", squeezed(c)}})};
}

Known known_squeeze(OnnxCall& c) {
  if (!c.known(0)) return std::nullopt;
  return with_dims(c, squeezed(c));
}

Dims unsqueezed(OnnxCall& c) {
  const Dims dims = c.dims(0);
  std::vector<int64_t> axes = c.opset() >= 13 ? c.fixed_integers(1) : c.integers("axes");
  const size_t rank = dims.size() + axes.size();
  std::vector<bool> added(rank, false);
  for (int64_t axis : axes) {
    const auto at = static_cast<size_t>(c.axis(axis, rank));
    if (added[at]) c.refuse("axes must differ");
    added[at] = true;
  }
  Dims result;
  auto next = dims.begin();
  for (size_t axis = 0; axis < rank; ++axis) result.push_back(added[axis] ? DimExpr(1) : *next++);
  return result;
}

Values import_unsqueeze(OnnxCall& c) {
  if (c.opset() < 13 && !c.has_attr("axes")) c.refuse("attribute axes is required");
  return {c.emit("Reshape", {c.in(0)}, {{"shape", unsqueezed(c)}})};
}

Known known_unsqueeze(OnnxCall& c) {
  if (!c.known(0) || (c.opset() >= 13 && !c.known(1))) return std::nullopt;
  return with_dims(c, unsqueezed(c));
}

std::vector<int64_t> permutation_of(OnnxCall& c) {
  std::vector<int64_t> perm = c.integers("perm");
  const size_t rank = c.rank(0);
  if (!c.has_attr("perm"))
    for (size_t i = rank; i-- > 0;) perm.push_back(static_cast<int64_t>(i));
  std::vector<bool> seen(rank, false);
  for (int64_t axis : perm) {
    if (perm.size() != rank || axis < 0 || axis >= static_cast<int64_t>(rank) ||
        seen[static_cast<size_t>(axis)])
      c.refuse("perm must name each axis once");
    seen[static_cast<size_t>(axis)] = true;
  }
  return perm;
}

Values import_transpose(OnnxCall& c) {
  const std::vector<int64_t> perm = permutation_of(c);
  return {c.emit("Transpose", {c.in(0)}, {{"perm", Dims(perm.begin(), perm.end())}})};
}

Known known_transpose(OnnxCall& c) {
  const KnownValue* x = c.known(0);
  if (!x) return std::nullopt;
  const std::vector<int64_t> perm = permutation_of(c);
  Sizes sizes;
  for (int64_t axis : perm) sizes.push_back(x->dims.at(static_cast<size_t>(axis)));
  return one_known(rearranged(*x, sizes, [&](const Sizes& place) {
    Sizes from(place.size());
    for (size_t d = 0; d < place.size(); ++d) from[static_cast<size_t>(perm.at(d))] = place.at(d);
    return from;
  }));
}

// ---- Concat, Split, Slice, Gather --------------------------------------------------------------

Values import_standard_concat(OnnxCall& c) {
  const Values parts = c.ins();
  if (parts.empty()) c.refuse("there must be an operand");
  const int64_t axis = c.axis_attr("axis", 1, parts.at(0)->rank());
  if (parts.size() == 1) return {c.emit("Identity", parts)};
  // Sizes along other axes are equal in this call: the guards say so.
  for (const Value* part : parts)
    for (size_t d = 0; d < part->rank() && d < parts.at(0)->rank(); ++d)
      if (static_cast<int64_t>(d) != axis &&
          !c.sizes().equal(part->dims.at(d), parts.at(0)->dims.at(d)))
        c.refuse(str("sizes must agree, but found ", part->dims.at(d), " and ",
                     parts.at(0)->dims.at(d)));
  return {c.emit("Concat", parts, {{"axis", axis}})};
}

Known known_concat(OnnxCall& c) {
  std::vector<const KnownValue*> parts;
  for (size_t i = 0; i < c.input_count(); ++i) {
    parts.push_back(c.known(i));
    if (!parts.back() || parts.back()->dims.empty()) return std::nullopt;
  }
  if (parts.empty()) return std::nullopt;
  const auto axis = static_cast<size_t>(c.axis_attr("axis", 1, parts.at(0)->dims.size()));
  Sizes sizes = parts.at(0)->dims;
  sizes.at(axis) = 0;
  for (const KnownValue* part : parts) {
    Sizes others = part->dims;
    if (others.size() != sizes.size()) return std::nullopt;
    others.at(axis) = sizes.at(axis);
    if (others != sizes) return std::nullopt;
    sizes.at(axis) += part->dims.at(axis);
  }
  if (element_count(sizes) > KnownValue::kMostElements) return std::nullopt;
  KnownValue result{parts.at(0)->dtype, sizes.vector(), {}};
  const Sizes outer(sizes.begin(), sizes.begin() + static_cast<int64_t>(axis));
  for (int64_t row = 0; row < element_count(outer); ++row)
    for (const KnownValue* part : parts) {
      const int64_t length = static_cast<int64_t>(part->elements.size()) / element_count(outer);
      const auto first = part->elements.begin() + row * length;
      result.elements.insert(result.elements.end(), first, first + length);
    }
  return one_known(std::move(result));
}

Dims split_sizes(OnnxCall& c, const DimExpr& size) {
  const auto outputs = static_cast<int64_t>(c.node().outputs.size());
  Dims parts;
  if (c.opset() >= 13 ? c.has(1) : c.has_attr("split") || c.has(1)) {
    if (c.has(1)) {
      parts = c.content_sizes(1);
    } else {
      for (int64_t part : c.integers("split")) parts.emplace_back(part);
    }
    return parts;
  }
  const int64_t count = c.integer("num_outputs", outputs);
  if (count != outputs || count == 0)
    c.refuse(str("num_outputs must be the number of outputs, ", outputs, ", but found ", count));
  const DimExpr part = c.opset() >= 18 ? DimExpr::floor_div(size + DimExpr(count - 1), count)
                                       : DimExpr::floor_div(size, count);
  for (int64_t i = 0; i + 1 < count; ++i) parts.push_back(part);
  parts.push_back(size - part * DimExpr(count - 1));
  return parts;
}

Values import_split(OnnxCall& c) {
  Value* x = c.in(0);
  const int64_t axis = c.axis_attr("axis", 0, x->rank());
  const Dims sizes = split_sizes(c, x->dims.at(static_cast<size_t>(axis)));
  if (sizes.empty()) c.refuse("there must be a part");
  return c.emit_all("Split", {x}, {{"axis", axis}, {"sizes", sizes}}, sizes.size());
}

Known known_split(OnnxCall& c) {
  const KnownValue* x = c.known(0);
  if (!x || x->dims.size() != 1) return std::nullopt;
  std::vector<KnownValue> parts;
  size_t at = 0;
  for (const DimExpr& size : split_sizes(c, x->dims.at(0))) {
    const auto count = static_cast<size_t>(c.sizes().fix(size));
    if (at + count > x->elements.size()) c.refuse("parts must be within the operand");
    const auto first = x->elements.begin() + static_cast<int64_t>(at);
    parts.push_back(
        {x->dtype, {static_cast<int64_t>(count)}, {first, first + static_cast<int64_t>(count)}});
    at += count;
  }
  return parts;
}

struct SliceAxis {
  int64_t axis = 0;
  DimExpr start, end;  // within the size
  int64_t step = 1;
};

// A bound within [0, size]; for negative steps an end within [-1, size - 1], a start in the axis.
DimExpr clamped(OnnxCall& c, DimExpr bound, const DimExpr& size, int64_t step, bool is_end) {
  SizeGuards& sizes = c.sizes();
  const bool is_open = step < 0 && (is_end || sizes.equal(size, 0));
  const DimExpr least = is_open ? -1 : 0, most = step > 0 ? size : size - DimExpr(1);
  constexpr int64_t kNoEnd = (int64_t{1} << 31) - 1;  // whichever way a slice goes, as onnxruntime
  if (step < 0 && is_end && sizes.hint(bound) == kNoEnd && sizes.equal(bound, kNoEnd)) return least;
  constexpr int64_t kFar = 1 << 30;  // a bound beyond it means the end; that needs no guard
  if (bound.is_constant() && bound.value() > kFar && sizes.hint(size) <= kFar) return most;
  if (bound.is_constant() && bound.value() < -kFar && sizes.hint(size) <= kFar) return least;
  if (sizes.less(bound, 0)) bound = bound + size;
  if (sizes.less(bound, least)) return least;
  return sizes.at_most(most, bound) ? most : bound;
}

std::vector<SliceAxis> slice_axes(OnnxCall& c) {
  const Dims dims = c.dims(0);
  Dims starts, ends;
  std::vector<int64_t> axes, steps;
  if (c.opset() >= 10) {
    starts = c.content_places(1);
    ends = c.content_places(2);
    if (c.has(3)) axes = c.fixed_integers(3);
    if (c.has(4)) steps = c.fixed_integers(4);
  } else {
    for (int64_t start : c.integers("starts")) starts.emplace_back(start);
    for (int64_t end : c.integers("ends")) ends.emplace_back(end);
    axes = c.integers("axes");
  }
  if (axes.empty())
    for (size_t i = 0; i < starts.size(); ++i) axes.push_back(static_cast<int64_t>(i));
  if (starts.size() != ends.size() || axes.size() != starts.size() ||
      (!steps.empty() && steps.size() != starts.size()))
    c.refuse("starts, ends, axes and steps must have the same length");
  std::vector<SliceAxis> result;
  for (size_t i = 0; i < starts.size(); ++i) {
    SliceAxis slice{c.axis(axes.at(i), dims.size()), {}, {}, steps.empty() ? 1 : steps.at(i)};
    if (slice.step == 0) c.refuse("a step must not be 0");
    const DimExpr& size = dims.at(static_cast<size_t>(slice.axis));
    slice.start = clamped(c, starts.at(i), size, slice.step, false);
    slice.end = clamped(c, ends.at(i), size, slice.step, true);
    if (slice.step > 0 && c.sizes().less(slice.end, slice.start)) slice.end = slice.start;
    if (slice.step < 0 && c.sizes().less(slice.start, slice.end)) slice.start = slice.end;
    result.push_back(std::move(slice));
  }
  return result;
}

// Elements at the places start, start + step, ... down to but excluding end.
Value* backward_slice(OnnxCall& c, Value* x, const SliceAxis& slice) {
  Value* places = c.emit("Range", {},
                         {{"start", slice.start},
                          {"limit", slice.end},
                          {"delta", DimExpr(slice.step)},
                          {"dtype", DType::Int64}});
  return c.emit("Gather", {x, places}, {{"axis", slice.axis}});
}

Values import_slice(OnnxCall& c) {
  Value* x = c.in(0);
  for (const SliceAxis& slice : slice_axes(c)) {
    const DimExpr& size = x->dims.at(static_cast<size_t>(slice.axis));
    if (slice.step == 1 && slice.start == DimExpr(0) && slice.end == size) continue;
    x = slice.step > 0 ? c.slice(x, slice.axis, slice.start, slice.end, slice.step)
                       : backward_slice(c, x, slice);
  }
  return {x};
}

// Whether a tensor is rather data, as a table of positions, than sizes. Nothing is fixed so that
// the content of data is known: one import serves all sizes.
bool is_data(const KnownValue& x) {
  constexpr size_t kMostSizes = 16;
  return x.elements.size() > kMostSizes;
}

Known known_slice(OnnxCall& c) {
  const KnownValue* x = c.known(0);
  if (!x || x->dims.empty()) return std::nullopt;
  for (size_t i = 1; c.opset() >= 10 && i < c.input_count(); ++i)
    if (c.has(i) && !c.known(i)) return std::nullopt;
  Sizes sizes = x->dims, starts(sizes.size(), 0), steps(sizes.size(), 1);
  for (const SliceAxis& slice : slice_axes(c)) {
    const bool is_fixed = slice.start.is_constant() && slice.end.is_constant();
    if (!is_fixed && is_data(*x)) return std::nullopt;
    const auto axis = static_cast<size_t>(slice.axis);
    const int64_t start = c.sizes().fix(slice.start), end = c.sizes().fix(slice.end);
    const int64_t way = slice.step > 0 ? end - start : start - end, pace = std::abs(slice.step);
    sizes.at(axis) = std::max<int64_t>(0, (way + pace - 1) / pace);
    starts.at(axis) = start;
    steps.at(axis) = slice.step;
  }
  return one_known(rearranged(*x, sizes, [&](Sizes place) {
    for (size_t d = 0; d < place.size(); ++d)
      place.at(d) = starts.at(d) + place.at(d) * steps.at(d);
    return place;
  }));
}

// Slice as later sets have it, without steps.
Values import_dynamic_slice(OnnxCall& c) {
  OnnxCall same = c.at_opset(10);
  return import_slice(same);
}

Known known_dynamic_slice(OnnxCall& c) {
  OnnxCall same = c.at_opset(10);
  return known_slice(same);
}

Values import_gather(OnnxCall& c) {
  Value *x = c.in(0), *indices = c.in(1);
  const int64_t axis = c.axis_attr("axis", 0, x->rank());
  if (indices->dtype != DType::Int64 && indices->dtype != DType::Int32)
    c.refuse("indices must be int64 or int32");
  return {c.emit("Gather", {x, indices}, {{"axis", axis}})};
}

Known known_gather(OnnxCall& c) {
  const KnownValue *x = c.known(0), *indices = c.known(1);
  if (!x || !indices || x->dims.empty()) return std::nullopt;
  if (c.is_input_content(*indices) && indices->elements.size() > 1) return std::nullopt;
  if (!indices->is_constant() && is_data(*x)) return std::nullopt;
  const auto axis = static_cast<size_t>(c.axis_attr("axis", 0, x->dims.size()));
  Sizes picked;
  for (const KnownNumber& number : indices->elements) {
    int64_t index = c.sizes().fix(number.numerator());
    if (index < 0) index += x->dims.at(axis);
    if (index < 0 || index >= x->dims.at(axis))
      c.refuse(str("index ", index, " must be within data"));
    picked.push_back(index);
  }
  Sizes sizes = x->dims;  // with one axis for all indices, then with theirs
  sizes.at(axis) = static_cast<int64_t>(picked.size());
  if (element_count(sizes) > KnownValue::kMostElements) return std::nullopt;
  KnownValue result = rearranged(*x, sizes, [&](Sizes place) {
    place.at(axis) = picked[static_cast<size_t>(place.at(axis))];
    return place;
  });
  const auto at = result.dims.begin() + static_cast<int64_t>(axis);
  result.dims.insert(result.dims.erase(at), indices->dims.begin(), indices->dims.end());
  return one_known(std::move(result));
}

// ---- DepthToSpace and SpaceToDepth -------------------------------------------------------------

DimExpr block_size(OnnxCall& c) {
  const int64_t block = c.integer("blocksize");
  if (block < 1) c.refuse(str("blocksize must be positive, but found ", block));
  return block;
}

Values import_depth_to_space(OnnxCall& c) {
  Value* x = c.in(0);
  if (x->rank() != 4) c.refuse("x must have rank 4");
  const DimExpr block = block_size(c);
  const Dims& d = x->dims;
  const DimExpr depth = DimExpr::floor_div(d.at(1), block * block);
  const bool columns_first = c.word("mode", {"DCR", "CRD"}) == "CRD";
  const Dims split = columns_first ? Dims{d.at(0), depth, block, block, d.at(2), d.at(3)}
                                   : Dims{d.at(0), block, block, depth, d.at(2), d.at(3)};
  const std::vector<int64_t> perm = columns_first ? std::vector<int64_t>{0, 1, 4, 2, 5, 3}
                                                  : std::vector<int64_t>{0, 3, 4, 1, 5, 2};
  Value* moved = c.transpose(c.reshape(x, split), perm);
  return {c.reshape(moved, {d.at(0), depth, d.at(2) * block, d.at(3) * block})};
}

Values import_space_to_depth(OnnxCall& c) {
  Value* x = c.in(0);
  if (x->rank() != 4) c.refuse("x must have rank 4");
  const DimExpr block = block_size(c);
  const Dims& d = x->dims;
  const DimExpr height = DimExpr::floor_div(d.at(2), block),
                width = DimExpr::floor_div(d.at(3), block);
  Value* split = c.reshape(x, {d.at(0), d.at(1), height, block, width, block});
  const std::string mode = c.word("mode", {"DCR", "CRD"});
  const std::vector<int64_t> perm = mode == "CRD" ? std::vector<int64_t>{0, 1, 3, 5, 2, 4}
                                                  : std::vector<int64_t>{0, 3, 5, 1, 2, 4};
  return {c.reshape(c.transpose(split, perm), {d.at(0), d.at(1) * block * block, height, width})};
}

REGISTER_ONNX({{"Shape", 1, nullptr, known_shape, "", nullptr, reads_texts()},
               {"Size", 1, nullptr, known_size, "", nullptr, reads_texts()},
               {"Reshape", 1, import_reshape, known_reshape, "", nullptr, moves_texts()},
               {"Flatten", 1, import_flatten, nullptr, "", nullptr, moves_texts()},
               {"Squeeze", 1, import_squeeze, known_squeeze, "", nullptr, moves_texts()},
               {"Unsqueeze", 1, import_unsqueeze, known_unsqueeze, "", nullptr, moves_texts()},
               {"Transpose", 1, import_transpose, known_transpose, "", nullptr, moves_texts()},
               {"Concat", 1, import_standard_concat, known_concat, "", nullptr, moves_texts(~0u)},
               {"Split", 1, import_split, known_split, "", nullptr, moves_texts()},
               {"Slice", 1, import_slice, known_slice, "", nullptr, moves_texts()},
               {"DynamicSlice", 1, import_dynamic_slice, known_dynamic_slice, "", nullptr,
                moves_texts()},
               {"Gather", 1, import_gather, known_gather, "", nullptr, moves_texts()},
               {"DepthToSpace", 1, import_depth_to_space},
               {"SpaceToDepth", 1, import_space_to_depth}});

}  // namespace
}  // namespace ortmodule
