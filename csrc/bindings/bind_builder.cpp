// The graph builder as Python sees it: arguments become TorchArg, tensors that the program closed
// over are kept for the session.
#include <ATen/ExpandUtils.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include "bindings/engine.h"
#include "bindings/topics.h"
#include "exporter/graph_builder.h"
#include "ir/text.h"
#include "kernels/kernel.h"
#include "ops/op_def.h"

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

TorchArg to_arg(const py::handle& object, const GraphBuilder& builder) {
  if (object.is_none()) return {std::monostate{}};
  if (py::isinstance<PyVal>(object)) return {builder.value(object.cast<const PyVal&>().id)};
  if (py::isinstance<PyDim>(object)) return {object.cast<const PyDim&>().expr};
  if (py::isinstance<PyDType>(object)) return {object.cast<const PyDType&>().dtype};
  if (py::isinstance<PyOpaque>(object)) return {TorchOpaque{object.cast<const PyOpaque&>().text}};
  if (py::isinstance<py::bool_>(object)) return {object.cast<bool>()};
  if (py::isinstance<py::int_>(object)) return {DimExpr(object.cast<int64_t>())};
  if (py::isinstance<py::float_>(object)) return {object.cast<double>()};
  if (py::isinstance<py::str>(object)) return {object.cast<std::string>()};
  TorchArgList list;
  for (const py::handle& entry : object) list.push_back(to_arg(entry, builder));
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

/// Whether the operator draws from a generator of torch's.
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

/// Whether the op that converts `target` runs on the device. One without a kernel there, which is
/// no composition of others either, leaves the call to torch's dispatcher.
bool runs_on(Device device, const std::string& target) {
  static const auto owners = [] {
    std::map<std::string_view, const OpDef*> found;
    for (const OpDef* op : all_ops())
      for (const TorchRow& row : op->from_torch) found[row.target] = op;
    return found;
  }();
  const auto owner = owners.find(target);
  if (owner == owners.end()) return true;
  const OpDef& op = *owner->second;
  if (op.kind == OpKind::View || op.kind == OpKind::Pointwise || !op.body.empty()) return true;
  const std::vector<const KernelDef*> kernels = kernels_of(op.name);
  return kernels.empty() ||
         std::any_of(kernels.begin(), kernels.end(),
                     [&](const KernelDef* kernel) { return kernel->device == device; });
}

Device kernels_for(const std::string& name) {
  ORTM_CHECK(name == "cpu" || name == "cuda", "[builder] kernels must be cpu or cuda, but found ",
             name);
  return name == "cuda" ? Device::CUDA : Device::CPU;
}

/// A GraphBuilder together with what only torch knows: strides of values and constants' data.
class PyGraphBuilder {
 public:
  /// With `torch_random`, everything random runs through torch's own operators, in eager's order.
  PyGraphBuilder(bool torch_random, Device kernels, PyGraphBuilder* parent = nullptr)
      : parent_(parent), torch_random_(torch_random), kernels_(kernels) {
    if (parent) builder_.share_symbols(parent->builder_);
  }

  bool has_rule(const std::string& target) const {
    return GraphBuilder::has_rule(target) && runs_on(kernels_, target) &&
           !(torch_random_ && draws_random_numbers(target));
  }

  int input(const std::string& name, const std::string& kind, const std::string& dtype,
            const py::list& sizes, const py::list& strides, bool requires_grad, bool) {
    const InputKind input_kind = kind == "parameter" ? InputKind::Parameter
                                 : kind == "buffer"  ? InputKind::Buffer
                                                     : InputKind::User;
    const int id =
        builder_.input(name, parse_dtype(dtype), to_dims(sizes), requires_grad, input_kind);
    remember_strides({id}, {to_dims(strides)});
    return id;
  }

  int symint_input(const std::string& symbol, int64_t, double least, double greatest) {
    builder_.symint_input(symbol, {least, greatest});
    return -1;
  }

  /// A constant of a backward body becomes one of the piece, saved for the body.
  int constant(const at::Tensor& tensor) {
    if (parent_) return body_input("saved", parent_->constant(tensor));
    const int id = builder_.constant("constant", to_dtype(tensor.scalar_type()),
                                     Dims(tensor.sizes().begin(), tensor.sizes().end()));
    remember_strides({id}, {Dims(tensor.strides().begin(), tensor.strides().end())});
    constants_.push_back(tensor);
    return id;
  }

  py::object call(const std::string& target, const py::list& args, const py::sequence& outputs,
                  const std::pair<std::string, std::string>& origin, const std::string& tag,
                  bool gradient) {
    std::vector<std::pair<std::string, TorchArg>> converted;
    const bool random = draws_random_numbers(target);
    MemoryOrders orders;
    for (const py::handle& entry : args) {
      const auto pair = entry.cast<py::tuple>();
      note_orders(pair[1], random, orders);
      converted.emplace_back(pair[0].cast<std::string>(), to_arg(pair[1], builder_));
    }
    std::vector<TorchOutput> types;
    std::vector<Dims> strides;
    for (const py::handle& entry : outputs) {
      types.push_back(to_output(entry));
      strides.push_back(types.back().strides);
    }
    const bool own_ops = !(random && torch_random_) && runs_on(kernels_, target);
    const CallResult ids =
        builder_.call(target, std::move(converted), std::move(types), {origin.first, origin.second},
                      tag, random, gradient, own_ops, orders);
    if (!ids) return py::none();
    remember_strides(*ids, strides);
    return py::cast(*ids);
  }

  std::vector<int> custom_gradient(const std::vector<int>& outputs, const std::vector<int>& inputs,
                                   const std::vector<int>&, PyGraphBuilder& body) {
    ExportedPiece piece = body.builder_.take();
    const std::vector<int> ids =
        builder_.custom_gradient(outputs, inputs, body.saved_, std::move(piece.graph));
    std::vector<Dims> strides;
    for (int id : outputs) strides.push_back(strides_of(id));
    remember_strides(ids, strides);
    return ids;
  }

  /// A backward body for the gradients of `outputs`.
  std::unique_ptr<PyGraphBuilder> body(const std::vector<int>& outputs) {
    auto body = std::make_unique<PyGraphBuilder>(torch_random_, kernels_, this);
    body->gradient_of_ = outputs;
    return body;
  }

  int body_input(const std::string&, int id) {
    const Value* value = parent_->builder_.value(id);
    saved_.push_back(id);
    const int input =
        builder_.input(value->name, value->dtype, value->dims, false, InputKind::User);
    remember_strides({input}, {parent_->strides_of(id)});
    return input;
  }

  int grad_input(int index) {
    const Value* output = parent_->builder_.value(gradient_of_.at(static_cast<size_t>(index)));
    return builder_.input("d_" + output->name, output->dtype, output->dims, false,
                          InputKind::GradOutput, index);
  }

  void body_output(const std::vector<int>& grads) {
    for (int id : grads)
      builder_.graph().add_output(id >= 0 ? builder_.value(id) : nullptr, OutputKind::Output, 0);
  }

  void mutate(int argument, int value) { builder_.mutate(argument, value); }
  void alias_output(int output, int argument) { aliases_.emplace_back(output, argument); }

  void output_strides(int output, const py::list& strides) {
    output_strides_[output] = to_dims(strides);
  }

  void outputs(const py::list& values) {
    int position = 0;
    for (const py::handle& value : values) {
      int argument = -1;
      for (const auto& [output, input] : aliases_)
        if (output == position) argument = input;
      const auto stated = output_strides_.find(position++);
      if (argument >= 0) {
        builder_.output_argument(argument);
      } else if (py::isinstance<PyVal>(value)) {
        const int id = value.cast<const PyVal&>().id;
        builder_.output(id, stated != output_strides_.end() ? stated->second : strides_of(id));
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
  void remember_strides(const std::vector<int>& ids, const std::vector<Dims>& strides) {
    for (size_t i = 0; i < ids.size() && i < strides.size(); ++i) {
      if (ids[i] < 0) continue;
      const auto id = static_cast<size_t>(ids[i]);
      if (strides_.size() <= id) strides_.resize(id + 1);
      strides_[id] = strides[i];
    }
  }
  /// Adds how the tensors of an argument lay when they were traced: those in row-major order, and
  /// where numbers are drawn in the order of memory, the others.
  void note_orders(const py::handle& argument, bool random, MemoryOrders& orders) const {
    if (py::isinstance<PyVal>(argument)) {
      const int id = argument.cast<const PyVal&>().id;
      const Value* value = builder_.value(id);
      // The piece's own inputs lie as they did: Dynamo guards that.
      if (value->rank() < 2 || !(value->producer() || parent_)) return;
      std::vector<int64_t> order = memory_order(value->dims, strides_of(id));
      if (order.empty() && random) order = order_of_strides(value->dims, strides_of(id));
      const bool row_major = std::is_sorted(order.begin(), order.end());
      if (!order.empty() && (row_major || random)) orders[value] = std::move(order);
    } else if (py::isinstance<py::list>(argument) || py::isinstance<py::tuple>(argument)) {
      for (const py::handle& entry : argument) note_orders(entry, random, orders);
    }
  }
  /// The dims from the outermost in memory to the innermost; empty if the tensor is not dense.
  static std::vector<int64_t> memory_order(const Dims& sizes, const Dims& strides) {
    const size_t rank = strides.size() == sizes.size() ? sizes.size() : 0;
    std::vector<int64_t> order;
    std::vector<bool> placed(rank, false);
    for (DimExpr expected = 1; order.size() < rank;) {
      size_t next = rank;
      for (size_t d = rank; d-- > 0 && next == rank;)
        if (!placed[d] && (sizes[d] == DimExpr(1) || strides[d] == expected)) next = d;
      if (next == rank) return {};
      placed[next] = true;
      expected = expected * sizes[next];
      order.insert(order.begin(), static_cast<int64_t>(next));
    }
    return order;
  }
  /// The same for a tensor with gaps or expanded, of the dense one that torch makes in its
  /// likeness; empty where equal strides leave the choice to sizes. Dims of size 1 may be anywhere.
  /// Strides are multiples of one another, so that any value of the symbols gives their order.
  static std::vector<int64_t> order_of_strides(const Dims& sizes, const Dims& strides) {
    constexpr int64_t kAnySize = 64;
    SymbolValues values;
    std::vector<std::string> symbols;
    for (const DimExpr& stride : strides) stride.collect_symbols(symbols);
    for (const std::string& symbol : symbols) values.bind(symbol, kAnySize);
    std::vector<int64_t> order, wide, lengths, steps;
    for (size_t d = 0; d < strides.size(); ++d) {
      const bool is_wide = sizes[d] != DimExpr(1);
      const int64_t step = strides[d].evaluate(values);
      for (int64_t other : wide)
        if (is_wide && step != 0 && step == steps[static_cast<size_t>(other)]) return {};
      (is_wide ? wide : order).push_back(static_cast<int64_t>(d));
      lengths.push_back(is_wide ? 2 : 1);
      steps.push_back(step);
    }
    const std::vector<int64_t> likeness = at::infer_dense_strides(lengths, steps);
    std::ranges::sort(wide, std::greater<>(),
                      [&](int64_t d) { return likeness[static_cast<size_t>(d)]; });
    order.insert(order.end(), wide.begin(), wide.end());
    return order;
  }
  Dims strides_of(int id) const {
    const auto at = static_cast<size_t>(id);
    return at < strides_.size() ? strides_[at] : Dims{};
  }

  GraphBuilder builder_;
  PyGraphBuilder* parent_ = nullptr;
  bool torch_random_ = false;
  Device kernels_ = Device::CPU;
  std::vector<int> saved_;
  std::vector<int> gradient_of_;  // body: the parent's outputs
  std::vector<Dims> strides_;
  std::vector<at::Tensor> constants_;
  std::vector<std::pair<int, int>> aliases_;
  std::map<int, Dims> output_strides_;
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
  py::class_<PyOpaque>(m, "Opaque", "A device, layout or memory format.")
      .def(py::init<std::string>());
  py::class_<PyGraphBuilder> cls(m, "GraphBuilder",
                                 "Receives a captured program; see ortmodule_py/graph_builder.py.");
  cls.def(py::init([](bool torch_random, const std::string& kernels) {
            return std::make_unique<PyGraphBuilder>(torch_random, kernels_for(kernels));
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
