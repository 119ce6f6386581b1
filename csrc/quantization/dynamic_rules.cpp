// What dynamic quantization makes of each operator: nodes and names of onnxruntime's tool.
#include <utility>

#include "base/error.h"
#include "quantization/graph_quantizer.h"

namespace ortmodule {
namespace {

constexpr const char* kMicrosoft = "com.microsoft";
constexpr int64_t kFloat = 1;
constexpr int64_t kHalfDequantizeOpset = 19;  // DequantizeLinear with scales of float16

std::string named(const std::string& name, const char* suffix) {
  return name.empty() ? "" : name + suffix;
}

bool refuse(NodeReport& report, std::string why) {
  report.note = std::move(why);
  return false;
}

}  // namespace

const std::set<std::string>& dynamic_op_types() {
  static const std::set<std::string> types = {"Attention", "Conv",     "EmbedLayerNormalization",
                                              "Gather",    "Gemm",     "LSTM",
                                              "MatMul",    "Transpose"};
  return types;
}

bool DynamicRules::apply(const OnnxNode& node, NodeReport& report) {
  const bool contrib = node.op == "Attention" || node.op == "EmbedLayerNormalization";
  if (node.domain != (contrib ? kMicrosoft : "")) return refuse(report, "of another domain");
  if (node.op == "MatMul") return matmul(node, report);
  if (node.op == "Gemm") return gemm(node, report);
  if (node.op == "Conv") return conv(node, report);
  if (node.op == "Gather") return gather(node, report);
  if (node.op == "Transpose") return transpose(node, report);
  if (node.op == "LSTM") return lstm(node, report);
  return node.op == "Attention" ? attention(node, report) : embedding(node, report);
}

RangeRule DynamicRules::weight_rule(bool reduce_range) const {
  const DynamicQuantization& options = g_.options_;
  return {options.weight_type, options.weight_symmetric.value_or(is_signed(options.weight_type)),
          reduce_range && options.reduce_range, options.least_range};
}

GraphQuantizer::WeightPtr DynamicRules::float_weight(const std::string& name, NodeReport& report) {
  GraphQuantizer::WeightPtr weight = g_.find_weight(name);
  if (!weight)
    report.note = str("weight '", name, "' is no constant of float32");
  else if (weight->dtype != DType::Float32)
    report.note = "activations of float16 cannot be quantized in a run";
  return report.note.empty() ? weight : nullptr;
}

// ---- products ----------------------------------------------------------------------------------

// x and w as integers, their product as real numbers.
void DynamicRules::integer_product(const OnnxNode& node, const char* op, const QuantizedValue& x,
                                   const QuantizedValue& w, const std::string& result) {
  const std::string name = named(node.name, "_quant");
  const std::string sum = g_.fresh(node.outputs[0] + "_output_quantized");
  const std::string cast = g_.fresh(sum + "_cast_output");
  const bool is_conv = node.op == "Conv";
  g_.emit(make_node(op, {x.data, w.data, x.zero_point, w.zero_point}, {sum}, name,
                    is_conv ? node.attrs : OnnxAttrs{}));
  g_.emit(make_node("Cast", {sum}, {cast}, sum + "_cast", {{"to", kFloat}}));
  const std::string product =
      name.empty() ? x.scale + "_" + w.scale + "_mul" : name + "_scales_mul";
  // Nodes may share a name; then they share the product of scales only if the scales are the same.
  auto [known, is_new] = g_.scale_products_.try_emplace(product);
  std::string scales;
  if (!is_new && known->second[0] == x.scale && known->second[1] == w.scale) {
    scales = known->second[2];
  } else {
    scales = g_.fresh(product + ":0");
    g_.emit(make_node("Mul", {x.scale, w.scale}, {scales}, product));
    if (is_new) known->second = {x.scale, w.scale, scales};
  }
  g_.emit(make_node("Mul", {cast, scales}, {result}, named(name, "_output_scale_mul")));
}

bool DynamicRules::matmul(const OnnxNode& node, NodeReport& report) {
  if (node.inputs.size() != 2) return refuse(report, "it does not have two operands");
  const std::string &a = node.inputs[0], &b = node.inputs[1];
  const GraphQuantizer::WeightPtr constant = g_.find_weight(b);
  std::optional<QuantizedValue> w;
  if (constant) {
    const auto weight = float_weight(b, report);
    if (!weight) return false;
    // A vector has no columns, and of several matrices onnxruntime takes one scale only.
    const bool per_column = g_.options_.per_channel && weight->rank() == 2;
    w = g_.weight(b, per_column ? 1 : -1, weight_rule(true), report);
  } else {
    if (g_.options_.const_b_only) return refuse(report, "its second operand is no constant");
    if (!g_.types_.is_float(a) && !g_.types_.is_float(b))
      return refuse(report, "its operands are not known to be of float32");
    w = g_.activation(b, report);
  }
  if (!w) return false;
  const auto x = g_.activation(a, report);
  if (!x) {
    g_.forget(b);
    return false;
  }
  integer_product(node, "MatMulInteger", *x, *w, node.outputs[0]);
  return true;
}

bool DynamicRules::gemm(const OnnxNode& node, NodeReport& report) {
  if (number_attr(node, "alpha", 1.0) != 1.0 || number_attr(node, "beta", 1.0) != 1.0 ||
      integer_attr(node, "transA", 0) != 0)
    return refuse(report, "alpha, beta or transA of a Gemm are no part of MatMul");
  if (node.inputs.size() < 2) return refuse(report, "it does not have two operands");
  std::string b = node.inputs[1];
  if (integer_attr(node, "transB", 0) != 0) {
    if (const auto weight = g_.find_weight(b)) {
      if (weight->rank() != 2) return refuse(report, "its second operand is no matrix");
      std::string& name = g_.transposed_names_[b];
      if (name.empty()) {
        name = g_.fresh(b + "_Transposed");
        g_.transposed_.emplace(name,
                               std::make_shared<const ConstantWeight>(weight->permuted({1, 0})));
        g_.add_origins(b);
      }
      b = name;
    } else if (g_.options_.const_b_only) {
      return refuse(report, "its second operand is no constant");
    } else {
      const std::string turned = g_.fresh(b + "_Transposed");
      g_.keep(b);
      g_.emit(make_node("Transpose", {b}, {turned}, named(node.name, "_Transpose")));
      b = turned;
    }
  }
  const bool has_bias = !input_of(node, 2).empty();
  const std::string product = has_bias ? g_.fresh(node.outputs[0] + "_MatMul") : node.outputs[0];
  OnnxNode split = make_node("MatMul", {node.inputs[0], b}, {product}, named(node.name, "_MatMul"));
  if (!matmul(split, report)) return false;
  if (has_bias) {
    g_.keep(node.inputs[2]);
    g_.emit(
        make_node("Add", {product, node.inputs[2]}, {node.outputs[0]}, named(node.name, "_Add")));
  }
  return true;
}

bool DynamicRules::conv(const OnnxNode& node, NodeReport& report) {
  if (node.inputs.size() < 2) return refuse(report, "it does not have two operands");
  const std::string& name = node.inputs[1];
  const auto weight = float_weight(name, report);
  if (!weight) return false;
  if (weight->rank() < 3) return refuse(report, "its weight has fewer than three axes");
  const auto w = g_.weight(name, -1, weight_rule(true), report);
  if (!w) return false;
  const auto x = g_.activation(node.inputs[0], report);
  if (!x || w->axis >= 0) {
    g_.forget(name);
    return false;
  }
  if (input_of(node, 2).empty()) {
    integer_product(node, "ConvInteger", *x, *w, node.outputs[0]);
    return true;
  }
  const std::string product = g_.fresh(node.outputs[0] + "quant_scaled_output");
  integer_product(node, "ConvInteger", *x, *w, product);
  add_bias(node, product, weight->rank());
  return true;
}

// ConvInteger has no bias: one number per channel is added behind it.
void DynamicRules::add_bias(const OnnxNode& node, const std::string& product, size_t rank) {
  const std::string& output = node.outputs[0];
  std::vector<int64_t> sizes(rank, 1);
  sizes[1] = -1;
  const std::string shape = g_.fresh(output + "_bias_reshape_shape");
  const std::string bias = g_.fresh(output + "_bias_reshape_output");
  g_.add_initializer(shape, int64_tensor(sizes));
  g_.keep(node.inputs[2]);
  g_.emit(make_node("Reshape", {node.inputs[2], shape}, {bias}));
  g_.emit(make_node("Add", {product, bias}, {output}, output + "_bias_add"));
}

// ---- operators that move elements --------------------------------------------------------------

bool DynamicRules::gather(const OnnxNode& node, NodeReport& report) {
  if (node.inputs.size() != 2) return refuse(report, "it does not have two operands");
  const std::string& name = node.inputs[0];
  const auto weight = g_.find_weight(name);
  const QuantizedValue* known = g_.find_known(name);
  if (!weight) return refuse(report, "its data are no constant of floats");
  if (weight->dtype == DType::Float16 && g_.state_.opset < kHalfDequantizeOpset)
    return refuse(report, "DequantizeLinear has no float16 in this operator set");
  if (known && known->axis >= 0) return refuse(report, "its data have a scale for each channel");
  RangeRule rule{QuantizedType::UInt8};
  rule.symmetric = g_.options_.weight_type == QuantizedType::UInt8
                       ? g_.options_.weight_symmetric.value_or(false)
                       : g_.options_.activation_symmetric;
  rule.least_range = g_.options_.least_range;
  const auto data = g_.weight(name, -1, rule, report);
  if (!data) return false;
  OnnxNode gather = node;
  g_.keep(node.inputs[1]);
  gather.inputs[0] = data->data;
  gather.outputs[0] = g_.fresh(node.outputs[0] + "_quantized");
  g_.known_[node.outputs[0]] = {gather.outputs[0], data->scale, data->zero_point};
  g_.emit(std::move(gather));
  return true;
}

bool DynamicRules::transpose(const OnnxNode& node, NodeReport& report) {
  if (node.inputs.size() != 1) return refuse(report, "it does not have one operand");
  const std::string& name = node.inputs[0];
  std::optional<QuantizedValue> x;
  if (g_.options_.force_direct && g_.initializers_.count(name) > 0 && float_weight(name, report)) {
    x = g_.activation(name, report);
  } else if (const QuantizedValue* known = g_.find_known(name)) {
    if (known->axis < 0) x = *known;
  }
  if (!x) return refuse(report, "its operand is not quantized");
  OnnxNode moved = node;
  moved.inputs[0] = x->data;
  moved.outputs[0] = g_.fresh(node.outputs[0] + "_quantized");
  g_.known_[node.outputs[0]] = {moved.outputs[0], x->scale, x->zero_point};
  g_.emit(std::move(moved));
  return true;
}

// ---- com.microsoft -----------------------------------------------------------------------------

// [directions, 4 * hidden, columns] as int8 [directions, columns, 4 * hidden], with a scale for
// each direction or, per channel, for each of the 4 * hidden rows.
std::optional<QuantizedValue> DynamicRules::recurrent_weight(const std::string& name,
                                                             NodeReport& report) {
  GraphQuantizer* owner = g_.owner_of(name);
  if (!owner) return std::nullopt;
  const auto found = owner->recurrent_.find(name);
  if (found != owner->recurrent_.end()) return found->second;
  const auto weight = float_weight(name, report);
  if (!weight) return std::nullopt;
  const std::vector<int64_t> dims = weight->dims();
  if (dims.size() != 3) {
    report.note = str("weight '", name, "' does not have three axes");
    return std::nullopt;
  }
  RangeRule rule = weight_rule(true);
  rule.type = QuantizedType::Int8;
  rule.symmetric = g_.options_.weight_symmetric.value_or(true);
  const bool per_row = g_.options_.per_channel;
  WeightChannels channels = channels_of(*weight, 0);
  if (per_row) {
    // The rows of all directions are channels only as they are stored.
    if (weight->order != std::vector<size_t>{0, 1, 2}) {
      report.note = str("weight '", name, "' is transposed");
      return std::nullopt;
    }
    channels = channels_of(*weight, 1);
    channels.count *= static_cast<size_t>(dims[0]);
  }
  const auto how = quantize_weight(*weight, channels, rule);
  if (!how) {
    report.note = str("weight '", name, "' holds NaN or infinity");
    return std::nullopt;
  }
  const QuantizedValue value{owner->fresh(name + "_quantized"), owner->fresh(name + "_scale"),
                             owner->fresh(name + "_zero_point"), 0, true};
  const std::vector<int64_t> sizes =
      per_row ? std::vector<int64_t>{dims[0], dims[1]} : std::vector<int64_t>{dims[0]};
  auto facts = std::make_shared<WeightReport>();
  facts->name = name;
  report.weights.push_back(facts);
  owner->add_initializer(value.scale, scale_tensor(*how, weight->dtype, sizes));
  owner->add_initializer(value.zero_point, zero_point_tensor(*how, sizes));
  owner->add_initializer(
      value.data,
      quantized_tensor(std::make_shared<const ConstantWeight>(weight->permuted({0, 2, 1})), *how,
                       facts));
  g_.add_origins(name);
  owner->recurrent_.emplace(name, value);
  return value;
}

bool DynamicRules::lstm(const OnnxNode& node, NodeReport& report) {
  if (integer_attr(node, "layout", 0) != 0)
    return refuse(report, "DynamicQuantizeLSTM has no batch-first layout");
  const auto w = recurrent_weight(input_of(node, 1), report);
  if (!w) return false;
  const auto r = recurrent_weight(input_of(node, 2), report);
  if (!r) return false;
  OnnxNode quantized = node;
  quantized.op = "DynamicQuantizeLSTM";
  quantized.domain = kMicrosoft;
  quantized.name = named(node.name, "_quant");
  std::erase_if(quantized.attrs, [](const auto& attr) { return attr.first == "layout"; });
  quantized.inputs.resize(8);
  quantized.inputs[1] = w->data;
  quantized.inputs[2] = r->data;
  for (size_t i : {0, 3, 4, 5, 6, 7}) g_.keep(quantized.inputs[i]);
  for (const std::string& name : {w->scale, w->zero_point, r->scale, r->zero_point})
    quantized.inputs.push_back(name);
  g_.emit(std::move(quantized));
  return true;
}

bool DynamicRules::attention(const OnnxNode& node, NodeReport& report) {
  if (find_attr(node, "qkv_hidden_sizes"))
    return refuse(report, "QAttention has no qkv_hidden_sizes");
  if (input_of(node, 2).empty()) return refuse(report, "QAttention needs a bias");
  if (!input_of(node, 5).empty() || !input_of(node, 6).empty())
    return refuse(report, "QAttention has no attention_bias and no past_sequence_length");
  const std::string& name = input_of(node, 1);
  const auto weight = float_weight(name, report);
  if (!weight) return false;
  const bool per_column = g_.options_.per_channel && weight->rank() > 1;
  const auto w = g_.weight(name, per_column ? static_cast<int>(weight->rank()) - 1 : -1,
                           weight_rule(true), report);
  if (!w) return false;
  const auto x = g_.activation(node.inputs[0], report);
  if (!x) {
    g_.forget(name);
    return false;
  }
  OnnxNode quantized = node;
  quantized.op = "QAttention";
  quantized.name = named(node.name, "_quant");
  for (size_t i : {2, 3, 4}) g_.keep(input_of(node, i));
  quantized.inputs = {x->data,           w->data,       node.inputs[2], x->scale,         w->scale,
                      input_of(node, 3), x->zero_point, w->zero_point,  input_of(node, 4)};
  g_.emit(std::move(quantized));
  return true;
}

bool DynamicRules::embedding(const OnnxNode& node, NodeReport& report) {
  if (node.outputs.size() > 2)
    return refuse(report, "QEmbedLayerNormalization has no third output");
  if (!input_of(node, 8).empty())
    return refuse(report, "QEmbedLayerNormalization has no position_ids");
  // word, position and segment embeddings, gamma and beta
  std::vector<QuantizedValue> tables;
  for (size_t i = 2; i < 7; ++i) {
    if (!input_of(node, i).empty() && !float_weight(node.inputs[i], report)) return false;
    const auto table = g_.activation(input_of(node, i), report);
    if (!table) return false;
    tables.push_back(*table);
  }
  OnnxNode quantized = node;
  quantized.op = "QEmbedLayerNormalization";
  quantized.name = named(node.name, "_quant");
  for (size_t i : {0, 1, 7}) g_.keep(input_of(node, i));
  quantized.inputs = {node.inputs[0], node.inputs[1]};
  for (const QuantizedValue& table : tables) quantized.inputs.push_back(table.data);
  quantized.inputs.push_back(input_of(node, 7));
  for (const QuantizedValue& table : tables) quantized.inputs.push_back(table.scale);
  for (const QuantizedValue& table : tables) quantized.inputs.push_back(table.zero_point);
  g_.emit(std::move(quantized));
  return true;
}

}  // namespace ortmodule
