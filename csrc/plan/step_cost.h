// Time of a plan by a roofline: what a step costs is what it computes and what it moves.
#pragma once

#include "base/machine_rates.h"
#include "plan/plan.h"

namespace ortmodule {

/// Microseconds of one step; 0 for views and copies of nothing.
double estimated_us(const PlannedStep& step, const MachineRates& rates = {});

/// Microseconds of forward and backward together.
double estimated_us(const Plan& plan, const MachineRates& rates = {});

}  // namespace ortmodule
