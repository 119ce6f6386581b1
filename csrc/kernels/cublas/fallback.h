// What makes the product where cuBLASLt names no algorithm.
#pragma once

#include <memory>

#include "kernels/kernel.h"

namespace ortmodule::cublas {

/// The op's next kernel that takes the operands as they lie and allocates nothing: ATen's for a
/// product, the parts for what an epilogue would have done besides.
class Fallback {
 public:
  /// `self` is the KernelDef::run of the kernel that falls back.
  Fallback(const StepFacts& facts, void (*self)(const KernelArgs&));

  /// Scratch that it needs.
  size_t workspace_bytes(const StepFacts& facts) const;
  /// Error if there is none.
  void run(const KernelArgs& args) const;

 private:
  const KernelDef* kernel_ = nullptr;
  std::shared_ptr<const void> prepared_;
};

}  // namespace ortmodule::cublas
