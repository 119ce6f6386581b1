// Machine rates for time estimates.
#pragma once

namespace ortmodule {

/// Rates for the estimated time of a step. The defaults are those of one core of a current server
/// CPU; choices depend only on the ratios between steps.
struct MachineRates {
  double flops_per_us = 60e3;
  double bytes_per_us = 8e3;
  double step_us = 1.5;  // overhead per step
};

}  // namespace ortmodule
