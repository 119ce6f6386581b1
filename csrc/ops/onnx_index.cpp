// Import of operators that read and write elements by index, and of padding.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/error.h"
#include "ops/known_arithmetic.h"
#include "ops/onnx_cast.h"
#include "ops/op_def.h"

namespace ortmodule {
namespace {

Value* range(OnnxCall& c, const DimExpr& start, const DimExpr& limit, int64_t delta = 1,
             DType dtype = DType::Int64) {
  return c.emit("Range", {},
                {{"start", start}, {"limit", limit}, {"delta", DimExpr(delta)}, {"dtype", dtype}});
}

Value* index64(OnnxCall& c, size_t i) { return c.cast(c.in(i), DType::Int64); }

constexpr std::array<std::string_view, 8> kRearranging = {
    "Reshape", "Squeeze", "Unsqueeze", "Expand", "Slice", "Transpose", "Identity", "Contiguous"};

// Whether an index follows from ranges, constants and places without a sign. Looks at `nodes` nodes
// at most.
bool is_never_negative(OnnxCall& c, const Value* index, int& nodes) {
  if (index->is_literal()) {
    const auto* number = std::get_if<DimExpr>(&index->literal());
    return number && number->is_constant() && number->value() >= 0;
  }
  if (--nodes < 0) return false;
  const Node* node = index->producer();
  if (!node) {
    const OnnxTensor* weight = c.weight_of(*index);
    const auto bounds = weight ? integer_bounds(*weight) : std::nullopt;
    return bounds && bounds->first >= 0;
  }
  if (node->op == "ArgMax" || node->op == "ArgMin") return true;
  if (node->op == "Range") {
    const auto* start = std::get_if<DimExpr>(node->attrs.find("start"));
    const auto* delta = std::get_if<DimExpr>(node->attrs.find("delta"));
    return start && delta && start->is_constant() && delta->is_constant() && start->value() >= 0 &&
           delta->value() > 0;
  }
  if (node->op == "Add" || node->op == "Mul")
    return is_never_negative(c, node->input(0), nodes) &&
           is_never_negative(c, node->input(1), nodes);
  const bool same = std::ranges::find(kRearranging, node->op) != kRearranging.end() ||
                    (node->op == "Cast" && index->dtype == DType::Int64);
  return same && is_never_negative(c, node->input(0), nodes);
}

// Negative indices count from the end.
Value* from_front(OnnxCall& c, Value* index, const DimExpr& size) {
  int nodes = 64;
  if (is_never_negative(c, index, nodes)) return index;
  Value* negative = c.emit("Less", {index, c.literal(0, index->dtype)});
  return c.emit("Where",
                {negative, c.emit("Add", {index, size_number(c, size, index->dtype)}), index});
}

Values import_gather_elements(OnnxCall& c) {
  Value* x = c.in(0);
  return {
      c.emit("GatherElements", {x, index64(c, 1)}, {{"axis", c.axis_attr("axis", 0, x->rank())}})};
}

// ScatterElements. Unsigned integers are scattered as int64, what has few bits as bytes.
Value* scattered(OnnxCall& c, Value* x, Value* index, Value* updates, int64_t axis,
                 const std::string& reduction) {
  const DType dtype = x->dtype;
  const Attrs attrs{{"axis", axis}, {"reduction", reduction}};
  if (is_wide_unsigned(dtype)) {
    if (dtype == DType::UInt64 && (reduction == "max" || reduction == "min"))
      return flipped_order(
          c, c.emit("ScatterElements", {flipped_order(c, x), index, flipped_order(c, updates)},
                    attrs));
    Value* y = c.emit("ScatterElements",
                      {c.cast(x, DType::Int64), index, c.cast(updates, DType::Int64)}, attrs);
    return c.cast(y, dtype);
  }
  if (is_narrow_float(dtype) || is_narrow_integer(dtype)) {
    if (reduction != "none") c.refuse(str("reduction must be none, but found ", reduction));
    const auto bytes = [&](Value* value) {
      return c.emit("BitCast", {value}, {{"to", DType::UInt8}});
    };
    Value* y = c.emit("ScatterElements", {bytes(x), index, bytes(updates)}, attrs);
    return c.emit("BitCast", {y}, {{"to", dtype}});
  }
  return c.emit("ScatterElements", {x, index, updates}, attrs);
}

std::string reduction_of(OnnxCall& c) {
  const std::string reduction = c.word("reduction", {"none", "add", "mul", "max", "min"});
  if (reduction != "none" && c.has_texts(0)) c.unsupported("strings cannot be reduced");
  return reduction;
}

Values import_scatter_elements(OnnxCall& c) {
  Value* x = c.in(0);
  return {
      scattered(c, x, index64(c, 1), c.in(2), c.axis_attr("axis", 0, x->rank()), reduction_of(c))};
}

// Element `i` of the last dimension. Exporters put such indices together from one operand for each.
Value* index_column(OnnxCall& c, Value* indices, size_t i, const Dims& outer) {
  const auto last = static_cast<int64_t>(indices->rank()) - 1;
  const auto at = static_cast<int64_t>(i);
  const Node* concat = indices->producer();
  const auto is_column = [](const Value* value) { return value->dims.back() == DimExpr(1); };
  if (concat && concat->op == "Concat" && concat->attrs.integer("axis") == last &&
      std::ranges::all_of(concat->inputs(), is_column))
    return c.reshape(concat->input(i), outer);
  return c.reshape(c.slice(indices, last, at, at + 1), outer);
}

// Whether an index follows from ranges and constants below `size`. Looks at `nodes` nodes at most.
bool is_below(OnnxCall& c, const Value* index, const DimExpr& size, int& nodes) {
  if (--nodes < 0) return false;
  const Node* node = index->producer();
  if (!node) {
    const OnnxTensor* weight = index->is_literal() ? nullptr : c.weight_of(*index);
    const auto bounds = weight ? integer_bounds(*weight) : std::nullopt;
    return bounds && c.sizes().less(bounds->second, size);
  }
  if (node->op == "Range") {
    const auto* limit = std::get_if<DimExpr>(node->attrs.find("limit"));
    const auto* delta = std::get_if<DimExpr>(node->attrs.find("delta"));
    return limit && delta && delta->is_constant() && delta->value() > 0 &&
           c.sizes().at_most(*limit, size);
  }
  const bool same = std::ranges::find(kRearranging, node->op) != kRearranging.end() ||
                    (node->op == "Cast" && index->dtype == DType::Int64);
  return same && is_below(c, node->input(0), size, nodes);
}

// A place in a dimension of that size. One outside of it would be another place of the flat tensor:
// looked up among all places, it is an error.
Value* checked_place(OnnxCall& c, Value* index, const DimExpr& size) {
  int nodes = 64, others = 64;
  if (is_never_negative(c, index, nodes) && is_below(c, index, size, others)) return index;
  return c.emit("Gather", {range(c, 0, size), index}, {{"axis", 0}});
}

// The indices of GatherND and ScatterND: the last dimension of `indices` names a place in the
// first `count` dimensions of x behind the batch. Returns the flat place, without that dimension.
Value* flat_index(OnnxCall& c, Value* indices, const Dims& dims, size_t batch, size_t count) {
  const Dims outer(indices->dims.begin(), indices->dims.end() - 1);
  Value* flat = nullptr;
  for (size_t i = 0; i < count; ++i) {
    Value* part = index_column(c, indices, i, outer);
    // Outside of the first dimension is outside of the flat tensor, too.
    part = batch + i == 0 ? from_front(c, part, dims.front())
                          : checked_place(c, part, dims.at(batch + i));
    if (flat)
      part = c.emit("Add", {c.emit("Mul", {flat, size_number(c, dims.at(batch + i))}), part});
    flat = part;
  }
  return flat;
}

Values import_gather_nd(OnnxCall& c) {
  Value *x = c.in(0), *indices = index64(c, 1);
  const int64_t batches_given = c.integer("batch_dims", 0);
  const size_t least = std::min(x->rank(), indices->rank());
  if (batches_given < 0 || batches_given >= static_cast<int64_t>(least))
    c.refuse(str("batch_dims must be from 0 to below ", least, ", but found ", batches_given));
  const auto batch = static_cast<size_t>(batches_given);
  const auto count = static_cast<size_t>(c.sizes().fix(indices->dims.at(indices->dims.size() - 1)));
  if (count == 0 || batch + count > x->rank()) c.refuse("indices must name places in data");
  Value* flat = flat_index(c, indices, x->dims, batch, count);
  const auto first = x->dims.begin(), middle = first + static_cast<int64_t>(batch),
             rest = middle + static_cast<int64_t>(count);
  const DimExpr batches = product(Dims(first, middle)), places = product(Dims(middle, rest));
  Dims result = flat->dims;
  result.insert(result.end(), rest, x->dims.end());
  if (batch > 0) {  // the batches are blocks of one long table
    Dims per_batch(flat->rank(), DimExpr(1));
    for (size_t i = 0; i < batch; ++i) per_batch.at(i) = flat->dims.at(i);
    Value* starts = c.emit("Mul", {range(c, 0, batches), size_number(c, places)});
    flat = c.emit("Add", {flat, c.reshape(starts, per_batch)});
  }
  Dims table{batches * places};
  table.insert(table.end(), rest, x->dims.end());
  return {c.reshape(c.emit("Gather", {c.reshape(x, table), flat}, {{"axis", 0}}), result)};
}

Values import_scatter_nd(OnnxCall& c) {
  Value *x = c.in(0), *indices = index64(c, 1), *updates = c.in(2);
  const auto count = static_cast<size_t>(c.sizes().fix(indices->dims.at(indices->dims.size() - 1)));
  if (count == 0 || count > x->rank()) c.refuse("indices must name places in data");
  Value* flat = flat_index(c, indices, x->dims, 0, count);
  const auto rest = x->dims.begin() + static_cast<int64_t>(count);
  const Dims inner(rest, x->dims.end());
  const DimExpr places = product(Dims(x->dims.begin(), rest)), width = product(inner);
  const DimExpr rows = product(flat->dims);
  Value* table = c.reshape(x, {places, width});
  Value* index = c.emit("Expand", {c.reshape(flat, {rows, 1})}, {{"shape", Dims{rows, width}}});
  Value* y = scattered(c, table, index, c.reshape(updates, {rows, width}), 0, reduction_of(c));
  return {c.reshape(y, x->dims)};
}

// ---- OneHot, EyeLike, Trilu --------------------------------------------------------------------

Values import_one_hot(OnnxCall& c) {
  Value *indices = c.in(0), *values = c.in(2);
  const KnownValue& content = c.content(1);
  const DimExpr depth = known_cast(c, content.elements.at(0), DType::Int64).numerator();
  const size_t rank = indices->rank() + 1;
  const auto axis = static_cast<size_t>(c.axis_attr("axis", -1, rank));
  Value* index = from_front(c, c.cast(indices, DType::Int64), depth);
  Dims spread = index->dims, along(rank, DimExpr(1));
  spread.insert(spread.begin() + static_cast<int64_t>(axis), DimExpr(1));
  along.at(axis) = depth;
  Value* hit = c.emit("Equal", {c.reshape(index, spread), c.reshape(range(c, 0, depth), along)});
  Value* off = c.reshape(c.slice(values, 0, 0, 1), {});
  Value* on = c.reshape(c.slice(values, 0, 1, 2), {});
  return {c.emit("Where", {hit, on, off})};
}

/// Zeros with ones along diagonal k.
Value* known_diagonal(OnnxCall& c, int64_t rows, int64_t columns, int64_t k, DType dtype) {
  const int64_t first = k >= 0 ? k : -k * columns;
  const int64_t count = std::max<int64_t>(
      0, std::min(rows + std::min<int64_t>(k, 0), columns - std::max<int64_t>(k, 0)));
  Value* y = c.full(0.0, {rows * columns}, dtype);
  if (count > 0) {
    Value* places = c.emit("Range", {},
                           {{"start", DimExpr(first)},
                            {"limit", DimExpr(first + count * (columns + 1))},
                            {"delta", DimExpr(columns + 1)},
                            {"dtype", DType::Int64}});
    y = c.emit("ScatterElements", {y, places, c.full(1.0, {count}, dtype)},
               {{"axis", 0}, {"reduction", "none"}});
  }
  return c.reshape(y, {rows, columns});
}

Values import_eye_like(OnnxCall& c) {
  const Dims dims = c.dims(0);
  if (dims.size() != 2) c.refuse("the operand must be a matrix");
  const DType dtype = c.dtype_attr("dtype", c.dtype(0));
  constexpr int64_t kMostDiagonal = int64_t{1} << 31;
  const int64_t k = c.integer("k", 0);
  if (dims[0].is_constant() && dims[1].is_constant() && k > -kMostDiagonal && k < kMostDiagonal)
    return {known_diagonal(c, dims[0].value(), dims[1].value(), k, dtype)};
  Value* rows = c.reshape(range(c, DimExpr(k), dims.at(0) + DimExpr(k)), {dims.at(0), 1});
  Value* columns = c.reshape(range(c, 0, dims.at(1)), {1, dims.at(1)});
  return {c.cast(c.emit("Equal", {rows, columns}), dtype)};
}

Values import_trilu(OnnxCall& c) {
  const int64_t k = c.has(1) ? c.fixed_integers(1).at(0) : 0;
  Value* x = c.in(0);
  Value* y = c.emit("Trilu", {x->dtype == DType::Bool ? c.cast(x, DType::UInt8) : x},
                    {{"upper", c.integer("upper", 1)}, {"k", k}});
  return {c.cast(y, x->dtype)};
}

// ---- Pad ---------------------------------------------------------------------------------------

// The place in x that element i of a padded axis shows.
int64_t padded_place(const std::string& mode, int64_t i, int64_t size) {
  if (mode == "edge") return std::clamp<int64_t>(i, 0, size - 1);
  if (mode == "wrap") return ((i % size) + size) % size;
  if (size == 1) return 0;
  const int64_t period = 2 * (size - 1);  // reflect, several times if need be
  const int64_t at = ((i % period) + period) % period;
  return at >= size ? period - at : at;
}

// The elements [begin, end) of the padded axis.
Value* padded_part(OnnxCall& c, Value* x, const std::string& mode, int64_t axis, int64_t size,
                   int64_t begin, int64_t end) {
  std::string bytes;
  bytes.reserve(static_cast<size_t>(end - begin) * sizeof(int64_t));
  for (int64_t i = begin; i < end; ++i) {
    const int64_t place = padded_place(mode, i, size);
    bytes.append(reinterpret_cast<const char*>(&place), sizeof(place));
  }
  Value* places = c.weight({DType::Int64, {end - begin}, std::move(bytes)});
  return c.emit("Gather", {x, places}, {{"axis", axis}});
}

// An axis with what it shows before and after it. Of a long one, what it is padded with alone is
// looked up: an index for each element would take as much memory as x.
Value* padded_axis(OnnxCall& c, Value* x, const std::string& mode, int64_t axis, int64_t before,
                   int64_t after) {
  const int64_t size = c.sizes().fix(x->dims.at(static_cast<size_t>(axis)));
  if (size == 0) c.refuse("an empty axis has no elements to repeat");
  constexpr int64_t kMostPadding = 1 << 22, kLong = 4096;
  if (std::max(before, after) > kMostPadding || before + size + after < 0)
    c.refuse(str("pads of mode ", mode, " must be at most ", kMostPadding, ", and leave no size ",
                 "below 0, but found ", before, " and ", after, " for size ", size));
  const int64_t begin = std::max<int64_t>(-before, 0), end = size + std::min<int64_t>(after, 0);
  // What is cut off is not repeated.
  if ((before < 0 || after < 0) && (before > 0 || after > 0) && begin < end)
    return padded_axis(c, c.slice(x, axis, begin, end), mode, axis, std::max<int64_t>(before, 0),
                       std::max<int64_t>(after, 0));
  if (size < kLong || begin >= end)
    return padded_part(c, x, mode, axis, size, -before, size + after);
  Values parts;
  if (before > 0) parts.push_back(padded_part(c, x, mode, axis, size, -before, 0));
  parts.push_back(begin == 0 && end == size ? x : c.slice(x, axis, begin, end));
  if (after > 0) parts.push_back(padded_part(c, x, mode, axis, size, size, size + after));
  return c.concat(parts, axis);
}

// Pads per axis, begins then ends, from the operand or attribute and the axes they are for.
Dims read_pads(OnnxCall& c, size_t rank) {
  Dims given;
  if (c.opset() >= 11) {
    given = c.content_sizes(1);
  } else {
    for (int64_t pad : c.integers(c.has_attr("pads") ? "pads" : "paddings"))
      given.emplace_back(pad);
  }
  if (!c.has(3)) {
    if (given.size() != 2 * rank) c.refuse("pads must have two numbers for each axis");
    return given;
  }
  const std::vector<int64_t> axes = c.fixed_integers(3);
  if (given.size() != 2 * axes.size()) c.refuse("pads must have two numbers for each axis");
  Dims pads(2 * rank, DimExpr(0));
  for (size_t i = 0; i < axes.size(); ++i) {
    const auto axis = static_cast<size_t>(c.axis(axes.at(i), rank));
    pads.at(axis) = given.at(i);
    pads.at(rank + axis) = given.at(axes.size() + i);
  }
  return pads;
}

// Padding by a value that is computed: the mask of the padding chooses it.
Value* pad_by_tensor(OnnxCall& c, Value* x, const Dims& pads, Value* value) {
  Value* inside =
      c.emit("Pad", {c.full(1.0, x->dims, DType::Int32)}, {{"pads", pads}, {"value", 0.0}});
  Value* padded = c.emit("Pad", {x}, {{"pads", pads}, {"value", 0.0}});
  Value* hit = c.emit("Equal", {inside, c.literal(1, DType::Int32)});
  return c.emit("Where", {hit, padded, c.reshape(value, {})});
}

Values import_pad(OnnxCall& c) {
  Value* x = c.in(0);
  const std::string mode = c.word("mode", {"constant", "reflect", "edge", "wrap"});
  const Dims pads = read_pads(c, x->rank());
  if (mode != "constant") {
    for (size_t d = 0; d < x->rank(); ++d) {
      const int64_t before = c.sizes().fix(pads.at(d)),
                    after = c.sizes().fix(pads.at(x->rank() + d));
      if (before == 0 && after == 0) continue;
      x = padded_axis(c, x, mode, static_cast<int64_t>(d), before, after);
    }
    return {x};
  }
  if (std::all_of(pads.begin(), pads.end(), [](const DimExpr& pad) { return pad == DimExpr(0); }))
    return {c.emit("Identity", {x})};
  double value = c.number("value", 0.0);
  if (c.has(2)) {
    const std::optional<double> constant = c.constant_number(2);
    if (!constant) return {pad_by_tensor(c, x, pads, c.in(2))};
    value = *constant;
  }
  if (x->dtype == DType::Bool)
    return {c.cast(c.emit("Pad", {c.cast(x, DType::UInt8)}, {{"pads", pads}, {"value", value}}),
                   DType::Bool)};
  return {c.emit("Pad", {x}, {{"pads", pads}, {"value", value}})};
}

// Cut or padded around the centre; odd elements at the end.
Values import_center_crop_pad(OnnxCall& c) {
  Value* x = c.in(0);
  const std::vector<int64_t> shape = c.fixed_integers(1);
  std::vector<int64_t> axes = c.integers("axes");
  if (axes.empty()) {
    axes.resize(shape.size());
    std::iota(axes.begin(), axes.end(), 0);
  }
  if (axes.size() != shape.size()) c.refuse("there must be a size for each axis");
  Dims pads(2 * x->rank(), DimExpr(0));
  for (size_t i = 0; i < axes.size(); ++i) {
    const auto axis = static_cast<size_t>(c.axis(axes.at(i), x->rank()));
    const int64_t size = c.sizes().fix(x->dims.at(axis));
    const int64_t more = shape.at(i) - size;
    const int64_t before = more >= 0 ? more / 2 : -((-more) / 2);
    pads.at(axis) = before;
    pads.at(x->rank() + axis) = more - before;
  }
  return {c.emit("Pad", {x}, {{"pads", pads}, {"value", 0.0}})};
}

// ---- ReverseSequence and others ----------------------------------------------------------------

// Element t of a sequence of length n comes from n - 1 - t for t < n, else from t.
Values import_reverse_sequence(OnnxCall& c) {
  Value* x = c.in(0);
  const int64_t time = c.axis_attr("time_axis", 0, x->rank()),
                batch = c.axis_attr("batch_axis", 1, x->rank());
  const DimExpr steps = x->dims.at(static_cast<size_t>(time));
  Dims along_time(x->rank(), DimExpr(1)), along_batch(x->rank(), DimExpr(1));
  along_time.at(static_cast<size_t>(time)) = steps;
  along_batch.at(static_cast<size_t>(batch)) = x->dims.at(static_cast<size_t>(batch));
  Value* t = c.reshape(range(c, 0, steps), along_time);
  Value* length = c.reshape(index64(c, 1), along_batch);
  Value* back = c.emit("Sub", {c.emit("Sub", {length, c.literal(1, DType::Int64)}), t});
  Value* place = c.emit("Where", {c.emit("Less", {t, length}), back, t});
  Value* places = c.emit("Expand", {place}, {{"shape", x->dims}});
  return {c.emit("GatherElements", {x, places}, {{"axis", time}})};
}

// data with the update in place of its rows from `write_indices` on (modulo the length if
// circular).
Values import_tensor_scatter(OnnxCall& c) {
  Value *past = c.in(0), *update = c.in(1);
  if (update->rank() != past->rank()) c.refuse("the cache and its update must have the same rank");
  const int64_t axis = c.axis_attr("axis", -2, past->rank());
  const DimExpr length = past->dims.at(static_cast<size_t>(axis));
  const DimExpr rows = update->dims.at(static_cast<size_t>(axis));
  Dims along(past->rank(), DimExpr(1)), batch(past->rank(), DimExpr(1));
  along.at(static_cast<size_t>(axis)) = rows;
  batch.at(0) = update->dims.at(0);
  Value* place = c.reshape(range(c, 0, rows), along);
  if (c.has(2)) place = c.emit("Add", {place, c.reshape(index64(c, 2), batch)});
  if (c.word("mode", {"linear", "circular"}) == "circular")
    place = c.emit("Mod", {place, size_number(c, length)});
  place = c.expand(place, update->dims);
  return {scattered(c, past, place, update, axis, "none")};
}

// Ones where data lies among zeros: MaxUnpool's result of the given or implied shape.
Values import_max_unpool(OnnxCall& c) {
  Value *x = c.in(0), *indices = index64(c, 1);
  const std::vector<int64_t> kernel = c.integers("kernel_shape");
  std::vector<int64_t> strides = c.integers("strides"), pads = c.integers("pads");
  if (strides.empty()) strides.assign(kernel.size(), 1);
  if (pads.empty()) pads.assign(2 * kernel.size(), 0);
  Dims implied{x->dims.at(0), x->dims.at(1)};
  for (size_t i = 0; i < kernel.size(); ++i)
    implied.push_back((x->dims.at(i + 2) - DimExpr(1)) * DimExpr(strides.at(i)) +
                      DimExpr(kernel.at(i) - pads.at(i) - pads.at(kernel.size() + i)));
  const DimExpr places = product(implied), count = product(x->dims);
  Value* flat =
      c.emit("ScatterElements",
             {c.full(0.0, {places}, x->dtype), c.reshape(indices, {count}), c.reshape(x, {count})},
             {{"axis", 0}, {"reduction", "none"}});
  Value* y = c.reshape(flat, implied);
  if (!c.has(2)) return {y};
  // Places count within the implied shape; the given one has more rows and columns at the end.
  const Dims wanted = c.content_sizes(2);
  Dims more(2 * wanted.size(), DimExpr(0));
  for (size_t d = 0; d < wanted.size(); ++d)
    more.at(wanted.size() + d) = wanted.at(d) - implied.at(d);
  return {c.emit("Pad", {y}, {{"pads", more}, {"value", 0.0}})};
}

REGISTER_ONNX(
    {{"GatherElements", 11, import_gather_elements, nullptr, "", nullptr, moves_texts()},
     {"ScatterElements", 11, import_scatter_elements, nullptr, "", nullptr, moves_texts(5)},
     {"Scatter", 9, import_scatter_elements, nullptr, "", nullptr, moves_texts(5)},
     {"GatherND", 11, import_gather_nd, nullptr, "", nullptr, moves_texts()},
     {"ScatterND", 11, import_scatter_nd, nullptr, "", nullptr, moves_texts(5)},
     {"OneHot", 9, import_one_hot, nullptr, "", nullptr, moves_texts(4)},
     {"EyeLike", 9, import_eye_like},
     {"Trilu", 14, import_trilu},
     {"Pad", 1, import_pad},
     {"CenterCropPad", 18, import_center_crop_pad},
     {"ReverseSequence", 10, import_reverse_sequence, nullptr, "", nullptr, moves_texts()},
     {"TensorScatter", 24, import_tensor_scatter},
     {"MaxUnpool", 9, import_max_unpool}});

}  // namespace
}  // namespace ortmodule
