#include "importer/missing_operator.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "ops/onnx_call.h"
#include "ops/torch_call.h"

namespace ortmodule {
namespace {

// Of ONNX 1.23 and before.
constexpr std::array<std::pair<std::string_view, std::string_view>, 9> kWithoutRule = {{
    {"", "ImageDecoder"},
    {"", "RegexFullMatch"},
    {"", "StringConcat"},
    {"", "StringNormalizer"},
    {"", "StringSplit"},
    {"ai.onnx.preview.training", "Adagrad"},
    {"ai.onnx.preview.training", "Adam"},
    {"ai.onnx.preview.training", "Gradient"},
    {"ai.onnx.preview.training", "Momentum"},
}};

bool may_exist(const OnnxNode& node) {
  // onnxruntime's own domains have no list that all of its versions share.
  if (node.domain.starts_with("com.microsoft") || node.domain == "com.ms.internal.nhwc")
    return true;
  const std::pair<std::string_view, std::string_view> wanted{node.domain, node.op};
  return std::ranges::find(kWithoutRule, wanted) != kWithoutRule.end() ||
         std::ranges::any_of(all_onnx_rows(), [&](const OnnxRow* row) {
           return row->domain == node.domain && row->op == node.op;
         });
}

}  // namespace

void refuse_operator(const OnnxNode& node, int64_t opset) {
  if (may_exist(node))
    throw Unsupported(str("the engine has no such operator (operator set ", opset, ")"));
  throw Refused(str("ONNX has no such operator, nor do the functions of the model (operator set ",
                    opset, ")"));
}

}  // namespace ortmodule
