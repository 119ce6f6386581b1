// A quantized value of a model, by the names of its tensors.
#pragma once

#include <string>

namespace ortmodule {

struct QuantizedValue {
  std::string data;
  std::string scale;
  std::string zero_point;
  int axis = -1;             // of a scale per index
  bool is_constant = false;  // then it is there before the first node
};

}  // namespace ortmodule
