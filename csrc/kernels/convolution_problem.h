// A convolution as a library wants it described: 32-bit sizes of dense tensors, all row-major or
// all channels-last, worked out from the operands when a plan is made. Needs no device.
#pragma once

#include <compare>
#include <vector>

#include "kernels/kernel.h"

namespace ortmodule {

/// x is [N, C, ...], w [K, C / groups, ...], y [N, K, ...]. One spatial dimension becomes two, the
/// first of size 1.
struct ConvolutionProblem {
  DType dtype = DType::Undefined;
  bool channels_last = false;
  int groups = 1;
  std::vector<int> x, w, y;
  std::vector<int> pads, strides, dilations;  // by spatial dimension

  auto operator<=>(const ConvolutionProblem&) const = default;
};

/// Of a Conv step (x, w, bias?) or a ConvGrad step (dy, x, w) that convolution_unsupported takes.
ConvolutionProblem convolution_problem(const StepFacts& facts);

/// Why a step has no such problem, or nothing.
Reason convolution_unsupported(const StepFacts& facts);

/// From now on convolution_unsupported() refuses steps like this one, for which the library turned
/// out to have no algorithm that gives the same bits in every run within the planned scratch, or is
/// switched off. Thread-safe.
void refuse_convolution(const StepFacts& facts);

/// Dense strides of a tensor of these sizes in the layout of the problem.
std::vector<int> dense_strides(const std::vector<int>& sizes, bool channels_last);

/// KernelDef::output_strides: results are laid out as the operands.
std::vector<Sizes> convolution_strides(const StepFacts& facts);

/// Scratch that an algorithm may use: as much as the tensors, which is what rearranging them takes,
/// at least 512 KiB for an algorithm's own tables, and at most 64 MiB, twice what ORTModule allowed
/// unless it was told to take all there is. Whatever wants more is not chosen.
size_t convolution_workspace_bytes(const ConvolutionProblem& problem);

/// A dense tensor of these sizes as a matrix of channels: its sums over all but the channels are
/// sums over dimension 0 ([pixels, C], channels-last) or 0 and 2 ([N, C, pixels]).
OperandFacts by_channel(const std::vector<int>& sizes, const ConvolutionProblem& problem);

}  // namespace ortmodule
