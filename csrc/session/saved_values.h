// The values of a joint graph that a plan still has when its forward pass has ended.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "lower/lower.h"
#include "plan/plan.h"

namespace ortmodule {

/// Maps names of the joint graph to tensors of a plan. `plan` must outlive it.
class SavedValues {
 public:
  /// `lowered` is what `plan` was made of.
  SavedValues(const Plan& plan, const Lowered& lowered);

  /// The tensor that holds the value after forward, maybe on the host, or none.
  TensorId find(const std::string& name) const;

 private:
  void add(TensorId tensor);
  /// The value whose copy on the host is `copy`.
  void add_from_host(TensorId copy);
  bool is_kept(TensorId tensor) const;

  const Plan& plan_;
  const Lowered& lowered_;
  std::map<std::string, TensorId> by_name_;  // of the lowered graph
  std::map<std::string, TensorId> kept_;
};

}  // namespace ortmodule
