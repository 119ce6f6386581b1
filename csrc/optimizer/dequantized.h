// Real numbers that a graph makes of small ones: (q - zero) * scale, as DequantizeLinear or a cast
// and a scale.
#pragma once

#include <optional>

#include "ir/graph.h"

namespace ortmodule {

/// What widens `q`, of 8 bits or a 16-bit float.
struct Dequantized {
  Value* q = nullptr;
  Value* scale = nullptr;  // or null
  double number = 1.0;     // instead of it
  Value* zero = nullptr;   // or null; of q's type
  Dims zero_dims;          // as q sees it
};

/// How `value`, of float32, is made; nothing if it is otherwise.
std::optional<Dequantized> read_dequantized(Value* value);

/// The axis of `q` along which a scale or zero point of these dims changes; -1: it is one number.
std::optional<int64_t> channel_axis(const Dims& dims, const Dims& q);

/// A scale or zero point as the operand of an op: of rank 0 or 1; null for null.
Value* as_channels(Graph& graph, Value* value);

}  // namespace ortmodule
