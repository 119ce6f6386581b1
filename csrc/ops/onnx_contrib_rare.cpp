// Import of operators of com.microsoft that few models have. Those without a body here are
// SizedOps.
#include "base/error.h"
#include "ops/onnx_heads.h"
#include "ops/onnx_nested.h"
#include "ops/op_def.h"

namespace ortmodule {
namespace {

Attrs sized_inverse(OnnxCall& c) {
  const Dims dims = c.dims(0);
  if (!is_floating(c.dtype(0)) || dims.size() < 2 ||
      !c.sizes().equal(dims[dims.size() - 1], dims[dims.size() - 2]))
    c.refuse("x must be square matrices of floats");
  return {};
}

Attrs sized_n_gram_repeat_block(OnnxCall& c) {
  const int64_t size = c.integer("ngram_size");
  if (size < 1) c.refuse(str("ngram_size must be positive, but found ", size));
  if (c.dtype(0) != DType::Int64 || c.dtype(1) != DType::Float32 || c.rank(0) != 2 ||
      c.rank(1) != 2)
    c.refuse("input_ids must be int64 and scores float32, both with two dimensions");
  return {{"ngram_size", size}};
}

Attrs sized_crop_and_resize(OnnxCall& c) {
  const Dims boxes = c.dims(1);
  if (c.dtype(0) != DType::Float32 || c.dtype(1) != DType::Float32 || c.dtype(2) != DType::Int32 ||
      c.dtype(3) != DType::Int32)
    c.refuse("X and rois must be float32, batch_indices and crop_size int32");
  if (c.rank(0) != 4 || boxes.size() != 2 || !c.sizes().equal(boxes[1], DimExpr(4)))
    c.refuse("X must have four dimensions, and rois be [boxes, 4]");
  return {{"mode", c.word("mode", {"bilinear", "nearest"})},
          {"extrapolation_value", c.number("extrapolation_value", 0.0)}};
}

Attrs sized_dynamic_time_warping(OnnxCall& c) {
  if (c.dtype(0) != DType::Float32 || c.rank(0) < 2 || c.rank(0) > 3)
    c.refuse("costs must be a matrix of float32");
  return {};
}

Attrs sized_bifurcation_detector(OnnxCall& c) {
  const int64_t least = c.integer("min_ngram_size"), most = c.integer("max_ngram_size");
  if (least < 1 || most < least)
    c.refuse("min_ngram_size must be positive, and max_ngram_size not less");
  for (size_t i = 0; i < 4; ++i)
    if (c.has(i) && (c.dtype(i) != DType::Int64 || (i != 2 && c.rank(i) != 1)))
      c.refuse("tokens must be vectors of int64");
  if (!c.sizes().equal(product(c.dims(2)), 1)) c.refuse("prev_suffix_match_idx must be one number");
  return {{"min_ngram_size", least}, {"max_ngram_size", most}};
}

// All runs of `size` elements along an axis, `step` apart, in a new last dimension.
Values import_unfold_tensor(OnnxCall& c) {
  Value* x = c.in(0);
  if (x->rank() == 0) c.refuse("x must have a dimension");
  const int64_t axis = c.axis_attr("dim", -1, x->rank()), size = c.integer("size"),
                step = c.integer("step", 1);
  const int64_t length = c.sizes().fix(x->dims[static_cast<size_t>(axis)]);
  if (size < 1 || step < 1 || size > length)
    c.refuse(str("size must be from 1 to ", length, " and step positive, but found ", size, " and ",
                 step));
  const int64_t count = (length - size) / step + 1;
  KnownValue places{DType::Int64, {count, size}, {}};
  for (int64_t i = 0; i < count; ++i)
    for (int64_t k = 0; k < size; ++k) places.elements.emplace_back(i * step + k);
  Value* y = c.emit("Gather", {x, c.constant(places)}, {{"axis", axis}});
  std::vector<int64_t> order;
  for (int64_t d = 0; d <= static_cast<int64_t>(x->rank()); ++d)
    if (d != axis + 1) order.push_back(d);
  order.push_back(axis + 1);
  return {c.transpose(y, order)};
}

Values import_matmul_integer16(OnnxCall& c) {
  return call_nested(c, "MatMul", {c.cast(c.in(0), DType::Int32), c.cast(c.in(1), DType::Int32)});
}

// words [S, L] of characters, where 0 is none, filters [F, 1, window, E] and their bias [F], rows
// of characters [.., E]: the greatest tanh of each filter in each word. An empty word gives zeros.
Values import_word_conv_embedding(OnnxCall& c) {
  Value* words = c.cast(c.in(0), DType::Int64);
  const Dims filters = c.dims(1);
  if (words->rank() != 2 || filters.size() != 4 || c.rank(3) != 2)
    c.refuse("Sequence, W and C must have 2, 4 and 2 dimensions");
  const int64_t window = c.sizes().fix(filters[2]);
  const DimExpr count = words->dims[0], places = words->dims[1] - DimExpr(window - 1);
  if (!c.sizes().at_most(1, places))
    c.refuse("words must have at least as many characters as the window");
  Value* x = c.emit("Gather", {c.in(3), words}, {{"axis", 0}});
  x = c.reshape(x, {count, 1, words->dims[1], c.dims(3)[1]});
  Value* y = c.emit("Conv", {x, c.in(1), c.in(2)},
                    {{"strides", Dims{1, 1}},
                     {"pads", Dims{0, 0, 0, 0}},
                     {"dilations", Dims{1, 1}},
                     {"group", int64_t{1}}});
  y = c.emit("Tanh", {c.reshape(y, {count, filters[0], places})});
  Value* letters = c.emit("Greater", {words, number(c, 0, words)});
  Value* length = c.reduce("ReduceSum", c.cast(letters, DType::Int64), {1}, true);
  Value* ends = c.emit("Max", {length, number(c, static_cast<double>(window), length)});
  Value* place = onnx_heads::range(c, window, places, {1, places});
  Value* inside = c.reshape(c.pointwise("LessOrEqual", {place, ends}), {count, 1, places});
  y = c.pointwise("Where", {inside, y, number(c, -1, y)});  // below every tanh
  y = c.reduce("ReduceMax", y, {2}, false);
  Value* has_letters = c.slice(letters, 1, 0, 1);
  return {c.pointwise("Where", {has_letters, y, number(c, 0, y)})};
}

// x itself: an example of an operator.
Values import_sample(OnnxCall& c) { return {c.in(0)}; }

REGISTER_ONNX(
    {{"Inverse", 1, nullptr, nullptr, "com.microsoft", sized_inverse},
     {"NGramRepeatBlock", 1, nullptr, nullptr, "com.microsoft", sized_n_gram_repeat_block},
     {"CropAndResize", 1, nullptr, nullptr, "com.microsoft", sized_crop_and_resize},
     {"BifurcationDetector", 1, nullptr, nullptr, "com.microsoft", sized_bifurcation_detector},
     {"DynamicTimeWarping", 1, nullptr, nullptr, "com.microsoft", sized_dynamic_time_warping},
     {"UnfoldTensor", 1, import_unfold_tensor, nullptr, "com.microsoft"},
     {"WordConvEmbedding", 1, import_word_conv_embedding, nullptr, "com.microsoft"},
     {"SampleOp", 1, import_sample, nullptr, "com.microsoft"},
     {"MatMulInteger16", 1, import_matmul_integer16, nullptr, "com.microsoft"}});

}  // namespace
}  // namespace ortmodule
