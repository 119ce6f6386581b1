// Operators imported as calls of other operators: com.microsoft's fusions, for example.
#pragma once

#include <string_view>

#include "ops/onnx_call.h"

namespace ortmodule {

/// The operator set whose rules nested calls use.
constexpr int64_t kNestedOpset = 23;

/// The outputs of standard operator `op` on values of the graph, null for an absent operand.
/// `outputs`: how many of them are wanted. The rule may not ask for the content of an operand.
Values call_nested(OnnxCall& c, std::string_view op, const Values& inputs, OnnxAttrs attrs = {},
                   size_t outputs = 1);

/// The outputs of the node itself, imported by the rule of standard operator `op`.
Values call_standard(OnnxCall& c, std::string_view op);

/// The node's attributes with these names.
OnnxAttrs pick_attrs(const OnnxCall& c, std::initializer_list<std::string_view> names);

/// x after an activation by its name in ONNX ("" or "None": x itself), with its parameters.
Value* activated(OnnxCall& c, Value* x, std::string_view name,
                 const std::vector<double>& parameters);

}  // namespace ortmodule
