// The parameter of every kernel that runs a pointwise group, interpreted (pointwise_group.cu) or
// compiled at run time (pointwise_source.h).
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "kernels/cuda/fast_divisor.h"
#include "kernels/micro_params.h"
#include "kernels/run_seed.h"

namespace ortmodule::cuda {

inline constexpr int kPointwisePerThread = 4;  // consecutive elements
inline constexpr int kPointwiseThreads = 128;
inline constexpr int kMaxPointwiseDims = 8;
inline constexpr int kMaxPointwiseInstructions = 160;
inline constexpr int kMaxPointwiseTensors = 40;
inline constexpr int kMaxPointwiseConstants = 48;
inline constexpr int kMaxPointwiseParams = 32;

/// Where an operand of an instruction comes from.
struct PointwiseOperand {
  enum Kind : uint8_t { Accumulator, Slot, Tensor, Constant };
  uint8_t kind = Accumulator;
  uint8_t index = 0;
};

/// Operations beyond the rows of pointwise_table.h, numbered after them.
enum class PointwiseExtra : uint8_t {
  Copy,
  Store,
  FloatToInt32,
  DoubleToInt32,
  Convert,  // + 4 from + to, so the last
};

/// accumulator = round(op(in...)), also kept in a slot if `slot` is not negative. Store instead
/// writes its operand to tensor `slot` and leaves the accumulator alone.
struct PointwiseInstruction {
  uint16_t op = 0;
  DType round = DType::Undefined;
  int8_t slot = -1;
  uint8_t params = 0;
  uint8_t arity = 1;
  PointwiseOperand in[3];
};

/// How the elements of a thread lie in a tensor.
enum class PointwiseAccess : uint8_t {
  Uniform,  // all at one address
  Linear,   // position p at element p
  Row,      // a thread's consecutive positions never leave a row
  General,
};

struct PointwiseTensor {
  void* data = nullptr;
  DType dtype = DType::Undefined;
  PointwiseAccess access = PointwiseAccess::General;
  bool vectors = false;  // a thread's elements can be moved at once
  int64_t strides[kMaxPointwiseDims] = {};
};

/// The kernel's parameter: outputs, inputs and, for random ops, the logical order as a last tensor
/// without data.
struct PointwiseLaunch {
  uint32_t total = 0;  // elements
  int rank = 0;
  int instruction_count = 0;
  int slots = 0;
  int index_tensor = -1;
  int64_t first_index = 0;  // logical index of the first element
  RunSeed seed;
  FastDivisor sizes[kMaxPointwiseDims];
  PointwiseInstruction instructions[kMaxPointwiseInstructions];
  PointwiseTensor tensors[kMaxPointwiseTensors];
  uint64_t constants[kMaxPointwiseConstants] = {};
  MicroParams params[kMaxPointwiseParams];
};
static_assert(sizeof(PointwiseLaunch) <= 16 * 1024, "kernel parameters may take 32 KiB");

}  // namespace ortmodule::cuda
