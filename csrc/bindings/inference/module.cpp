// The Python module of inference sessions. It needs no torch: tensors are numpy arrays.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/version.h"
#include "inference/inference_session.h"
#include "onnx/onnx_reader.h"
#include "onnx/onnx_types.h"
#include "ops/onnx_call.h"

namespace py = pybind11;

namespace ortmodule::bindings {
namespace {

/// The element type of a numpy array, by its name; Undefined if the engine lacks it.
DType dtype_of(const py::array& array) {
  const auto name = py::cast<std::string>(array.dtype().attr("name"));
  for (int number = 0; number < 32; ++number) {
    const DType dtype = onnx_dtype(number);
    if (dtype != DType::Undefined && torch_name_of(dtype) == name) return dtype;
  }
  return DType::Undefined;
}

py::dtype numpy_dtype(DType dtype) {
  if (dtype == DType::BFloat16)
    return py::dtype::from_args(py::module_::import("ml_dtypes").attr("bfloat16"));
  return py::dtype(std::string(torch_name_of(dtype)));
}

/// Row-major arrays, kept alive while a run reads them. A list is a sequence, None an optional
/// without an element.
struct Feeds {
  std::vector<py::array> held;
  std::vector<HostFeed> feeds;

  explicit Feeds(const py::list& values) {
    for (const py::handle value : values) {
      HostFeed& feed = feeds.emplace_back();
      feed.is_sequence = py::isinstance<py::list>(value);
      if (feed.is_sequence)
        for (const py::handle element : py::reinterpret_borrow<py::list>(value))
          feed.tensors.push_back(view(element));
      else if (!value.is_none())
        feed.tensors.push_back(view(value));
    }
  }

  HostTensorView view(py::handle value) {
    py::array array = py::array::ensure(value, py::array::c_style);
    if (!array) throw py::error_already_set();
    HostTensorView view;
    view.dtype = dtype_of(array);
    for (py::ssize_t d = 0; d < array.ndim(); ++d) view.sizes.push_back(array.shape(d));
    view.data = array.data();
    held.push_back(std::move(array));
    return view;
  }
};

/// An array that owns the tensor's memory.
py::array to_array(HostTensor tensor) {
  const std::vector<py::ssize_t> shape(tensor.sizes.begin(), tensor.sizes.end());
  const py::dtype dtype = numpy_dtype(tensor.dtype);
  if (!tensor.memory) return py::array(dtype, shape);
  const void* data = tensor.memory.data();
  auto owned = std::make_unique<Buffer>(std::move(tensor.memory));
  const py::capsule owner(owned.release(),
                          [](void* buffer) { delete static_cast<Buffer*>(buffer); });
  return py::array(dtype, shape, data, owner);
}

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
  for (HostResult& output : outputs) {
    py::list tensors;
    for (HostTensor& tensor : output.tensors) tensors.append(to_array(std::move(tensor)));
    if (output.is_sequence)
      results.append(tensors);
    else
      results.append(output.tensors.empty() ? py::object(py::none()) : py::object(tensors[0]));
  }
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
      .def("memory", &memory, py::arg("feeds"))
      .def("memory_of_shapes", &memory_of_shapes, py::arg("shapes"))
      .def("plan", [](InferenceSession& session,
                      const py::list& arrays) { return session.plan_text(Feeds(arrays).feeds); })
      .def_property_readonly("last_peak_bytes", &InferenceSession::last_peak_bytes);
}
