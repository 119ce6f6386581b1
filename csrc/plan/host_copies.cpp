#include "plan/host_copies.h"

#include <algorithm>
#include <deque>
#include <limits>
#include <utility>

#include "base/error.h"
#include "plan/step_cost.h"

namespace ortmodule {
namespace {

bool is_to_host(const PlannedStep& step) { return step.kernel->op == "CopyToHost"; }
bool is_to_device(const PlannedStep& step) { return step.kernel->op == "CopyToDevice"; }

/// The step that waits for the copy of `copy`. It reads source and destination, so both stay
/// allocated up to it.
PlannedStep await_of(const Plan& plan, const PlannedStep& copy) {
  PlannedStep step;
  step.region = copy.region;
  step.in = {copy.in[0], copy.out[0]};
  StepFacts facts;
  NodeFacts& node = facts.nodes.emplace_back();
  node.op = "AwaitCopy";
  for (TensorId tensor : step.in) {
    node.inputs.push_back({OperandRef::Kind::Input, static_cast<int>(facts.inputs.size()), 0.0});
    node.input_dtypes.push_back(plan.tensors[tensor].dtype);
    facts.inputs.push_back({plan.tensors[tensor].dtype, plan.tensors[tensor].layout});
  }
  std::string why;
  step.kernel = select_kernel("AwaitCopy", copy.kernel->device, facts, &why);
  ORTM_ASSERT(step.kernel, "no kernel waits for a copy: ", why);
  step.facts = std::make_shared<const StepFacts>(std::move(facts));
  return step;
}

class CopySchedule {
 public:
  CopySchedule(Plan& plan, const MachineRates& rates) : plan_(plan), rates_(rates) {}

  void run(bool forward_is_fixed) {
    if (std::ranges::none_of(plan_.steps, is_host_copy)) return;
    auto steps = std::exchange(plan_.steps, {});
    const auto middle = steps.begin() + plan_.forward_steps;
    std::vector<PlannedStep> forward(std::make_move_iterator(steps.begin()),
                                     std::make_move_iterator(middle));
    std::vector<PlannedStep> backward(std::make_move_iterator(middle),
                                      std::make_move_iterator(steps.end()));
    if (forward_is_fixed) {
      plan_.steps = std::move(forward);
    } else {
      schedule_forward(std::move(forward));
    }
    plan_.forward_steps = plan_.step_count();
    schedule_backward(std::move(backward));
  }

 private:
  void schedule_forward(std::vector<PlannedStep> steps) {
    HostLink link(plan_, rates_);
    struct Pending {
      PlannedStep await;
      double end_us;
    };
    std::deque<Pending> pending;  // in the order of their ends
    double clock_us = 0;
    for (PlannedStep& step : steps) {
      while (!pending.empty() && pending.front().end_us <= clock_us) {
        plan_.steps.push_back(std::move(pending.front().await));
        pending.pop_front();
      }
      clock_us += estimated_us(step, rates_);
      if (is_to_host(step)) pending.push_back({await_of(plan_, step), link.begin(step, clock_us)});
      plan_.steps.push_back(std::move(step));
    }
    for (Pending& rest : pending) plan_.steps.push_back(std::move(rest.await));
  }

  /// The copies stand in front of their first readers, and each becomes a wait there.
  void schedule_backward(std::vector<PlannedStep> steps) {
    const HostLink link(plan_, rates_);
    std::vector<double> begins_us;  // of each step
    double clock_us = 0;
    for (const PlannedStep& step : steps) {
      begins_us.push_back(clock_us);
      if (!is_to_device(step)) clock_us += estimated_us(step, rates_);
    }
    std::vector<std::vector<size_t>> starting(steps.size());  // copies by the step they precede
    double next_us = std::numeric_limits<double>::max();
    size_t latest = steps.size();
    for (size_t i = steps.size(); i-- > 0;) {
      if (!is_to_device(steps[i])) continue;
      next_us = std::min(next_us, begins_us[i]) - link.duration_us(steps[i]);
      const auto after = std::ranges::upper_bound(begins_us, next_us);
      const auto found = static_cast<size_t>(after - begins_us.begin());
      latest = std::min({latest, i, found > 0 ? found - 1 : 0});
      starting[latest].insert(starting[latest].begin(), i);
    }
    std::vector<std::optional<PlannedStep>> awaits(steps.size());
    for (size_t i = 0; i < steps.size(); ++i) {
      for (size_t copy : starting[i]) {
        awaits[copy] = await_of(plan_, steps[copy]);
        plan_.steps.push_back(std::move(steps[copy]));
      }
      plan_.steps.push_back(awaits[i] ? std::move(*awaits[i]) : std::move(steps[i]));
    }
  }

  Plan& plan_;
  const MachineRates& rates_;
};

}  // namespace

bool is_host_copy(const PlannedStep& step) { return is_to_host(step) || is_to_device(step); }

bool is_await(const PlannedStep& step) { return step.kernel->op == "AwaitCopy"; }

HostLink::HostLink(const Plan& plan, const MachineRates& rates)
    : plan_(plan), rates_(rates), ends_(plan.storages.size(), 0.0) {}

double HostLink::duration_us(const PlannedStep& step) const {
  // A schedule that needs all of the link waits wherever a step is faster than was estimated.
  constexpr double kCountedOn = 0.9;
  const PlannedTensor& copied = plan_.tensors[step.in[0]];
  const auto bytes =
      static_cast<double>(extent(copied.layout) * static_cast<int64_t>(size_of(copied.dtype)));
  const double rate =
      is_to_host(step) ? rates_.to_host_bytes_per_us : rates_.to_device_bytes_per_us;
  return rates_.host_copy_us + bytes / (kCountedOn * rate);
}

double HostLink::begin(const PlannedStep& step, double at_us) {
  double& free_at_us = free_at_us_[is_to_host(step) ? 0 : 1];
  free_at_us = std::max(free_at_us, at_us) + duration_us(step);
  ends_[plan_.tensors[step.out[0]].storage] = free_at_us;
  return free_at_us;
}

double HostLink::end_of(const PlannedStep& step) const {
  return ends_[plan_.tensors[step.in[1]].storage];
}

void schedule_host_copies(Plan& plan, const MachineRates& rates, bool forward_is_fixed) {
  CopySchedule(plan, rates).run(forward_is_fixed);
}

}  // namespace ortmodule
