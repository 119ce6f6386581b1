// Rates of the machine for estimates of time.
#pragma once

namespace ortmodule {

/// Rates of the machine as far as the model of time knows it. The defaults are one core of a
/// current server processor; only ratios between steps matter to a choice.
struct MachineRates {
  double flops_per_us = 60e3;
  double bytes_per_us = 8e3;
  double step_us = 1.5;  // dispatch
};

}  // namespace ortmodule
