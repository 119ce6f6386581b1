// Import of LSTM, GRU and RNN, and of com.microsoft's DynamicQuantizeLSTM. The common forms are the
// engine's recurrent ops; peepholes, clipping and other activations are unrolled over the sequence.
#include <algorithm>
#include <array>
#include <cctype>
#include <limits>

#include "base/error.h"
#include "ops/onnx_call.h"
#include "ops/op_def.h"

namespace ortmodule {
namespace {

struct Cell {
  std::string op;  // LSTM, GRU, RNN
  int64_t gates = 1;
  std::vector<int64_t> order;            // ONNX's gates in the order of the engine's ops
  std::vector<std::string> activations;  // by default
};

bool is_quantized(OnnxCall& c) { return c.node().op == "DynamicQuantizeLSTM"; }

const Cell& cell_of(OnnxCall& c) {
  const std::string op = is_quantized(c) ? "LSTM" : c.node().op;
  static const std::array<Cell, 3> cells = {{{"LSTM", 4, {0, 2, 3, 1}, {"Sigmoid", "Tanh", "Tanh"}},
                                             {"GRU", 3, {1, 0, 2}, {"Sigmoid", "Tanh"}},
                                             {"RNN", 1, {0}, {"Tanh"}}}};
  return *std::find_if(cells.begin(), cells.end(), [&](const Cell& cell) { return cell.op == op; });
}

struct GateFunction {
  std::string name;
  double alpha = 0, beta = 0;
};

std::string lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

// One layer: operands with a direction each, the sequence as [T, B, ...].
struct Layer {
  OnnxCall& c;
  const Cell& cell;
  int64_t hidden = 0;
  size_t directions = 1;
  bool backward_only = false;
  bool batch_first = false;
  Value* x = nullptr;
  Value* lengths = nullptr;
  std::vector<GateFunction> activations = {};  // of all directions
  double clip = std::numeric_limits<double>::infinity();
  bool input_forget = false, reset_after = false;

  bool reverse(size_t d) const { return backward_only || d == 1; }
  bool is_common() const;
};

bool Layer::is_common() const {
  if (clip != std::numeric_limits<double>::infinity() || input_forget || c.has(7)) return false;
  for (size_t i = 0; i < activations.size(); ++i) {
    const std::string name = lower(activations[i].name);
    const std::string wanted = lower(cell.activations[i % cell.activations.size()]);
    const bool relu = cell.op == "RNN" && name == "relu" && activations.size() == 1;
    if (name != wanted && !relu) return false;
  }
  return true;
}

double default_alpha(const std::string& name) {
  if (name == "leakyrelu") return 0.01;
  if (name == "hardsigmoid") return 0.2;
  return name == "elu" || name == "affine" || name == "thresholdedrelu" || name == "scaledtanh"
             ? 1.0
             : 0.0;
}

double default_beta(const std::string& name) {
  if (name == "hardsigmoid") return 0.5;
  return name == "scaledtanh" ? 1.0 : 0.0;
}

Layer read_layer(OnnxCall& c) {
  Layer layer{c, cell_of(c)};
  const std::string direction = c.word("direction", {"forward", "reverse", "bidirectional"});
  layer.directions = direction == "bidirectional" ? 2 : 1;
  layer.backward_only = direction == "reverse";
  layer.batch_first = c.integer("layout", 0) == 1;
  layer.hidden = c.sizes().fix(c.dims(2).at(is_quantized(c) ? 1 : 2));
  layer.x = c.in(0);
  if (layer.batch_first) layer.x = c.transpose(layer.x, {1, 0, 2});
  if (c.has(4)) layer.lengths = c.cast(c.in(4), DType::Int64);
  layer.clip = c.number("clip", layer.clip);
  layer.input_forget = c.flag("input_forget");
  layer.reset_after = c.flag("linear_before_reset");
  std::vector<std::string> names;
  if (const OnnxAttr* attr = c.find("activations"))
    if (const auto* given = std::get_if<std::vector<std::string>>(attr)) names = *given;
  if (names.empty())
    for (size_t d = 0; d < layer.directions; ++d)
      names.insert(names.end(), layer.cell.activations.begin(), layer.cell.activations.end());
  if (names.size() != layer.directions * layer.cell.activations.size())
    c.refuse(str("there must be ", layer.directions * layer.cell.activations.size(),
                 " activations, but found ", names.size()));
  const std::vector<double> alphas = c.numbers("activation_alpha"),
                            betas = c.numbers("activation_beta");
  for (size_t i = 0; i < names.size(); ++i) {
    const std::string name = lower(names[i]);
    layer.activations.push_back({name, i < alphas.size() ? alphas[i] : default_alpha(name),
                                 i < betas.size() ? betas[i] : default_beta(name)});
  }
  return layer;
}

// Rows [begin, begin + count) of operand `i` for direction d.
Value* of_direction(OnnxCall& c, size_t i, size_t d) {
  Value* all = c.in(i);
  const auto at = static_cast<int64_t>(d);
  Value* one = all->dims.at(0) == DimExpr(1) ? all : c.slice(all, 0, at, at + 1);
  return c.reshape(one, Dims(all->dims.begin() + 1, all->dims.end()));
}

// Blocks of `hidden` rows, or of places along another axis, in another order.
Value* reordered(const Layer& layer, Value* rows, const std::vector<int64_t>& order,
                 int64_t axis = 0) {
  if (std::is_sorted(order.begin(), order.end())) return rows;
  Values blocks;
  for (int64_t gate : order)
    blocks.push_back(layer.c.slice(rows, axis, gate * layer.hidden, (gate + 1) * layer.hidden));
  return layer.c.concat(blocks, axis);
}

// ---- quantized weights -------------------------------------------------------------------------
// [columns, gates * H] of integers, with a scale and zero point for all, or one for each of the
// last axis.
struct QuantizedFactor {
  Value *q = nullptr, *scale = nullptr, *zero = nullptr;
};

// Operand `i` of DynamicQuantizeLSTM, with its scale at `scale_at`.
QuantizedFactor quantized_factor(const Layer& layer, size_t i, size_t d,
                                 const std::vector<int64_t>& order) {
  OnnxCall& c = layer.c;
  const size_t scale_at = i == 1 ? 8 : 10;
  const auto of_channels = [&](size_t operand) {
    Value* all = c.in(operand);
    const auto at = static_cast<int64_t>(d);
    if (all->rank() == 2) return reordered(layer, of_direction(c, operand, d), order);
    const bool one = all->rank() == 0 || all->dims.at(0) == DimExpr(1);
    return c.reshape(one ? all : c.slice(all, 0, at, at + 1), {});
  };
  return {reordered(layer, of_direction(c, i, d), order, 1), of_channels(scale_at),
          of_channels(scale_at + 1)};
}

Value* dequantized(OnnxCall& c, const QuantizedFactor& factor) {
  Value* wide =
      c.pointwise("Sub", {c.cast(factor.q, DType::Int32), c.cast(factor.zero, DType::Int32)});
  return c.pointwise("Mul", {c.cast(wide, factor.scale->dtype), factor.scale});
}

// The weights of operand `i` as the right factor of a product, [columns, gates * H].
Value* right_factor(const Layer& layer, size_t i, size_t d, const std::vector<int64_t>& order) {
  OnnxCall& c = layer.c;
  if (is_quantized(c)) return dequantized(c, quantized_factor(layer, i, d, order));
  return c.transpose(reordered(layer, of_direction(c, i, d), order), {1, 0});
}

Value* initial_state(const Layer& layer, size_t operand, size_t d) {
  OnnxCall& c = layer.c;
  if (!c.has(operand)) return nullptr;
  if (!layer.batch_first) return of_direction(c, operand, d);
  Value* all = c.in(operand);  // [B, D, H]
  const auto at = static_cast<int64_t>(d);
  return c.reshape(c.slice(all, 1, at, at + 1), {all->dims.at(0), all->dims.at(2)});
}

// What a direction computes: y [T, B, H] and the last states [B, H].
struct Direction {
  Value* y = nullptr;
  Value* h = nullptr;
  Value* cell = nullptr;
};

Value* input_product(const Layer& layer, size_t d, const std::vector<int64_t>& order) {
  OnnxCall& c = layer.c;
  if (!is_quantized(c)) return c.emit("MatMul", {layer.x, right_factor(layer, 1, d, order)});
  // All steps become bytes of one scale, as in onnxruntime.
  const QuantizedFactor w = quantized_factor(layer, 1, d, order);
  const Values x = c.emit_all("DynamicQuantizeLinear", {layer.x}, {}, 3);
  return c.emit("MatMulIntegerToFloat", {x[0], w.q, x[1], w.scale, x[2], w.zero});
}

Direction run_common(const Layer& layer, size_t d) {
  OnnxCall& c = layer.c;
  const Cell& cell = layer.cell;
  Value *input_bias = nullptr, *recurrent_bias = nullptr;
  if (c.has(3)) {
    Value* both = of_direction(c, 3, d);
    const int64_t rows = cell.gates * layer.hidden;
    input_bias = reordered(layer, c.slice(both, 0, 0, rows), cell.order);
    recurrent_bias = reordered(layer, c.slice(both, 0, rows, 2 * rows), cell.order);
  }
  Value* pre = input_product(layer, d, cell.order);
  if (is_quantized(c)) {
    const QuantizedFactor r = quantized_factor(layer, 2, d, cell.order);
    const Values y =
        c.emit_all("QuantizedLSTMSteps",
                   {pre, r.q, r.scale, r.zero, input_bias, recurrent_bias,
                    initial_state(layer, 5, d), initial_state(layer, 6, d), layer.lengths},
                   {{"reverse", layer.reverse(d) ? 1 : 0}});
    return {y.at(0), y.at(1), y.at(2)};
  }
  Value* recurrent = reordered(layer, of_direction(c, 2, d), cell.order);
  Values operands = {pre, recurrent, input_bias, recurrent_bias, initial_state(layer, 5, d)};
  if (cell.op == "LSTM") operands.push_back(initial_state(layer, 6, d));
  operands.push_back(layer.lengths);
  Attrs attrs{{"layout", 0}, {"reverse", layer.reverse(d) ? 1 : 0}};
  if (cell.op == "GRU") attrs.set("reset_before", layer.reset_after ? 0 : 1);
  if (cell.op == "RNN") attrs.set("relu", layer.activations[d].name == "relu" ? 1 : 0);
  const Values y = c.emit_all(cell.op + "Steps", operands, attrs);
  return {y.at(0), y.at(1), cell.op == "LSTM" ? y.at(2) : nullptr};
}

// ---- unrolled ----------------------------------------------------------------------------------

Value* activate(OnnxCall& c, const GateFunction& f, Value* x) {
  auto scaled = [&](double factor, Value* value) {
    return c.emit("Mul", {value, number(c, factor, value)});
  };
  auto plus = [&](double term, Value* value) {
    return c.emit("Add", {value, number(c, term, value)});
  };
  if (f.name == "sigmoid") return c.emit("Sigmoid", {x});
  if (f.name == "tanh") return c.emit("Tanh", {x});
  if (f.name == "relu") return c.emit("Relu", {x});
  if (f.name == "affine") return plus(f.beta, scaled(f.alpha, x));
  if (f.name == "leakyrelu") return c.emit("LeakyRelu", {x}, {{"alpha", f.alpha}});
  if (f.name == "elu") return c.emit("Elu", {x}, {{"alpha", f.alpha}});
  if (f.name == "scaledtanh") return scaled(f.alpha, c.emit("Tanh", {scaled(f.beta, x)}));
  if (f.name == "hardsigmoid")
    return c.emit("Clip", {plus(f.beta, scaled(f.alpha, x))}, {{"min", 0.0}, {"max", 1.0}});
  if (f.name == "thresholdedrelu")
    return c.emit("Where", {c.emit("Greater", {x, number(c, f.alpha, x)}), x, number(c, 0, x)});
  if (f.name == "softsign") return c.emit("Div", {x, plus(1.0, c.emit("Abs", {x}))});
  if (f.name == "softplus")
    return c.emit("Softplus", {x},
                  {{"beta", 1.0}, {"threshold", std::numeric_limits<double>::infinity()}});
  c.refuse(str("activation '", f.name, "' is not known"));
}

// One step of one direction, on gates in ONNX's order.
class Step {
 public:
  Step(const Layer& layer, size_t d) : layer_(layer), c_(layer.c) {
    const size_t count = layer.cell.activations.size();
    f_.assign(layer.activations.begin() + static_cast<int64_t>(d * count),
              layer.activations.begin() + static_cast<int64_t>((d + 1) * count));
    recurrent_ = right_factor(layer, 2, d, {});
    const int64_t rows = layer.cell.gates * layer.hidden;
    if (c_.has(3)) {
      Value* both = of_direction(c_, 3, d);
      input_bias_ = c_.slice(both, 0, 0, rows);
      recurrent_bias_ = c_.slice(both, 0, rows, 2 * rows);
    }
    if (layer.cell.op == "LSTM" && c_.has(7)) peepholes_ = of_direction(c_, 7, d);
  }

  /// `pre` [B, gates * H] from the input; sets h, and cell of an LSTM.
  void run(Value* pre, Value*& h, Value*& cell) {
    if (input_bias_) pre = add(pre, input_bias_);
    if (layer_.cell.op == "LSTM") return lstm(pre, h, cell);
    if (layer_.cell.op == "GRU") return gru(pre, h);
    h = activate(c_, f_[0], clipped(add(pre, from_state(h))));
  }

 private:
  Value* add(Value* a, Value* b) { return c_.emit("Add", {a, b}); }
  Value* mul(Value* a, Value* b) { return c_.emit("Mul", {a, b}); }
  Value* clipped(Value* x) {
    if (layer_.clip == std::numeric_limits<double>::infinity()) return x;
    return c_.emit("Clip", {x}, {{"min", -layer_.clip}, {"max", layer_.clip}});
  }
  Value* gate(Value* all, int64_t i) {
    return c_.slice(all, static_cast<int64_t>(all->rank()) - 1, i * layer_.hidden,
                    (i + 1) * layer_.hidden);
  }
  Value* from_state(Value* h) {
    Value* product = c_.emit("MatMul", {h, recurrent_});
    return recurrent_bias_ ? add(product, recurrent_bias_) : product;
  }

  void lstm(Value* pre, Value*& h, Value*& cell) {
    Value* all = add(pre, from_state(h));
    auto peep = [&](Value* x, int64_t i, Value* state) {
      return peepholes_ ? add(x, mul(gate(peepholes_, i), state)) : x;
    };
    Value* in = activate(c_, f_[0], clipped(peep(gate(all, 0), 0, cell)));
    Value* forget = layer_.input_forget ? c_.emit("Sub", {number(c_, 1, in), in})
                                        : activate(c_, f_[0], clipped(peep(gate(all, 2), 2, cell)));
    Value* fresh = activate(c_, f_[1], clipped(gate(all, 3)));
    cell = add(mul(forget, cell), mul(in, fresh));
    Value* out = activate(c_, f_[0], clipped(peep(gate(all, 1), 1, cell)));
    h = mul(out, activate(c_, f_[2], cell));
  }

  void gru(Value* pre, Value*& h) {
    Value* state = from_state(h);
    Value* update = activate(c_, f_[0], clipped(add(gate(pre, 0), gate(state, 0))));
    Value* reset = activate(c_, f_[0], clipped(add(gate(pre, 1), gate(state, 1))));
    Value* hidden;
    if (layer_.reset_after) {
      hidden = mul(reset, gate(state, 2));
    } else {  // the state is reset before the product
      Value* weights = gate(recurrent_, 2);
      hidden = c_.emit("MatMul", {mul(reset, h), weights});
      if (recurrent_bias_) hidden = add(hidden, gate(recurrent_bias_, 2));
    }
    Value* fresh = activate(c_, f_[1], clipped(add(gate(pre, 2), hidden)));
    Value* kept = c_.emit("Sub", {number(c_, 1, update), update});
    h = add(mul(kept, fresh), mul(update, h));
  }

  const Layer& layer_;
  OnnxCall& c_;
  std::vector<GateFunction> f_;
  Value* recurrent_ = nullptr;
  Value* input_bias_ = nullptr;
  Value* recurrent_bias_ = nullptr;
  Value* peepholes_ = nullptr;
};

Direction run_unrolled(const Layer& layer, size_t d) {
  OnnxCall& c = layer.c;
  const int64_t steps = c.sizes().fix(layer.x->dims.at(0));
  constexpr int64_t kMostSteps = 1024;
  if (steps > kMostSteps)
    c.unsupported(str("this form is unrolled, for which the sequence must have at most ",
                      kMostSteps, " steps, but found ", steps));
  const DimExpr batch = layer.x->dims.at(1);
  const Dims state{batch, layer.hidden};
  Value* zeros = c.full(0.0, state, layer.x->dtype);
  Value* h = initial_state(layer, 5, d);
  Value* cell = layer.cell.op == "LSTM" ? initial_state(layer, 6, d) : nullptr;
  if (!h) h = zeros;
  if (!cell) cell = zeros;
  Value* pre = input_product(layer, d, {});
  Step step(layer, d);
  Values y(static_cast<size_t>(steps));
  for (int64_t i = 0; i < steps; ++i) {
    const int64_t t = layer.reverse(d) ? steps - 1 - i : i;
    Value* row = c.reshape(c.slice(pre, 0, t, t + 1), {batch, pre->dims.at(2)});
    Value *next_h = h, *next_cell = cell;
    step.run(row, next_h, next_cell);
    if (layer.lengths) {  // beyond its length a sequence keeps its state and gives zeros
      Value* inside = c.emit("Greater", {c.reshape(layer.lengths, {batch, 1}),
                                         c.literal(static_cast<double>(t), DType::Int64)});
      y.at(static_cast<size_t>(t)) = c.emit("Where", {inside, next_h, zeros});
      next_h = c.emit("Where", {inside, next_h, h});
      next_cell = c.emit("Where", {inside, next_cell, cell});
    } else {
      y.at(static_cast<size_t>(t)) = next_h;
    }
    h = next_h;
    cell = next_cell;
  }
  for (Value*& each : y) each = c.reshape(each, {1, batch, layer.hidden});
  return {c.concat(y, 0), h, cell};
}

Values import_recurrent(OnnxCall& c) {
  const Layer layer = read_layer(c);
  std::vector<Direction> results;
  for (size_t d = 0; d < layer.directions; ++d)
    results.push_back(layer.is_common() ? run_common(layer, d) : run_unrolled(layer, d));
  const DimExpr steps = layer.x->dims.at(0), batch = layer.x->dims.at(1);
  Values y, h, cell;
  for (const Direction& each : results) {
    y.push_back(c.reshape(each.y, {steps, 1, batch, layer.hidden}));
    h.push_back(c.reshape(each.h, {1, batch, layer.hidden}));
    if (each.cell) cell.push_back(c.reshape(each.cell, {1, batch, layer.hidden}));
  }
  Values outputs = {c.concat(y, 1), c.concat(h, 0)};
  if (layer.cell.op == "LSTM") outputs.push_back(c.concat(cell, 0));
  if (layer.batch_first) {
    outputs[0] = c.transpose(outputs[0], {2, 0, 1, 3});
    for (size_t i = 1; i < outputs.size(); ++i) outputs[i] = c.transpose(outputs[i], {1, 0, 2});
  }
  return outputs;
}

REGISTER_ONNX({{"LSTM", 1, import_recurrent},
               {"GRU", 1, import_recurrent},
               {"RNN", 1, import_recurrent},
               {"DynamicQuantizeLSTM", 1, import_recurrent, nullptr, "com.microsoft"}});

}  // namespace
}  // namespace ortmodule
