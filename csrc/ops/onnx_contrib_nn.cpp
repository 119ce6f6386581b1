// Import of com.microsoft's fused layers: convolutions, products, normalizations and embeddings.
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "ops/onnx_nested.h"
#include "ops/op_def.h"

namespace ortmodule {
namespace {

// Channels from the last dimension to the second, or back.
Value* channels_first(OnnxCall& c, Value* x) {
  std::vector<int64_t> order{0, static_cast<int64_t>(x->rank()) - 1};
  for (size_t i = 1; i + 1 < x->rank(); ++i) order.push_back(static_cast<int64_t>(i));
  return c.transpose(x, order);
}

Value* channels_last(OnnxCall& c, Value* x) {
  std::vector<int64_t> order{0};
  for (size_t i = 2; i < x->rank(); ++i) order.push_back(static_cast<int64_t>(i));
  order.push_back(1);
  return c.transpose(x, order);
}

Values import_fused_conv(OnnxCall& c) {
  Value* y = call_standard(c, "Conv")[0];
  if (c.has(3)) y = c.pointwise("Add", {y, c.in(3)});
  return {activated(c, y, c.string("activation", ""), c.numbers("activation_params"))};
}

Values import_fused_gemm(OnnxCall& c) {
  std::vector<double> parameters;
  for (std::string_view name : {"activation_alpha", "activation_beta"})
    if (c.has_attr(name)) parameters.push_back(c.number(name, 0));
  Value* y = call_standard(c, "Gemm")[0];
  return {activated(c, y, c.string("activation", ""), parameters)};
}

Value* normalized_groups(OnnxCall& c, Value* x) {
  const bool last = c.flag("channels_last", true);
  const OnnxAttrs attrs{{"num_groups", c.integer("groups")},
                        {"epsilon", c.number("epsilon", 1e-5)}};
  Value* y = last ? channels_first(c, x) : x;
  const DType dtype = y->dtype;
  y = call_nested(c, "GroupNormalization", {y, c.cast(c.in(1), dtype), c.cast(c.in(2), dtype)},
                  attrs)[0];
  if (c.integer("activation") == 1) y = c.emit("Silu", {y});
  return last ? channels_last(c, y) : y;
}

Values import_group_norm(OnnxCall& c) { return {normalized_groups(c, c.in(0))}; }

// x + skip (+ bias), normalized; the sum is output 1.
Values import_skip_group_norm(OnnxCall& c) {
  if (!c.flag("channels_last", true)) c.refuse("channels_last must be 1");
  Value *x = c.in(0), *skip = c.in(3);
  if (skip->rank() == 2) skip = c.reshape(skip, {skip->dims.at(0), 1, 1, skip->dims.at(1)});
  Value* sum = c.pointwise("Add", {x, skip});
  if (c.has(4)) sum = c.pointwise("Add", {sum, c.in(4)});
  return {normalized_groups(c, sum), sum};
}

// ---- embeddings --------------------------------------------------------------------------------

// input_ids, segment_ids?, word_embedding, position_embedding, segment_embedding?, gamma, beta,
// mask?, position_ids?
// real(x, i): elements x of operand i as real numbers.
template <class Real>
Values embed(OnnxCall& c, Value* position_ids, Real real) {
  Value* ids = c.in(0);
  const DimExpr batch = ids->dims.at(0), length = ids->dims.at(1);
  auto rows = [&](size_t table, Value* index) {
    index = c.cast(index, DType::Int64);
    return real(c.emit("Gather", {c.in(table), index}, {{"axis", 0}}), table);
  };
  Value* positions;
  if (position_ids) {
    positions = rows(3, position_ids);
  } else {
    positions = real(c.slice(c.in(3), 0, 0, length), 3);
    positions = c.reshape(positions, {1, length, positions->dims.at(1)});
  }
  Value* sum = c.pointwise("Add", {rows(2, ids), positions});
  if (c.has(1)) sum = c.emit("Add", {sum, rows(4, c.in(1))});
  Value* y = c.emit_all("LayerNormalization", {sum, real(c.in(5), 5), real(c.in(6), 6)},
                        {{"axis", 2}, {"epsilon", c.number("epsilon", 1e-12)}})[0];
  Value* index = nullptr;
  if (c.wants_output(1)) {
    if (c.has(7)) {  // the number of ones
      Value* ones = c.emit("Equal", {c.in(7), number(c, 1, c.in(7))});
      index = c.reduce("ReduceSum", c.cast(ones, DType::Int32), {1}, false);
    } else {
      index = c.full(0.0, {batch}, DType::Int32);
    }
  }
  return {y, index, sum};
}

Values import_embed_layer_norm(OnnxCall& c) {
  return embed(c, c.optional(8), [](Value* x, size_t) { return x; });
}

// The tables, gamma and beta are quantized: their scales are six operands behind them, their zero
// points eleven. Only the rows that are looked up become real numbers.
Values import_q_embed_layer_norm(OnnxCall& c) {
  return embed(c, nullptr, [&](Value* x, size_t i) {
    return call_nested(c, "DequantizeLinear", {x, c.in(i + 6), c.in(i + 11)},
                       {{"axis", int64_t{0}}})[0];
  });
}

// ---- small ones --------------------------------------------------------------------------------

// data + bias + residual: a session runs inference.
Values import_bias_dropout(OnnxCall& c) {
  if (c.has(4) && c.constant_number(4).value_or(1) != 0 && c.constant_number(3).value_or(0.5) != 0)
    c.refuse("a session runs inference, but training_mode may be true");
  Value* y = c.pointwise("Add", {c.in(0), c.in(1)});
  if (c.has(2)) y = c.pointwise("Add", {y, c.in(2)});
  return {y, c.wants_output(1) ? c.full(1.0, y->dims, DType::Bool) : nullptr};
}

Values import_bias_add(OnnxCall& c) {
  return {c.pointwise("Add", {c.pointwise("Add", {c.in(0), c.in(1)}), c.in(2)})};
}

Values import_expand_dims(OnnxCall& c) {
  Value* x = c.in(0);
  const int64_t axis = c.axis(c.fixed_integers(1).at(0), x->rank() + 1);
  Dims dims = x->dims;
  dims.insert(dims.begin() + axis, DimExpr(1));
  return {c.emit("Reshape", {x}, {{"shape", dims}})};
}

Values import_same_trilu(OnnxCall& c) { return call_standard(c, "Trilu"); }
Values import_same_pad(OnnxCall& c) { return call_standard(c, "Pad"); }
Values import_same_gather_nd(OnnxCall& c) { return call_standard(c, "GatherND"); }
Values import_same_grid_sample(OnnxCall& c) { return call_standard(c, "GridSample"); }

// The last operand, the step, may be absent.
Values import_contrib_range(OnnxCall& c) {
  if (c.has(2)) return call_standard(c, "Range");
  const KnownValue &start = c.content(0), &limit = c.content(1);
  if (start.elements.size() != 1 || limit.elements.size() != 1)
    c.refuse("start and limit must be scalars");
  const KnownNumber &from = start.elements[0], &to = limit.elements[0];
  Attrs attrs{{"dtype", start.dtype}};
  if (from.is_integer() && to.is_integer()) {
    attrs.set("start", from.numerator());
    attrs.set("limit", c.sizes().at_most(from.numerator(), to.numerator()) ? to.numerator()
                                                                           : from.numerator());
    attrs.set("delta", DimExpr(1));
  } else {
    attrs.set("start", c.fixed_numbers(0).at(0));
    attrs.set("limit", c.fixed_numbers(1).at(0));
    attrs.set("delta", 1.0);
  }
  return {c.emit("Range", {}, std::move(attrs))};
}

REGISTER_ONNX({{"FusedConv", 1, import_fused_conv, nullptr, "com.microsoft"},
               {"FusedGemm", 1, import_fused_gemm, nullptr, "com.microsoft"},
               {"GroupNorm", 1, import_group_norm, nullptr, "com.microsoft"},
               {"SkipGroupNorm", 1, import_skip_group_norm, nullptr, "com.microsoft"},
               {"EmbedLayerNormalization", 1, import_embed_layer_norm, nullptr, "com.microsoft"},
               {"QEmbedLayerNormalization", 1, import_q_embed_layer_norm, nullptr, "com.microsoft"},
               {"BiasDropout", 1, import_bias_dropout, nullptr, "com.microsoft"},
               {"BiasAdd", 1, import_bias_add, nullptr, "com.microsoft"},
               {"ExpandDims", 1, import_expand_dims, nullptr, "com.microsoft"},
               {"Trilu", 1, import_same_trilu, nullptr, "com.microsoft"},
               {"Pad", 1, import_same_pad, nullptr, "com.microsoft"},
               {"GatherND", 1, import_same_gather_nd, nullptr, "com.microsoft"},
               {"GridSample", 1, import_same_grid_sample, nullptr, "com.microsoft"},
               {"Range", 1, import_contrib_range, nullptr, "com.microsoft"}});

}  // namespace
}  // namespace ortmodule
