// Python's view of models as files, and of their quantization.
#include <pybind11/pybind11.h>

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "bindings/casts/sizes.h"
#include "bindings/inference/topics.h"
#include "importer/check_names.h"
#include "importer/operator_forms.h"
#include "importer/sorted_nodes.h"
#include "onnx/onnx_file.h"
#include "onnx/onnx_reader.h"
#include "quantization/convert_precision.h"
#include "quantization/graph_edit.h"
#include "quantization/model_parts.h"
#include "quantization/quantize_dynamic.h"
#include "quantization/quantize_static.h"

namespace py = pybind11;

namespace ortmodule::bindings {
namespace {

std::shared_ptr<OnnxModel> read_model(const py::object& model) {
  if (py::isinstance<py::bytes>(model))
    return std::make_shared<OnnxModel>(
        parse_onnx_model(SharedBytes(py::cast<std::string>(model)), "bytes"));
  const auto path = py::cast<std::filesystem::path>(model).string();
  const py::gil_scoped_release released;
  return std::make_shared<OnnxModel>(read_onnx_model(path));
}

// What transforms files takes nodes as they are, each behind those that it reads from.
OnnxModel checked(const OnnxModel& model) {
  check_forms(model);
  OnnxModel sorted = with_sorted_nodes(model);
  check_names(sorted);
  return sorted;
}

void write_model(const OnnxModel& model, const std::filesystem::path& path,
                 size_t external_threshold) {
  const py::gil_scoped_release released;
  write_onnx_file(model, path.string(), {.threshold = external_threshold});
}

py::list nodes_of(const OnnxModel& model) {
  py::list list;
  for (const OnnxNode& node : model.graph.nodes)
    list.append(py::make_tuple(node.name, node.domain, node.op, node.inputs, node.outputs));
  return list;
}

py::list rows_of(const QuantizationReport& report) {
  py::list rows;
  for (const NodeReport& node : report.nodes) {
    py::list weights;
    for (const auto& weight : node.weights) {
      py::dict facts;
      facts["name"] = weight->name;
      facts["origin"] = weight->origin;
      facts["float_bytes"] = weight->float_bytes;
      facts["quantized_bytes"] = weight->quantized_bytes;
      facts["relative_error"] = weight->relative_error;
      facts["largest_error"] = weight->largest_error;
      weights.append(facts);
    }
    py::dict row;
    row["name"] = node.name;
    row["op"] = node.op;
    row["output"] = node.output;
    row["quantized"] = node.quantized;
    row["note"] = node.note;
    row["weights"] = weights;
    rows.append(row);
  }
  return rows;
}

/// `inputs`: (number of the type in ONNX, sizes) by name.
std::shared_ptr<OnnxModel> cut(
    const OnnxModel& model, const std::string& output,
    const std::map<std::string, std::pair<int, std::vector<int64_t>>>& inputs) {
  std::map<std::string, ArrayType> types;
  for (const auto& [name, type] : inputs) types[name] = {type.first, type.second};
  return std::make_shared<OnnxModel>(cut_node(model, output, types));
}

QuantizedType type_of_number(int number) {
  if (number < 2 || number > 5)
    throw Error(
        str("[quantization] a quantized type must be an integer of 8 or 16 bits, but found "
            "ONNX's type ",
            number));
  return static_cast<QuantizedType>(number);
}

// For the tensor, or for its next channel.
void add_override(StaticQuantization& options, const std::string& tensor, std::optional<int> type,
                  std::optional<int64_t> axis, std::optional<bool> symmetric,
                  std::optional<bool> reduce_range, std::optional<double> least,
                  std::optional<double> most, std::optional<float> scale,
                  std::optional<int> zero_point) {
  TensorOverride& given = options.overrides[tensor].emplace_back();
  if (type) given.type = type_of_number(*type);
  given.axis = axis;
  given.symmetric = symmetric;
  given.reduce_range = reduce_range;
  given.range = {least, most};
  if (scale) given.scale = QuantizedScale{*scale, zero_point.value_or(0)};
}

void bind_static_options(py::module_& m) {
  using Options = StaticQuantization;
  py::class_<Options>(m, "StaticQuantization", "Options of Model.quantize_static().")
      .def(py::init<>())
      .def_readwrite("qoperator", &Options::qoperator)
      .def_readwrite("op_types", &Options::op_types)
      .def_readwrite("per_channel", &Options::per_channel)
      .def_readwrite("reduce_range", &Options::reduce_range)
      .def_property(
          "activation_type",
          [](const Options& options) { return static_cast<int>(options.activation_type); },
          [](Options& options, int number) { options.activation_type = type_of_number(number); })
      .def_property(
          "weight_type",
          [](const Options& options) { return static_cast<int>(options.weight_type); },
          [](Options& options, int number) { options.weight_type = type_of_number(number); })
      .def_readwrite("nodes_to_quantize", &Options::nodes_to_quantize)
      .def_readwrite("nodes_to_exclude", &Options::nodes_to_exclude)
      .def_readwrite("activation_symmetric", &Options::activation_symmetric)
      .def_readwrite("activation_restricted", &Options::activation_restricted)
      .def_readwrite("weight_symmetric", &Options::weight_symmetric)
      .def_readwrite("force_direct", &Options::force_direct)
      .def_readwrite("pair_for_weights", &Options::pair_for_weights)
      .def_readwrite("quantize_bias", &Options::quantize_bias)
      .def_readwrite("keep_removable", &Options::keep_removable)
      .def_readwrite("adjust_weights", &Options::adjust_weights)
      .def_readwrite("microsoft_domain", &Options::microsoft_domain)
      .def_readwrite("constant_weights", &Options::constant_weights)
      .def_readwrite("ops_without_output", &Options::ops_without_output)
      .def_readwrite("axis_by_op", &Options::axis_by_op)
      .def_readwrite("least_range", &Options::least_range)
      .def("add_override", add_override, py::arg("tensor"), py::kw_only(),
           py::arg("type") = py::none(), py::arg("axis") = py::none(),
           py::arg("symmetric") = py::none(), py::arg("reduce_range") = py::none(),
           py::arg("least") = py::none(), py::arg("most") = py::none(),
           py::arg("scale") = py::none(), py::arg("zero_point") = py::none());
}

void bind_options(py::module_& m) {
  py::class_<DynamicQuantization>(m, "DynamicQuantization", "Options of Model.quantize_dynamic().")
      .def(py::init<>())
      .def(py::init<const DynamicQuantization&>())
      .def_readwrite("op_types", &DynamicQuantization::op_types)
      .def_readwrite("per_channel", &DynamicQuantization::per_channel)
      .def_readwrite("reduce_range", &DynamicQuantization::reduce_range)
      .def_property(
          "weight_type",
          [](const DynamicQuantization& options) { return static_cast<int>(options.weight_type); },
          [](DynamicQuantization& options, int number) {
            options.weight_type = type_of_number(number);
          })
      .def_readwrite("nodes_to_quantize", &DynamicQuantization::nodes_to_quantize)
      .def_readwrite("nodes_to_exclude", &DynamicQuantization::nodes_to_exclude)
      .def_readwrite("weight_symmetric", &DynamicQuantization::weight_symmetric)
      .def_readwrite("activation_symmetric", &DynamicQuantization::activation_symmetric)
      .def_readwrite("subgraphs", &DynamicQuantization::subgraphs)
      .def_readwrite("force_direct", &DynamicQuantization::force_direct)
      .def_readwrite("const_b_only", &DynamicQuantization::const_b_only)
      .def_readwrite("least_range", &DynamicQuantization::least_range)
      .def_readwrite("outputs_to_keep", &DynamicQuantization::outputs_to_keep);
}

void bind_precision_options(py::module_& m) {
  using Options = PrecisionConversion;
  py::class_<Options>(m, "PrecisionConversion", "Options of Model.convert_precision().")
      .def(py::init<>())
      .def_property(
          "type", [](const Options& options) { return torch_name_of(options.type); },
          [](Options& options, const std::string& name) { options.type = parse_dtype(name); })
      .def_readwrite("weights_only", &Options::weights_only)
      .def_readwrite("keep_io_types", &Options::keep_io_types)
      .def_readwrite("op_types_to_keep", &Options::op_types_to_keep)
      .def_readwrite("nodes_to_keep", &Options::nodes_to_keep)
      .def_readwrite("wide_values", &Options::wide_values);
}

}  // namespace

void bind_quantization(py::module_& m) {
  bind_options(m);
  bind_precision_options(m);
  bind_static_options(m);
  py::class_<QuantizationReport>(m, "QuantizationReport")
      .def_readonly("notes", &QuantizationReport::notes)
      .def("rows", &rows_of,
           "Facts by node. Errors of weights are there once the model is written.");
  // Local: the extension of training binds the same class under another name.
  py::class_<OnnxModel, std::shared_ptr<OnnxModel>>(m, "Model", "An ONNX model as its file has it.",
                                                    py::module_local())
      .def(py::init(&read_model), py::arg("model"), "From a path or bytes.")
      .def("copy", [](const OnnxModel& model) { return std::make_shared<OnnxModel>(model); })
      .def("write", &write_model, py::arg("path"), py::arg("external_threshold"))
      .def("nodes", &nodes_of,
           "(name, domain, op, inputs, outputs) of each node of the main graph.")
      .def_property_readonly("opset", &standard_opset)
      .def_property_readonly("weight_bytes", &weight_bytes)
      .def("expose", &expose_values, py::arg("names"), "Adds values to the outputs.")
      .def("computed_inputs", &computed_inputs, py::arg("output"))
      .def("cut", &cut, py::arg("output"), py::arg("inputs"), "One node as a model.")
      .def_property_readonly("metadata", [](const OnnxModel& model) { return model.metadata; })
      .def(
          "quantize_dynamic",
          [](OnnxModel& model, const DynamicQuantization& options) {
            const py::gil_scoped_release released;
            model = checked(model);
            return quantize_dynamic(model, options);
          },
          py::arg("options"))
      .def(
          "convert_precision",
          [](OnnxModel& model, const PrecisionConversion& options) {
            const py::gil_scoped_release released;
            model = checked(model);
            return convert_precision(model, options);
          },
          py::arg("options"))
      .def(
          "computed_floats", [](const OnnxModel& model) { return computed_floats(checked(model)); },
          "Names of float32 values that nodes compute.")
      .def(
          "values_to_calibrate",
          [](const OnnxModel& model, const StaticQuantization& options) {
            return values_to_calibrate(checked(model), options);
          },
          py::arg("options"))
      .def("add_ranges", &add_ranges, py::arg("names"),
           "Adds least and largest element of each value to the outputs.")
      .def(
          "quantize_static",
          [](OnnxModel& model, const StaticQuantization& options, ValueRanges ranges) {
            const py::gil_scoped_release released;
            model = checked(model);
            return quantize_static(model, options, std::move(ranges));
          },
          py::arg("options"), py::arg("ranges"));
}

}  // namespace ortmodule::bindings
