// Estimates the time of a plan by a roofline model: a step costs its arithmetic and its memory
// traffic.
#pragma once

#include "base/machine_rates.h"
#include "plan/plan.h"

namespace ortmodule {

/// Estimated microseconds of one step.
double estimated_us(const PlannedStep& step, const MachineRates& rates = {});

/// Estimated microseconds of forward and backward together.
double estimated_us(const Plan& plan, const MachineRates& rates = {});

}  // namespace ortmodule
