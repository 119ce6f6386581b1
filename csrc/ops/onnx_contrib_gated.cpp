// Import of com.microsoft's layers of models with linear attention: gates, norms, and the causal
// convolution in front of it.
#include "base/error.h"
#include "ops/onnx_nested.h"
#include "ops/onnx_packed_rows.h"
#include "ops/op_def.h"

namespace ortmodule {
namespace {

Value* times(OnnxCall& c, Value* a, Value* b) { return c.pointwise("Mul", {a, b}); }

// x / sqrt(mean of x^2 over the last dimension + epsilon)
Value* unit_rows(OnnxCall& c, Value* x) {
  const auto last = static_cast<int64_t>(x->rank()) - 1;
  Value* mean = c.reduce("ReduceMean", c.emit("Mul", {x, x}), {last}, true);
  Value* shifted = c.emit("Add", {mean, number(c, c.number("epsilon", 1e-5), mean)});
  return c.emit("Mul", {x, c.emit("Rsqrt", {shifted})});
}

// The last dimension of x as `groups` by what is left of it.
Dims grouped(const Value* x, const DimExpr& groups, const DimExpr& size) {
  Dims dims(x->dims.begin(), x->dims.end() - 1);
  dims.insert(dims.end(), {groups, size});
  return dims;
}

// Rows of x as long as the scale, normalized, times the scale and a function of the gate.
Values import_gated_rms_norm(OnnxCall& c) {
  const DType dtype = c.dtype(0), wide = compute_dtype(dtype);
  Value *x = c.cast(c.in(0), wide), *scale = c.cast(c.in(1), wide), *gate = c.cast(c.in(2), wide);
  if (x->rank() == 0 || scale->rank() != 1) c.refuse("x must have rows, and the scale be a vector");
  const int64_t length = c.sizes().fix(x->dims.at(x->rank() - 1)),
                size = c.sizes().fix(scale->dims.at(0));
  if (size <= 0 || length % size != 0)
    c.refuse(str("rows must be a multiple of the scale, but found ", length, " and ", size));
  Value* y = times(c, unit_rows(c, c.reshape(x, grouped(x, length / size, size))), scale);
  const bool sigmoid = c.word("activation", {"silu", "swish", "sigmoid"}) == "sigmoid";
  gate = c.emit(sigmoid ? "Sigmoid" : "Silu", {gate});
  return {c.cast(times(c, c.reshape(y, x->dims), gate), dtype)};
}

// Each branch of x is normalized by itself, times its part of the scale.
Values import_branchwise_rms_norm(OnnxCall& c) {
  const DType dtype = c.dtype(0), wide = compute_dtype(dtype);
  Value* given = c.cast(c.in(0), wide);
  Value* x = given;
  if (const int64_t branches = c.integer("num_branches", 0); branches > 0) {
    if (x->rank() == 0) c.refuse("x must have rows");
    const DimExpr length = x->dims.back();
    if (c.sizes().fix(length) % branches != 0) c.refuse("rows must have as many whole branches");
    x = c.reshape(x, grouped(x, branches, DimExpr::floor_div(length, branches)));
  }
  if (x->rank() < 2) c.refuse("x must have branches and their elements");
  Value* y = unit_rows(c, x);
  if (c.has(1)) {
    Value* scale = c.cast(c.in(1), wide);
    const Dims of_branches(x->dims.end() - 2, x->dims.end());
    const bool shared = scale->rank() == 1 && c.sizes().equal(scale->dims[0], of_branches[1]);
    y = times(c, y, shared ? scale : c.reshape(scale, of_branches));
  }
  return {c.cast(c.reshape(y, given->dims), dtype)};
}

Values import_gated_add(OnnxCall& c) {
  if (c.has(3)) c.unsupported("a gate that is projected has no rule");
  return {c.pointwise("Add", {c.in(0), times(c, c.in(1), c.in(2))})};
}

// z * sigmoid(z) of z = scale * x, each rounded to the type of x.
Values import_scaled_silu(OnnxCall& c) {
  Value* x = c.in(0);
  const DType wide = compute_dtype(x->dtype);
  Value* z = c.cast(x, wide);
  Value* scale =
      c.has(1) ? c.reshape(c.cast(c.in(1), wide), {}) : number(c, c.number("alpha", 1), z);
  z = c.cast(times(c, z, scale), x->dtype);
  return {c.emit("Mul", {z, c.emit("Sigmoid", {z})})};
}

// decay_scale * softplus(a + bias), and sigmoid(b)
Values import_linear_attention_gate(OnnxCall& c) {
  const DType dtype = c.dtype(0), wide = compute_dtype(dtype);
  Value* a = c.pointwise("Add", {c.cast(c.in(0), wide), c.cast(c.in(1), wide)});
  a = c.emit("Softplus", {a}, {{"beta", 1.0}, {"threshold", 40.0}});
  Value* decay = times(c, a, c.cast(c.in(2), wide));
  Value* beta = c.has(3) ? c.emit("Sigmoid", {c.cast(c.in(3), wide)}) : nullptr;
  return {c.cast(decay, dtype), beta ? c.cast(beta, dtype) : nullptr};
}

// Each channel's convolution with what came before in front, along the last dimension, and the last
// of all for the next call.
Values import_contrib_causal_conv(OnnxCall& c) {
  for (std::string_view name : {"state_window", "state_update_capacity", "state_length",
                                "input_channel_offset", "input_channels"})  // CUDA alone has them
    if (c.integer(name, 0) != 0) c.unsupported(str("attribute ", name, " has no rule"));
  if (c.integer("ndim", 1) != 1) c.unsupported("it must have one dimension of places");
  const bool last = c.flag("channels_last");
  const int64_t dilation = c.integer("dilation", 1);
  const auto turned = [&](Value* value) {
    if (value->rank() != 3) c.refuse("input and states must have three dimensions");
    return last ? c.transpose(value, {0, 2, 1}) : value;
  };
  Value *x = turned(c.in(0)), *weights = c.in(1);
  if (weights->rank() != 3 || dilation < 1)
    c.refuse("weight must be [channels, 1, k], and dilation positive");
  const int64_t before = (c.sizes().fix(weights->dims.at(2)) - 1) * dilation,
                channels = c.sizes().fix(x->dims.at(1));
  Value* padded = x;
  if (before > 0)
    padded = c.has(3) ? c.concat({c.cast(turned(c.in(3)), x->dtype), x}, 2)
                      : c.emit("Pad", {x}, {{"pads", Dims{0, 0, before, 0, 0, 0}}, {"value", 0.0}});
  Value* y = c.emit("Conv", {padded, weights, c.optional(2)},
                    {{"strides", Dims{1}},
                     {"pads", Dims{0, 0}},
                     {"dilations", Dims{dilation}},
                     {"group", channels}});
  if (c.word("activation", {"none", "silu", "swish"}) != "none") y = c.emit("Silu", {y});
  const DimExpr size = padded->dims.at(2);
  Value* present = c.slice(padded, 2, size - DimExpr(before), size);
  return {turned(y), turned(present)};
}

// The taps of a causal convolution of each channel over packed rows [tokens, C] behind states.
Value* packed_causal_conv(OnnxCall& c, const PackedRows& rows, Value* all, int64_t dilation,
                          int64_t held) {
  Value* weights = c.cast(c.in(1), all->dtype);
  const Dims channels{1, all->dims.at(1)};
  Value* y = nullptr;
  for (int64_t back = held, k = 0; back >= 0; back -= dilation, ++k) {
    Value* tap = c.emit("Gather", {all, index_before(c, rows, back, held)}, {{"axis", 0}});
    tap = c.pointwise("Mul", {tap, c.reshape(c.slice(weights, 2, k, k + 1), channels)});
    y = y ? c.emit("Add", {y, tap}) : tap;
  }
  return c.has(3) ? c.pointwise("Add", {y, c.reshape(c.cast(c.in(3), y->dtype), channels)}) : y;
}

// input [tokens, C], weight [C, 1, k], cumulative lengths, bias?, initial_state [B, C, held],
// capture_count?
Values import_varlen_causal_conv(OnnxCall& c) {
  if (c.has(6) || c.has(7)) c.unsupported("kernel_delta and previous_mask have no rule");  // CUDA
  const DType dtype = c.dtype(0);
  Value *x = c.cast(c.in(0), compute_dtype(dtype)), *state = c.cast(c.in(4), x->dtype);
  const int64_t dilation = c.integer("dilation", 1), capacity = capture_capacity(c, 5);
  if (x->rank() != 2 || c.rank(1) != 3 || state->rank() != 3 || dilation < 1)
    c.refuse("input, weight and state must have 2, 3 and 3 dimensions, and dilation be positive");
  const int64_t taps = c.sizes().fix(c.dims(1).at(2)), held = (taps - 1) * dilation;
  if (taps < 1 || !c.sizes().equal(state->dims.at(2), held))
    c.refuse("the state must have (kernel_size - 1) * dilation places");
  const PackedRows rows = packed_rows(c, c.in(2), x->dims.at(0));
  const DimExpr channels = x->dims.at(1);
  Value* all = c.concat(
      {x, c.reshape(c.transpose(state, {0, 2, 1}), {rows.sequences * DimExpr(held), channels})}, 0);
  Value* y = packed_causal_conv(c, rows, all, dilation, held);
  if (c.word("activation", {"none", "silu", "swish"}) != "none") y = c.emit("Silu", {y});
  Value* last = held == 0
                    ? state
                    : c.transpose(c.emit("Gather", {all, index_of_last(c, rows, rows.length, held)},
                                         {{"axis", 0}}),
                                  {0, 2, 1});
  Values results{c.cast(y, dtype), c.cast(last, dtype), nullptr};
  if (capacity == 0) return results;
  Value* captured = are_captured(c, rows, c.in(5), capacity);
  Value* places = onnx_heads::range(c, 0, capacity, {1, capacity});
  places = c.pointwise("Where", {captured, places, number(c, 0, places)});
  Value* sequence = onnx_heads::range(c, 0, rows.sequences, {rows.sequences, 1});
  Value* given = c.emit("Gather", {all, index_of(c, rows, sequence, places, held)}, {{"axis", 0}});
  captured = c.reshape(captured, {rows.sequences, capacity, 1});
  results[2] = c.cast(c.pointwise("Where", {captured, given, number(c, 0, given)}), dtype);
  return results;
}

REGISTER_ONNX({{"GatedRMSNorm", 1, import_gated_rms_norm, nullptr, "com.microsoft"},
               {"BranchwiseRMSNorm", 1, import_branchwise_rms_norm, nullptr, "com.microsoft"},
               {"GatedAdd", 1, import_gated_add, nullptr, "com.microsoft"},
               {"ScaledSiLU", 1, import_scaled_silu, nullptr, "com.microsoft"},
               {"LinearAttentionGate", 1, import_linear_attention_gate, nullptr, "com.microsoft"},
               {"CausalConvWithState", 1, import_contrib_causal_conv, nullptr, "com.microsoft"},
               {"VarlenCausalConvWithState", 1, import_varlen_causal_conv, nullptr,
                "com.microsoft"}});

}  // namespace
}  // namespace ortmodule
