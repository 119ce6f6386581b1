// Element types of the values of a graph, as far as the model and its operators say.
#pragma once

#include <string>
#include <unordered_map>

#include "onnx/onnx_model.h"

namespace ortmodule {

class ValueTypes {
 public:
  /// `outer`: of the graph around it, or null.
  ValueTypes(const OnnxGraph& graph, const ValueTypes* outer);
  /// The number of the type in ONNX; 0 if it is not known.
  int of(const std::string& name) const;
  bool is_float(const std::string& name) const { return of(name) == 1; }

 private:
  int type_of_output(const OnnxNode& node, size_t index) const;
  int type_of_result(const OnnxNode& node, const OnnxGraph& body, size_t index) const;

  const ValueTypes* outer_;
  std::unordered_map<std::string, int> types_;
};

}  // namespace ortmodule
