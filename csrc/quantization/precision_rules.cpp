#include "quantization/precision_rules.h"

#include <set>
#include <string>

namespace ortmodule {
namespace {

using Names = std::set<std::string>;

bool is_standard(const OnnxNode& node) { return node.domain.empty(); }

// Also of com.microsoft, where onnxruntime's own transformations put them.
const Names& computing() {
  static const Names names = {"Abs",
                              "Add",
                              "AveragePool",
                              "BatchNormalization",
                              "Celu",
                              "Clip",
                              "Cos",
                              "DepthToSpace",
                              "Div",
                              "Dropout",
                              "Elu",
                              "Erf",
                              "Exp",
                              "FastGelu",
                              "Gelu",
                              "GlobalAveragePool",
                              "GlobalMaxPool",
                              "GroupNormalization",
                              "HardSigmoid",
                              "HardSwish",
                              "InstanceNormalization",
                              "BiasGelu",
                              "LayerNormalization",
                              "LeakyRelu",
                              "Log",
                              "LogSoftmax",
                              "Max",
                              "MaxPool",
                              "Mean",
                              "Min",
                              "Mish",
                              "Mul",
                              "Neg",
                              "PRelu",
                              "Pow",
                              "QuickGelu",
                              "RMSNormalization",
                              "Reciprocal",
                              "ReduceL2",
                              "ReduceMax",
                              "ReduceMean",
                              "ReduceMin",
                              "ReduceSum",
                              "ReduceSumSquare",
                              "Relu",
                              "Resize",
                              "Selu",
                              "Sigmoid",
                              "SimplifiedLayerNormalization",
                              "Sin",
                              "SkipLayerNormalization",
                              "SkipSimplifiedLayerNormalization",
                              "Softmax",
                              "Softplus",
                              "Softsign",
                              "Sqrt",
                              "Sub",
                              "Sum",
                              "Tanh"};
  return names;
}

const Names& multiplying() {
  static const Names names = {"Conv", "ConvTranspose", "Einsum", "FusedMatMul", "GRU",
                              "Gemm", "LSTM",          "MatMul", "RNN"};
  return names;
}

const Names& moving() {
  static const Names names = {"Concat",         "Expand",          "Flatten",   "Gather",
                              "GatherElements", "GatherND",        "Identity",  "Pad",
                              "Reshape",        "ScatterElements", "ScatterND", "Slice",
                              "SpaceToDepth",   "Split",           "Squeeze",   "Tile",
                              "Transpose",      "Trilu",           "Unsqueeze", "Where"};
  return names;
}

const Names& silent() {
  static const Names names = {"Cast",
                              "Constant",
                              "ConstantOfShape",
                              "If",
                              "Loop",
                              "Range",
                              "Scan",
                              "Shape",
                              "Size",
                              "IsNaN",
                              "IsInf",
                              "RandomNormalLike",
                              "RandomNormal",
                              "EyeLike",
                              "RandomUniform",
                              "RandomUniformLike"};
  return names;
}

}  // namespace

HalfRule half_rule(const OnnxNode& node) {
  if (!is_standard(node) && node.domain != "com.microsoft") return HalfRule::Unknown;
  if (computing().count(node.op) > 0) return HalfRule::Computes;
  if (multiplying().count(node.op) > 0) return HalfRule::Multiplies;
  if (!is_standard(node)) return HalfRule::Unknown;
  if (moving().count(node.op) > 0) return HalfRule::Moves;
  return silent().count(node.op) > 0 ? HalfRule::Silent : HalfRule::Unknown;
}

bool has_own_type(const OnnxNode& node, size_t i) {
  return i > 0 && (node.op == "Resize" || node.op == "Dropout");
}

bool has_own_result_type(const OnnxNode& node, size_t i) {
  if (i == 0) return false;
  if (node.op == "LayerNormalization" || node.op == "SimplifiedLayerNormalization") return true;
  return node.op.starts_with("Skip") && i < 3;
}

bool leaves_range(const OnnxNode& node) {
  static const Names names = {"Exp", "Pow", "ReduceL2", "ReduceSumSquare", "Reciprocal"};
  return names.count(node.op) > 0;
}

bool returns_to_range(const OnnxNode& node) {
  static const Names names = {"Clip",
                              "Div",
                              "Erf",
                              "GroupNormalization",
                              "HardSigmoid",
                              "InstanceNormalization",
                              "LayerNormalization",
                              "Log",
                              "LogSoftmax",
                              "RMSNormalization",
                              "Sigmoid",
                              "SimplifiedLayerNormalization",
                              "Softmax",
                              "Softsign",
                              "Tanh"};
  return names.count(node.op) > 0;
}

}  // namespace ortmodule
