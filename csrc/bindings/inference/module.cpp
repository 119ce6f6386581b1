// The Python module of inference sessions. It needs no torch: tensors are numpy arrays.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/version.h"
#include "bindings/inference/arrays.h"
#include "bindings/inference/topics.h"
#include "inference/inference_session.h"
#include "onnx/onnx_reader.h"
#include "onnx/onnx_types.h"
#include "ops/onnx_call.h"

namespace py = pybind11;

namespace ortmodule::bindings {
namespace {

/// What a run reads: arrays, which it keeps, and values. A list is a sequence, None an optional
/// without an element.
struct Feeds {
  std::vector<py::object> held;
  std::vector<HostFeed> feeds;

  explicit Feeds(const py::list& values) {
    for (const py::handle value : values) {
      HostFeed& feed = feeds.emplace_back();
      feed.is_sequence = py::isinstance<py::list>(value);
      if (!feed.is_sequence)
        add(feed, value);
      else
        for (const py::handle element : py::reinterpret_borrow<py::list>(value)) add(feed, element);
    }
  }

  void add(HostFeed& feed, py::handle value) {
    if (value.is_none()) return;
    if (!py::isinstance<SharedValue>(value)) {
      feed.tensors.push_back(view_of(value, held));
      return;
    }
    const auto& shared = py::cast<const SharedValue&>(value);
    feed.is_sequence = feed.is_sequence || shared.is_sequence;
    for (const SharedTensor& tensor : shared.tensors) feed.tensors.push_back(tensor.view());
    held.push_back(py::reinterpret_borrow<py::object>(value));
  }
};

py::object dim_object(const OnnxDim& dim) {
  if (const auto* size = std::get_if<int64_t>(&dim)) return py::int_(*size);
  if (const auto* name = std::get_if<std::string>(&dim)) return py::str(*name);
  return py::none();
}

std::string type_text(const OnnxType& type) {
  switch (type.kind) {
    case OnnxType::Kind::Sequence:
      return str("seq(", type.element ? type_text(*type.element) : "", ")");
    case OnnxType::Kind::Optional:
      return str("optional(", type.element ? type_text(*type.element) : "", ")");
    case OnnxType::Kind::SparseTensor:
      return str("sparse_tensor(", onnx_type_name(type.element_type), ")");
    case OnnxType::Kind::Map: return "map";
    default: return str("tensor(", onnx_type_name(type.element_type), ")");
  }
}

/// (name, type as onnxruntime writes it, sizes)
py::tuple describe(const OnnxValue& value) {
  py::list dims;
  if (value.type.dims)
    for (const OnnxDim& dim : *value.type.dims) dims.append(dim_object(dim));
  return py::make_tuple(value.name, type_text(value.type), dims);
}

std::unique_ptr<InferenceSession> open_session(const py::object& model, InferenceOptions options) {
  std::shared_ptr<LoadedModel> loaded;
  if (py::isinstance<py::bytes>(model)) {
    // The caller's object holds the bytes; the tensors keep it alive.
    auto* object = new py::object(model);
    std::shared_ptr<const void> owner(object, [](const void* held) {
      const py::gil_scoped_acquire gil;
      delete static_cast<const py::object*>(held);
    });
    const std::string_view bytes(PyBytes_AS_STRING(model.ptr()),
                                 static_cast<size_t>(PyBytes_GET_SIZE(model.ptr())));
    loaded = std::make_shared<LoadedModel>(parse_onnx_model({std::move(owner), bytes}, "bytes"));
  } else {
    const auto path = py::cast<std::string>(model);
    const py::gil_scoped_release released;
    loaded = std::make_shared<LoadedModel>(read_onnx_model(path));
  }
  return std::make_unique<InferenceSession>(std::move(loaded), std::move(options));
}

py::list run(InferenceSession& session, const py::list& values) {
  const Feeds feeds(values);
  std::vector<HostResult> outputs;
  {
    const py::gil_scoped_release released;
    outputs = session.run(feeds.feeds);
  }
  py::list results;
  for (HostResult& output : outputs) results.append(to_arrays(SharedValue(std::move(output))));
  return results;
}

/// As run(), with values in place of arrays.
std::vector<SharedValue> run_values(InferenceSession& session, const py::list& values) {
  const Feeds feeds(values);
  const py::gil_scoped_release released;
  std::vector<HostResult> outputs = session.run(feeds.feeds);
  std::vector<SharedValue> results;
  for (HostResult& output : outputs) results.emplace_back(std::move(output));
  return results;
}

py::dict to_dict(const InferenceMemory& memory) {
  py::dict report;
  report["weights_bytes"] = memory.weights;
  report["outputs_bytes"] = memory.outputs;
  report["peak_bytes"] = memory.peak;
  report["total_bytes"] = memory.total;
  report["exact"] = memory.exact;
  return report;
}

py::dict memory(InferenceSession& session, const py::list& values) {
  return to_dict(session.memory(Feeds(values).feeds));
}

/// What memory() needs of an input: its type and sizes, without data.
py::dict memory_of_shapes(InferenceSession& session,
                          const std::vector<std::vector<int64_t>>& shapes) {
  std::vector<HostFeed> feeds;
  for (size_t i = 0; i < shapes.size() && i < session.inputs().size(); ++i)
    feeds.emplace_back(HostTensorView{session.inputs()[i]->type.dtype, shapes[i], nullptr});
  return to_dict(session.memory(feeds));
}

py::list operators() {
  py::list rows;
  for (const OnnxRow* row : all_onnx_rows())
    rows.append(py::make_tuple(std::string(row->domain), std::string(row->op), row->since));
  return rows;
}

}  // namespace
}  // namespace ortmodule::bindings

PYBIND11_MODULE(_inference, m) {
  using namespace ortmodule;
  using namespace ortmodule::bindings;
  m.doc() = "Inference sessions of ortmodule_py, without torch.";
  m.attr("__version__") = std::string(version());
  // Local: in a process with torch, the extension of training translates Error in its own way.
  py::register_local_exception<Error>(m, "EngineError", PyExc_RuntimeError);
  bind_values(m);
  m.def("operators", &operators, "The ONNX operators with a rule: (domain, name, since).");
  py::class_<InferenceOptions>(m, "Options", "How a session runs a model; see InferenceOptions.")
      .def(py::init<>())
      .def_readwrite("threads", &InferenceOptions::threads)
      .def_readwrite("fixed_sizes", &InferenceOptions::fixed_sizes)
      .def_readwrite("seed", &InferenceOptions::seed);
  py::class_<InferenceSession>(m, "Session", "An ONNX model that is planned and run.")
      .def(py::init(&open_session), py::arg("model"), py::arg("options") = InferenceOptions())
      .def("inputs",
           [](const InferenceSession& session) {
             py::list list;
             for (const OnnxValue* input : session.inputs()) list.append(describe(*input));
             return list;
           })
      .def("outputs",
           [](const InferenceSession& session) {
             py::list list;
             for (const OnnxValue& output : session.outputs()) list.append(describe(output));
             return list;
           })
      .def("run", &run, py::arg("feeds"), "Arrays by input; returns arrays by output.")
      .def("run_values", &run_values, py::arg("feeds"), "The same; returns values by output.")
      .def("memory", &memory, py::arg("feeds"))
      .def("memory_of_shapes", &memory_of_shapes, py::arg("shapes"))
      .def("plan", [](InferenceSession& session,
                      const py::list& arrays) { return session.plan_text(Feeds(arrays).feeds); })
      .def_property_readonly("last_peak_bytes", &InferenceSession::last_peak_bytes)
      .def_property_readonly("copied_bytes", &InferenceSession::copied_bytes);
  bind_io_binding(m);
}
