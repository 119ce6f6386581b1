// When values that are kept on the host are copied there and back.
#pragma once

#include "base/machine_rates.h"
#include "plan/plan.h"

namespace ortmodule {

/// Whether the step begins a copy between device and host.
bool is_host_copy(const PlannedStep& step);
/// Whether the step waits for such a copy.
bool is_await(const PlannedStep& step);

/// The link between device and host: copies of one direction run one after the other, beside the
/// steps and the other direction.
class HostLink {
 public:
  /// The arguments must outlive the link.
  HostLink(const Plan& plan, const MachineRates& rates);
  /// The copy of `step` is ready to begin. Returns when it ends.
  double begin(const PlannedStep& step, double at_us);
  /// When the copy ends that `step` waits for.
  double end_of(const PlannedStep& step) const;
  /// How long the copy of `step` takes.
  double duration_us(const PlannedStep& step) const;

 private:
  const Plan& plan_;
  const MachineRates& rates_;
  double free_at_us_[2] = {0, 0};     // by direction
  IdVector<StorageId, double> ends_;  // by destination
};

/// Places the copies between the steps, by the estimated times of these, and inserts the steps that
/// wait. A copy to the host begins when its value exists; the wait, behind which the device memory
/// is free, stands where the copy is expected to have ended. A copy back begins as late as it can
/// to have ended in front of its first reader. Without a forward part to schedule
/// (`forward_is_fixed`) only backward changes. Does nothing to plans without copies.
void schedule_host_copies(Plan& plan, const MachineRates& rates, bool forward_is_fixed);

}  // namespace ortmodule
