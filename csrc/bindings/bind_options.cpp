// The options of a piece in Python.
#include <pybind11/functional.h>
#include <torch/csrc/utils/pybind.h>

#include <map>
#include <string>
#include <type_traits>

#include "bindings/casts/sizes.h"
#include "bindings/engine.h"
#include "bindings/topics.h"

namespace ortmodule::bindings {
namespace py = pybind11;
namespace {

ConvolutionSearch convolution_search(const std::string& name) {
  if (name == "EXHAUSTIVE") return ConvolutionSearch::Exhaustive;
  if (name == "HEURISTIC") return ConvolutionSearch::Heuristic;
  ORTM_CHECK(name == "DEFAULT",
             "[convolution] a search must be EXHAUSTIVE, HEURISTIC or DEFAULT, but found ", name);
  return ConvolutionSearch::Default;
}

void init_memory_options(py::module_& m) {
  py::class_<MemoryOptions>(m, "MemoryOptions", "Options of the memory optimizer.")
      .def(py::init<>())
      .def_readwrite("level", &MemoryOptions::level)
      .def_readwrite("budget_bytes", &MemoryOptions::budget_bytes)
      .def_readwrite("budget_fraction", &MemoryOptions::budget_fraction)
      .def_readwrite("reserved_bytes", &MemoryOptions::reserved_bytes)
      .def_readwrite("strict", &MemoryOptions::strict)
      .def_readwrite("gathered_parameters", &MemoryOptions::gathered_parameters)
      .def_readwrite("other_runs", &MemoryOptions::other_runs)
      .def_readwrite("mid_training", &MemoryOptions::mid_training)
      .def(
          "set_rates",
          [](MemoryOptions& options, double flops_per_us, double bytes_per_us,
             double flops16_per_us) {
            options.rates.flops_per_us = flops_per_us;
            options.rates.bytes_per_us = bytes_per_us;
            options.rates.flops16_per_us = flops16_per_us;
          },
          py::arg("flops_per_us"), py::arg("bytes_per_us"), py::arg("flops16_per_us") = 0.0)
      .def(
          "set_link",
          [](MemoryOptions& options, double to_host_bytes_per_us, double to_device_bytes_per_us,
             double host_copy_us) {
            options.rates.to_host_bytes_per_us = to_host_bytes_per_us;
            options.rates.to_device_bytes_per_us = to_device_bytes_per_us;
            options.rates.host_copy_us = host_copy_us;
          },
          py::arg("to_host_bytes_per_us"), py::arg("to_device_bytes_per_us"),
          py::arg("host_copy_us") = MachineRates().host_copy_us)
      .def_readwrite("offload", &MemoryOptions::offload)
      .def_readwrite("host_budget_bytes", &MemoryOptions::host_budget_bytes)
      .def(
          "add_config",
          [](MemoryOptions& options, std::string id, int strategy, int64_t count) {
            ORTM_CHECK(strategy >= 0 && strategy <= 3,
                       "[memory] the strategy must be 0, 1, 2 or 3, but found ", strategy);
            options.config.push_back({std::move(id), static_cast<Strategy>(strategy), count});
          },
          py::arg("cluster_id"), py::arg("strategy"), py::arg("count"),
          "Adds one element `cluster_id:strategy:count` of a configuration.");
}

TrainedAttention trained_attention(const std::string& name) {
  if (name == "spelled") return TrainedAttention::Spelled;
  if (name == "own") return TrainedAttention::Own;
  if (name == "torch_cuda") return TrainedAttention::TorchCUDA;
  if (name == "torch_on_cpu") return TrainedAttention::TorchOnCPU;
  throw Error(str("[options] attention in training must be spelled, own, torch_cuda or ",
                  "torch_on_cpu, but found '", name, "'"));
}

/// Defines a property for an option of the session; `field` returns a reference to it.
template <class Field>
void add(py::class_<PieceOptions>& cls, const char* name, Field field) {
  using Type = std::remove_reference_t<std::invoke_result_t<Field, SessionOptions&>>;
  cls.def_property(
      name, [field](PieceOptions& options) -> Type { return field(options.session); },
      [field](PieceOptions& options, const Type& value) { field(options.session) = value; });
}

void add_session_options(py::class_<PieceOptions>& cls) {
  add(cls, "training", [](SessionOptions& options) -> bool& { return options.optimizer.training; });
  add(cls, "verify", [](SessionOptions& options) -> bool& { return options.optimizer.verify; });
  add(cls, "memory", [](SessionOptions& options) -> MemoryOptions& { return options.memory; });
  add(cls, "plan_cache_bytes",
      [](SessionOptions& options) -> int64_t& { return options.plan_cache_bytes; });
  cls.def_property(
         "trained_attention", [](const PieceOptions&) { return py::none(); },
         [](PieceOptions& options, const std::string& name) {
           options.session.optimizer.attention = trained_attention(name);
         },
         "What attention becomes that is written as products and a softmax: spelled, own, "
         "torch_cuda, "
         "torch_on_cpu.")
      .def_property(
          "first_sizes", [](const PieceOptions&) { return py::none(); },
          [](PieceOptions& options, const std::map<std::string, int64_t>& sizes) {
            options.session.optimizer.first_sizes = {};
            for (const auto& [symbol, size] : sizes)
              options.session.optimizer.first_sizes.bind(symbol, size);
          },
          "Values of symbols in the first call, which choices of layout go by.")
      .def_property(
          "disabled_passes",
          [](const PieceOptions& options) { return options.session.optimizer.disabled; },
          [](PieceOptions& options, const std::vector<std::string>& names) {
            options.session.optimizer.disabled = {names.begin(), names.end()};
          })
      .def_property(
          "fuel",
          [](const PieceOptions& options) {
            const auto& fuel = options.session.optimizer.fuel;
            return fuel ? *fuel : int64_t{-1};
          },
          [](PieceOptions& options, int64_t fuel) {
            options.session.optimizer.fuel = fuel < 0 ? nullptr : std::make_shared<int64_t>(fuel);
          },
          "Rewrites that the optimizer may make; negative: no limit.")
      .def_property(
          "dump", [](const PieceOptions&) { return py::none(); },
          [](PieceOptions& options,
             const std::function<void(int, std::string, std::string)>& hook) {
            options.session.optimizer.dump = [hook](int stage, std::string_view name,
                                                    const std::string& text) {
              hook(stage, std::string(name), text);
            };
          });
}

}  // namespace

void init_options(py::module_& m) {
  init_memory_options(m);
  py::class_<PieceOptions> cls(m, "PieceOptions", "How a piece is optimized, planned and run.");
  cls.def(py::init<>())
      .def_property(
          "device", [](const PieceOptions& options) { return options.device.str(); },
          [](PieceOptions& options, const std::string& name) {
            options.device = c10::Device(name);
          },
          "Where the tensors are: 'cpu' or 'cuda:<index>'.")
      .def_readwrite("emulate_cuda", &PieceOptions::emulate_cuda)
      .def_readwrite("cuda_graph", &PieceOptions::cuda_graph)
      .def_readwrite("generated_code", &PieceOptions::generated_code)
      .def_property(
          "convolution_search", [](const PieceOptions&) { return py::none(); },
          [](PieceOptions& options, const std::string& name) {
            options.convolution_search = convolution_search(name);
          },
          "EXHAUSTIVE, HEURISTIC or DEFAULT; not set: follows torch.backends.cudnn.benchmark.");
  add_session_options(cls);
}

}  // namespace ortmodule::bindings
