// A pointwise group between its nodes and the program of it: values and the loops that make them,
// without places in memory. pointwise_rewrite.cpp joins loops here.
#pragma once

#include <optional>
#include <vector>

#include "kernels/cpu/pointwise_op.h"
#include "kernels/iteration.h"

namespace ortmodule {
inline namespace ORTM_ISA {

struct VirtualValue {
  Compute type = Compute::F32;
  /// The integer of memory that tiles hold instead of the computation type.
  std::optional<DType> stored;
  int input = -1;  // a tensor of the step
  bool literal = false;
  bool single = false;  // an input of which only a tile's first element is read
  double number = 0;    // value of a literal
  int defined = 0;      // position of its instruction, 0 for what tiles start with
  int last_use = 0;
  std::vector<int> outputs;  // outputs of the step that receive it
  int slot = -1;

  int64_t bytes() const { return stored ? static_cast<int64_t>(size_of(*stored)) : bytes_of(type); }
  /// Whether elements of `dtype` in memory are those of a tile.
  bool lies_as(DType dtype) const {
    return stored ? *stored == dtype : is_stored_as_computed(dtype) && compute_of(dtype) == type;
  }
};

struct VirtualOp {
  MicroFn run = nullptr;
  int out = -1;
  std::vector<int> in;
  MicroParams params;
  size_t singles_from = 3;  // of the operands from here on it reads a tile's first element
};

struct VirtualGroup {
  const StepFacts& facts;
  std::vector<VirtualValue> values = {};
  std::vector<VirtualOp> ops = {};
  std::optional<DType> integers = {};  // what tiles hold of all integers instead of int64
  IterationSpace space = {};           // its operands are outputs, then inputs
  bool by_rows = false;  // some op takes one number for a whole tile, which is one for each row

  int new_value(Compute type);
  int literal_value(double number, Compute type);
  const VirtualOp* op_of(int value) const;
  bool is_read_by(int value, std::ptrdiff_t ops) const;
  /// The float that was converted to this byte; -1 if none was.
  int float_of_byte(int value, DType byte) const;
};

/// Joins loops and leaves out what a store does anyway. No bit of a result changes.
void simplify(VirtualGroup& group);

}  // namespace ORTM_ISA
}  // namespace ortmodule
