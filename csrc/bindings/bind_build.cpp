// Facts about this build.
#include <string>
#include <vector>

#include "base/version.h"
#include "bindings/device_runtime.h"
#include "bindings/topics.h"
#ifdef ORTM_WITH_CUDA
#include "kernels/cuda/device_info.h"
#endif

namespace ortmodule::bindings {
namespace py = pybind11;

static py::dict cuda_info() {
  py::dict info;
#ifdef ORTM_WITH_CUDA
  info["built_for"] = ORTM_TORCH_CUDA_VERSION;
  py::list architectures;
  for (int arch : cuda::compiled_architectures()) architectures.append(arch);
  info["architectures"] = architectures;
  info["targets"] = py::str(ORTM_CUDA_TARGETS).attr("split")();
  py::list devices;
  for (const cuda::DeviceInfo& device : cuda::visible_devices()) {
    devices.append(py::make_tuple(device.major, device.minor));
  }
  info["devices"] = devices;
#endif
  return info;
}

static py::dict build_info() {
  py::dict info;
  info["version"] = std::string(version());
  info["torch"] = ORTM_TORCH_VERSION;
  info["cpu_isas"] = py::str(ORTM_CPU_ISAS).attr("split")();
  info["cuda"] = cuda_info();
  info["cuda_emulation"] = has_cuda_emulation();
  return info;
}

void init_build(py::module_& m) {
  m.attr("torch_version") = ORTM_TORCH_VERSION;
  m.attr("__version__") = std::string(version());
  m.def("build_info", &build_info, "Facts about this build; asks the CUDA driver for devices.");
}

}  // namespace ortmodule::bindings
