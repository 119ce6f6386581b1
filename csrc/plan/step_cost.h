// Time of a plan by a roofline: what a step costs is what it computes and what it moves.
#pragma once

#include "plan/plan.h"

namespace ortmodule {

/// Rates of the machine as far as the model of time knows it. The defaults are one core of a
/// current server processor; only ratios between steps matter to a choice.
struct MachineRates {
  double flops_per_us = 60e3;
  double bytes_per_us = 8e3;
  double step_us = 1.5;  // dispatch
};

/// Microseconds of one step; 0 for views and copies of nothing.
double estimated_us(const PlannedStep& step, const MachineRates& rates = {});

/// Microseconds of forward and backward together.
double estimated_us(const Plan& plan, const MachineRates& rates = {});

}  // namespace ortmodule
