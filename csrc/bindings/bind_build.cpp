// Facts about this build.

#include <map>
#include <string>
#include <vector>

#include "base/version.h"
#include "bindings/casts/sizes.h"
#include "bindings/device_runtime.h"
#include "bindings/emulated_copies.h"
#include "bindings/topics.h"
#include "kernels/graph_convolutions.h"
#include "kernels/product_epilogues.h"
#include "kernels/step_compiler.h"
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
  info["graph_convolutions"] = has_graph_convolutions();
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

static py::object generated_code_counts() {
  StepCompiler* compiler = step_compiler();
  if (!compiler) return py::none();
  const StepCompilerCounts counts = compiler->counts();
  py::dict all;
  all["compiled"] = counts.compiled;
  all["from_disk"] = counts.from_disk;
  all["failed"] = counts.failed;
  all["loaded"] = counts.loaded;
  all["launches"] = counts.launches;
  all["failure"] = counts.failure;
  return all;
}

static void init_generated_code(py::module_& m) {
  m.def("enable_generated_code", &enable_step_compiler, py::arg("folders"), py::arg("cache_folder"),
        "Compiles pointwise groups of later plans, with the NVRTC of one of the folders.");
  m.def("generated_code_counts", &generated_code_counts,
        "What this process has compiled and launched; None while it is off.");
  m.def(
      "finish_generated_code",
      [] {
        if (StepCompiler* compiler = step_compiler()) compiler->finish();
      },
      py::call_guard<py::gil_scoped_release>(),
      "Waits until everything that was asked for is compiled; later runs use it.");
}

static py::dict counts_of_graph_convolutions() {
  const GraphConvolutionCounts counts = graph_convolution_counts();
  py::dict all;
  all["problems"] = counts.problems;
  all["without_plan"] = counts.without_plan;
  all["runs"] = counts.runs;
  all["most_workspace_bytes"] = counts.most_workspace_bytes;
  return all;
}

static void init_graph_convolutions(py::module_& m) {
  m.def(
      "use_graph_convolutions", &use_graph_convolutions, py::arg("use"), py::arg("device") = "",
      "Whether convolutions of 16 bits in later plans run by cuDNN's graph API, on a GPU of these "
      "properties (JSON as cuDNN writes it; empty: on the current one).");
  m.def(
      "graph_convolution_counts", &counts_of_graph_convolutions,
      "Of this process: problems that cuDNN was asked for and those without a plan, runs, and the "
      "most scratch of the plan that cuDNN estimates to be the fastest.");
}

static void set_product_epilogues(const std::string& use, const std::string& file) {
  const std::map<std::string, EpilogueUse> names{{"always", EpilogueUse::Always},
                                                 {"never", EpilogueUse::Never},
                                                 {"measured", EpilogueUse::Measured}};
  const auto found = names.find(use);
  ORTM_CHECK(found != names.end(),
             "[epilogues] they are used always, never or measured, but found ", use);
  use_product_epilogues(found->second, file);
}

static py::dict facts_of_product_epilogues() {
  constexpr const char* kNames[] = {"always", "never", "measured"};
  py::dict facts, times;
  facts["use"] = kNames[static_cast<size_t>(product_epilogue_use())];
  if (const auto choices = epilogue_choices()) {
    facts["file"] = choices->file();
    for (const EpilogueChoices::Choice& choice : choices->measured())
      times[py::str(choice.problem)] =
          py::make_tuple(choice.times.epilogue_us, choice.times.parts_us, choice.epilogue);
  }
  facts["times"] = times;
  return facts;
}

static void init_product_epilogues(py::module_& m) {
  m.def("use_product_epilogues", &set_product_epilogues, py::arg("use"), py::arg("file") = "",
        "Whether products of later plans use cuBLASLt's epilogues that give a second result: "
        "'always', 'never', or 'measured', which keeps its choices in the file.");
  m.def("product_epilogues", &facts_of_product_epilogues,
        "The setting ('use'), the file, and by problem the microseconds with and without the "
        "epilogue and whether it is used ('times').");
}

static void set_emulated_copies(const std::string& time) {
  ORTM_CHECK(time == "late" || time == "early", "[emulation] copies are late or early, but found ",
             time);
  emulate_copies(time == "late" ? CopyTime::Late : CopyTime::Early);
}

void init_build(py::module_& m) {
  m.attr("torch_version") = ORTM_TORCH_VERSION;
  m.attr("__version__") = std::string(version());
  m.def("build_info", &build_info, "Facts about this build; asks the CUDA driver for devices.");
  m.def(
      "emulate_copies", &set_emulated_copies, py::arg("time"),
      "When emulated copies between device and host happen, from the next one on: 'late', where a "
      "step waits for them, with poison in their place until then, or 'early', where they begin.");
  init_generated_code(m);
  init_graph_convolutions(m);
  init_product_epilogues(m);
}

}  // namespace ortmodule::bindings
