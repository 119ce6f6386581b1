// A product and what is computed of its operands or its result besides: by the epilogue of one
// call, or by the op's parts.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <tuple>

#include "kernels/cublas/fallback.h"
#include "kernels/cublas/product.h"
#include "kernels/product_epilogues.h"

namespace ortmodule::cublas {

/// The base of what such a kernel prepares (`with_product`). The setting of the time when the plan
/// is made holds for its steps.
class FollowedProduct {
 public:
  Product product;
  Fallback fallback;

  /// `self` is the KernelDef::run of the kernel.
  FollowedProduct(const StepFacts& facts, Problem problem, void (*self)(const KernelArgs&));

  /// By the epilogue, or where it takes longer or the library refuses it, by the parts. Both are
  /// timed at the first run of a problem, outside of captures; the results are then those of the
  /// chosen one.
  void run(const Operands& operands, const KernelArgs& args) const;

 private:
  bool prefers_epilogue(const Operands& operands, const KernelArgs& args) const;
  std::optional<EpilogueTimes> times(const Operands& operands, const KernelArgs& args) const;

  using Circumstances = std::tuple<int, bool, bool, bool>;  // the device and flags of a run

  const std::shared_ptr<EpilogueChoices> choices_ = epilogue_choices();
  mutable std::mutex mutex_;
  mutable std::map<Circumstances, bool> known_;
};

/// Why a plan of this setting leaves an epilogue with a second result to the parts.
Reason epilogue_unwanted();

}  // namespace ortmodule::cublas
