// What makes the product where cuBLASLt names no algorithm, and what the kernels of this folder
// declare for both.
#pragma once

#include <algorithm>
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

/// `def` on CUDA with one `Prepared` per step, which is made of StepFacts and has a `product` and a
/// `fallback`: scratch for whichever of the two will run.
template <typename Prepared>
KernelDef with_product(KernelDef def) {
  def.device = Device::CUDA;
  def.workspace_bytes = [](const StepFacts& facts) {
    const Prepared prepared(facts);
    return std::max(prepared.product.problem().declared_bytes(),
                    prepared.fallback.workspace_bytes(facts));
  };
  def.prepare = [](const StepFacts& facts) -> std::shared_ptr<const void> {
    return std::make_shared<Prepared>(facts);
  };
  return def;
}

}  // namespace ortmodule::cublas
