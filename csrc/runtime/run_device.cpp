#include "runtime/run_device.h"

#include <atomic>

#include "base/error.h"

namespace ortmodule {
namespace {

std::atomic<RunDeviceSource> source_of_devices{nullptr};

}  // namespace

void set_run_device_source(RunDeviceSource source) { source_of_devices = source; }

RunDevice& run_device(int number) {
  const RunDeviceSource source = source_of_devices;
  ORTM_CHECK(source, "[device] sessions on CUDA need the extension built for torch with CUDA, ",
             "but it is not loaded in this process: import torch and ortmodule_py first");
  ORTM_CHECK(number >= 0, "[device] a device must have a number of at least 0, but found ", number);
  return source(number);
}

}  // namespace ortmodule
