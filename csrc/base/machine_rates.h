// Machine rates for time estimates.
#pragma once

namespace ortmodule {

/// Rates for the estimated time of a step. The defaults are those of one core of a current server
/// CPU; choices depend only on the ratios between steps.
struct MachineRates {
  double flops_per_us = 60e3;
  double flops16_per_us = 0;  // of products of 16 bits; 0: as the others
  double bytes_per_us = 8e3;
  double step_us = 1.5;  // overhead per step
  // Of copies between a device and the host (PCIe 4, 16 lanes), which run beside the steps.
  double to_host_bytes_per_us = 24e3;
  double to_device_bytes_per_us = 24e3;
  double host_copy_us = 10;  // overhead per copy
};

}  // namespace ortmodule
