// How Resize samples one dimension: for each output the elements of the input that it reads and
// their weights, worked out when a plan is made. Coordinates are computed in float, as torch and
// onnxruntime do, so that outputs between two elements fall on the same side; ONNX's specification
// of the operator (Resize-19) has the formulas.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "kernels/kernel.h"

namespace ortmodule {

/// Of each output o: elements indices[begin[o]] to indices[begin[o + 1]], and their weights. One
/// without elements lies beside the part that is read and gets the value for extrapolation.
struct ResizeTaps {
  int64_t in = 1, out = 1;
  std::vector<int64_t> begin, indices;
  std::vector<double> weights;
};

/// An interpolation, from ONNX's attributes or the name of a torch operator.
struct ResizeMode {
  enum class Kind : uint8_t { Nearest, Linear, Cubic };
  Kind kind = Kind::Nearest;
  std::string coordinates = "half_pixel";
  std::string rounding = "round_prefer_floor";
  double cubic_a = -0.75;
  bool exclude_outside = false;
  bool antialias = false;
  /// torch multiplies by the ratio of input to output, ONNX divides by that of output to input.
  bool by_inverse = false;
};

/// The mode of a Resize node; none if its attributes name none.
std::optional<ResizeMode> resize_mode(const Attrs& attrs);

/// The taps of spatial dimension d of a Resize step.
ResizeTaps resize_taps(const ResizeMode& mode, const StepFacts& facts, size_t d);

}  // namespace ortmodule
