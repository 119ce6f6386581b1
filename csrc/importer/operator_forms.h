// How many operands and outputs, and which attributes, the nodes of operators may have.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "onnx/onnx_model.h"

namespace ortmodule {

/// The form of an operator from an operator set on.
struct OperatorForm {
  std::string_view domain, op;
  int64_t since;
  /// A letter for each: s must be given, o may be, v is one or more, w any number. "-": the
  /// operator was taken out of the set.
  std::string_view inputs, outputs;
  /// Name, "!" if it must be given, ":" and a letter of its type, a space.
  std::string_view attrs;
};

std::span<const OperatorForm> standard_forms();
std::span<const OperatorForm> contrib_forms();

/// Null for an operator that onnxruntime does not have.
const OperatorForm* find_operator_form(std::string_view domain, std::string_view op, int64_t opset);

/// Throws Refused if the node cannot be one of its operator, which it may be for all that is known
/// of one without a form.
void check_form(const OnnxNode& node, int64_t opset);

/// The same for all nodes of a model, its subgraphs included, for those who take operands and
/// attributes as they are. Throws Error, with all nodes that cannot be.
void check_forms(const OnnxModel& model);

}  // namespace ortmodule
