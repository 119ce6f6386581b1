// The graph builder in Python. Converts arguments to TorchArg, and keeps tensors that the program
// closes over for the session.
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/version.h>

#include <memory>
#include <utility>
#include <vector>

#include "bindings/casts/sizes.h"
#include "bindings/engine.h"
#include "bindings/topics.h"
#include "exporter/graph_builder.h"
#include "ir/text.h"

namespace ortmodule::bindings {
namespace py = pybind11;
namespace {

struct PyVal {
  int id;
};
struct PyDim {
  DimExpr expr;
};
struct PyDType {
  DType dtype;
};
struct PyOpaque {
  std::string text;
};

DimExpr to_dim(const py::handle& object) {
  if (py::isinstance<PyDim>(object)) return object.cast<const PyDim&>().expr;
  return DimExpr(object.cast<int64_t>());
}

Dims to_dims(const py::handle& sizes) {
  Dims dims;
  for (const py::handle& size : sizes) dims.push_back(to_dim(size));
  return dims;
}

/// `operands` collects the ids of the tensors.
TorchArg to_arg(const py::handle& object, const GraphBuilder& builder, std::vector<int>& operands) {
  if (object.is_none()) return {std::monostate{}};
  if (py::isinstance<PyVal>(object)) {
    operands.push_back(object.cast<const PyVal&>().id);
    return {builder.value(operands.back())};
  }
  if (py::isinstance<PyDim>(object)) return {object.cast<const PyDim&>().expr};
  if (py::isinstance<PyDType>(object)) return {object.cast<const PyDType&>().dtype};
  if (py::isinstance<PyOpaque>(object)) return {TorchOpaque{object.cast<const PyOpaque&>().text}};
  if (py::isinstance<py::bool_>(object)) return {object.cast<bool>()};
  if (py::isinstance<py::int_>(object)) return {DimExpr(object.cast<int64_t>())};
  if (py::isinstance<py::float_>(object)) return {object.cast<double>()};
  if (py::isinstance<py::str>(object)) return {object.cast<std::string>()};
  TorchArgList list;
  for (const py::handle& entry : object) list.push_back(to_arg(entry, builder, operands));
  return {std::move(list)};
}

TorchOutput to_output(const py::handle& object) {
  TorchOutput output;
  output.present = !object.is_none();
  if (!output.present) return output;
  output.dtype = parse_dtype(object["dtype"].cast<std::string>());
  output.dims = to_dims(object["sizes"]);
  output.strides = to_dims(object["strides"]);
  return output;
}

/// Whether the operator draws from a torch generator.
bool draws_random_numbers(const std::string& target) {
  const size_t dot = target.find('.');
  const size_t last = target.rfind('.');
  if (dot == std::string::npos || last == dot) return false;
  const std::string name = target.substr(0, dot) + "::" + target.substr(dot + 1, last - dot - 1);
  const std::string overload = target.substr(last + 1);
  const auto schema = c10::Dispatcher::singleton().findSchema(
      {name, overload == "default" ? std::string() : overload});
  return schema && schema->hasTag(at::Tag::nondeterministic_seeded);
}

Device kernels_for(const std::string& name) {
  ORTM_CHECK(name == "cpu" || name == "cuda", "[builder] kernels must be cpu or cuda, but found ",
             name);
  return name == "cuda" ? Device::CUDA : Device::CPU;
}

/// A GraphBuilder, with the data of constants and the programs of backward bodies.
class PyGraphBuilder {
 public:
  explicit PyGraphBuilder(BuilderOptions options) : builder_(options) {}
  /// A backward body for the gradients of `outputs`.
  PyGraphBuilder(PyGraphBuilder& parent, std::vector<int> outputs)
      : builder_(parent.builder_.body()), parent_(&parent), gradient_of_(std::move(outputs)) {}

  bool has_rule(const std::string& target) const {
    return builder_.has_rule(target, draws_random_numbers(target));
  }

  int input(const std::string& name, const std::string& kind, const std::string& dtype,
            const py::list& sizes, const py::list& strides, bool requires_grad) {
    const InputKind input_kind = kind == "parameter" ? InputKind::Parameter
                                 : kind == "buffer"  ? InputKind::Buffer
                                                     : InputKind::User;
    return builder_.input(name, parse_dtype(dtype), to_dims(sizes), to_dims(strides), requires_grad,
                          input_kind);
  }

  int symint_input(const std::string& symbol, double least, double greatest) {
    builder_.symint_input(symbol, {least, greatest});
    return -1;
  }

  /// A constant of a backward body becomes one of the piece, saved for the body.
  int constant(const at::Tensor& tensor) {
    if (parent_) return body_input(parent_->constant(tensor));
    const int id = builder_.constant("constant", to_dtype(tensor.scalar_type()),
                                     Dims(tensor.sizes().begin(), tensor.sizes().end()),
                                     Dims(tensor.strides().begin(), tensor.strides().end()));
    constants_.push_back(tensor);
    return id;
  }

  py::object call(const std::string& target, const py::list& args, const py::sequence& outputs,
                  const std::pair<std::string, std::string>& origin, const std::string& tag,
                  bool gradient) {
    TracedCall traced;
    traced.target = target;
    for (const py::handle& entry : args) {
      const auto pair = entry.cast<py::tuple>();
      traced.args.emplace_back(pair[0].cast<std::string>(),
                               to_arg(pair[1], builder_, traced.operands));
    }
    for (const py::handle& entry : outputs) traced.outputs.push_back(to_output(entry));
    traced.origin = {origin.first, origin.second};
    traced.tag = tag;
    traced.random = draws_random_numbers(target);
    traced.gradient = gradient;
    const CallResult ids = builder_.call(traced);
    return ids ? py::cast(*ids) : py::none();
  }

  std::vector<int> custom_gradient(const std::vector<int>& outputs, const std::vector<int>& inputs,
                                   PyGraphBuilder& body, bool traced) {
    ExportedPiece piece = body.builder_.take();
    return builder_.custom_gradient(outputs, inputs, body.saved_, std::move(piece.graph), traced);
  }

  std::unique_ptr<PyGraphBuilder> body(std::vector<int> outputs) {
    return std::make_unique<PyGraphBuilder>(*this, std::move(outputs));
  }

  int body_input(int id) {
    const Value* value = parent_->builder_.value(id);
    saved_.push_back(id);
    return builder_.input(value->name, value->dtype, value->dims, parent_->builder_.strides(id),
                          false, InputKind::User);
  }

  int grad_input(int index) {
    const Value* output = parent_->builder_.value(gradient_of_.at(static_cast<size_t>(index)));
    return builder_.input("d_" + output->name, output->dtype, output->dims, {}, false,
                          InputKind::GradOutput, index);
  }

  void body_output(const std::vector<int>& grads) {
    for (int id : grads)
      builder_.graph().add_output(id >= 0 ? builder_.value(id) : nullptr, OutputKind::Output, 0);
  }

  void mutate(int argument, int value) { builder_.mutate(argument, value); }
  void alias_output(int output, int argument) { builder_.alias_output(output, argument); }

  void output_strides(int output, const py::list& strides) {
    builder_.output_strides(output, to_dims(strides));
  }

  void outputs(const py::list& values) {
    for (const py::handle& value : values) {
      if (py::isinstance<PyVal>(value)) {
        builder_.output(value.cast<const PyVal&>().id);
      } else if (value.is_none()) {
        builder_.output_none();
      } else {
        builder_.output_dim(to_dim(value));
      }
    }
  }

  std::string print() { return ortmodule::print(builder_.graph(), PrintOptions{true, true}); }

  GraphBuilder& builder() { return builder_; }
  std::vector<at::Tensor>& constants() { return constants_; }

 private:
  GraphBuilder builder_;
  PyGraphBuilder* parent_ = nullptr;
  std::vector<int> saved_;
  std::vector<int> gradient_of_;  // body: the parent's outputs
  std::vector<at::Tensor> constants_;
};

std::shared_ptr<CompiledPiece> finish(PyGraphBuilder& builder, const PieceOptions& options) {
  return std::make_shared<CompiledPiece>(builder.builder().take(), std::move(builder.constants()),
                                         options);
}

}  // namespace

void init_builder(py::module_& m) {
  py::class_<PyVal>(m, "Val", "A captured tensor.").def(py::init<int>());
  py::class_<PyDim>(m, "Dim", "A size expression as text, e.g. 's0*2'.")
      .def(py::init([](const std::string& text) { return PyDim{DimExpr::parse(text)}; }));
  py::class_<PyDType>(m, "DType", "An element type by torch's name.")
      .def(py::init([](const std::string& name) { return PyDType{parse_dtype(name)}; }));
  py::class_<PyOpaque>(m, "Opaque", "A device, layout, memory format or complex number.")
      .def(py::init<std::string>());
  py::class_<PyGraphBuilder> cls(m, "GraphBuilder",
                                 "Receives a captured program; see ortmodule_py/_C.pyi.");
  cls.def(py::init([](bool torch_random, const std::string& kernels) {
            return std::make_unique<PyGraphBuilder>(
                BuilderOptions{kernels_for(kernels), torch_random,
                               TorchVersion{TORCH_VERSION_MAJOR, TORCH_VERSION_MINOR}});
          }),
          py::arg("torch_random") = false, py::arg("kernels") = "cpu")
      .def("has_rule", &PyGraphBuilder::has_rule)
      .def("input", &PyGraphBuilder::input)
      .def("symint_input", &PyGraphBuilder::symint_input)
      .def("constant", &PyGraphBuilder::constant)
      .def("call", &PyGraphBuilder::call, py::arg("target"), py::arg("args"), py::arg("outputs"),
           py::arg("origin"), py::arg("tag") = "", py::arg("gradient") = false)
      .def("body", &PyGraphBuilder::body, py::keep_alive<0, 1>())
      .def("custom_gradient", &PyGraphBuilder::custom_gradient)
      .def("mutate", &PyGraphBuilder::mutate)
      .def("alias_output", &PyGraphBuilder::alias_output)
      .def("output_strides", &PyGraphBuilder::output_strides)
      .def("outputs", &PyGraphBuilder::outputs)
      .def("print", &PyGraphBuilder::print, "The graph so far as text.")
      .def("finish", &finish, "The compiled piece; the builder is empty afterwards.")
      // A backward body is a builder of its own.
      .def("body_input", &PyGraphBuilder::body_input)
      .def("grad_input", &PyGraphBuilder::grad_input)
      .def("output", &PyGraphBuilder::body_output);
  cls.attr("Val") = m.attr("Val");
  cls.attr("Dim") = m.attr("Dim");
  cls.attr("DType") = m.attr("DType");
  cls.attr("Opaque") = m.attr("Opaque");
}

}  // namespace ortmodule::bindings
