// Graphs as text and as .onnx files, for tests and tools.

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/casts/sizes.h"
#include "bindings/topics.h"
#include "exporter/onnx_export.h"
#include "exporter/save_model.h"
#include "ir/text.h"
#include "ir/verify.h"
#include "ops/emit.h"

namespace ortmodule::bindings {
namespace py = pybind11;

/// Row-major data of inputs by name, with what keeps it alive.
struct Initializers {
  OnnxSaveOptions options;
  std::vector<py::buffer_info> held;

  Initializers(const py::dict& arrays, size_t external_threshold) {
    options.placement.threshold = external_threshold;
    for (const auto& [name, array] : arrays) {
      held.push_back(py::cast<py::buffer>(array).request());
      const py::buffer_info& info = held.back();
      py::ssize_t next = info.itemsize;
      for (auto i = static_cast<size_t>(info.ndim); i-- > 0;) {
        if (info.shape[i] != 1 && info.strides[i] != next)
          throw py::value_error("data of '" + py::cast<std::string>(name) + "' must be row-major");
        next *= info.shape[i];
      }
      options.initializers[py::cast<std::string>(name)] = {
          info.ptr, static_cast<size_t>(info.size * info.itemsize)};
    }
  }
};

static void save(const Graph& graph, const std::filesystem::path& path,
                 const py::dict& initializers, size_t external_threshold) {
  save_onnx(graph, path.string(), Initializers(initializers, external_threshold).options);
}

/// `inputs`: (value of the graph, name, dtype, sizes of the example, names of sizes by dimension).
static void save_named(
    const Graph& graph, const std::filesystem::path& path, const py::dict& initializers,
    const std::vector<std::tuple<std::string, std::string, std::string, std::vector<int64_t>,
                                 std::map<int64_t, std::string>>>& inputs,
    std::vector<std::string> outputs, std::string prefix) {
  const Initializers data(initializers, OnnxDataPlacement().threshold);
  SavedModel model;
  for (const auto& [value, name, dtype, sizes, any_sizes] : inputs)
    model.inputs.push_back({value, name, parse_dtype(dtype), sizes, any_sizes});
  model.outputs = std::move(outputs);
  model.prefix = std::move(prefix);
  model.data = data.options;
  save_model(graph, path.string(), model);
}

void init_graph(py::module_& m) {
  py::class_<Graph, std::shared_ptr<Graph>>(m, "Graph", "A typed graph of ONNX ops.")
      .def(
          "print",
          [](const Graph& graph, bool types, bool origins) {
            return print(graph, {.types = types, .origins = origins});
          },
          py::arg("types") = true, py::arg("origins") = false, "The graph in the text notation.")
      .def("__str__", [](const Graph& graph) { return print(graph); })
      .def(
          "infer", [](Graph& graph) { infer(graph); },
          "Sets the types of all values from those of the inputs.")
      .def(
          "verify", [](const Graph& graph) { return verify(graph); },
          "The first structural violation, or None.");
  m.def(
      "parse_graph",
      [](const std::string& text) { return std::shared_ptr<Graph>(parse_graph(text)); },
      py::arg("text"), "Reads the text notation.");
  m.def(
      "save_onnx", &save, py::arg("graph"), py::arg("path"), py::arg("initializers") = py::dict(),
      py::arg("external_threshold") = size_t{1} << 30,
      "Writes the graph as an .onnx file. `initializers` maps names of inputs to row-major arrays "
      "that are stored in it; above `external_threshold` bytes in all, beside it.");
  m.def("save_model", &save_named, py::arg("graph"), py::arg("path"), py::arg("initializers"),
        py::arg("inputs"), py::arg("outputs"), py::arg("prefix"),
        "Writes the graph as an .onnx file for other tools, with these names.");
  m.def(
      "load_onnx",
      [](const std::filesystem::path& path) {
        return std::shared_ptr<Graph>(load_onnx(path.string()));
      },
      py::arg("path"), "Reads a file that save_onnx wrote.");
}

}  // namespace ortmodule::bindings
