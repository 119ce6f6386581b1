// The Python module of inference sessions. It needs no torch: tensors are numpy arrays.
#include <pybind11/pybind11.h>

#include <atomic>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/version.h"
#include "bindings/casts/errors.h"
#include "bindings/casts/sizes.h"
#include "bindings/inference/arrays.h"
#include "bindings/inference/plan_timeline.h"
#include "bindings/inference/released_gil.h"
#include "bindings/inference/run_control.h"
#include "bindings/inference/texts.h"
#include "bindings/inference/topics.h"
#include "inference/inference_session.h"
#include "inference/likely_sizes.h"
#include "inference/shared_models.h"
#include "onnx/onnx_reader.h"
#include "onnx/onnx_types.h"
#include "ops/onnx_call.h"
#include "optimizer/pipeline.h"

namespace py = pybind11;

namespace ortmodule::bindings {
namespace {

/// What a run reads: arrays, which it keeps, and values. A list is a sequence, None an optional
/// without an element.
struct Feeds {
  std::vector<py::object> held;
  std::vector<HostFeed> feeds;
  std::optional<RunTexts> texts;  // of the run, if some feeds are texts

  Feeds(const InferenceSession& session, const py::list& values) : session_(session) {
    for (const py::handle value : values) {
      HostFeed& feed = feeds.emplace_back();
      feed.is_sequence = py::isinstance<py::list>(value);
      if (py::isinstance<py::dict>(value))
        add_map(feed, py::reinterpret_borrow<py::dict>(value), feeds.size() - 1);
      else if (!feed.is_sequence)
        add(feed, value);
      else
        for (const py::handle element : py::reinterpret_borrow<py::list>(value)) add(feed, element);
    }
  }

  void add(HostFeed& feed, py::handle value) {
    if (value.is_none()) return;
    if (!py::isinstance<SharedValue>(value)) {
      if (const auto array = py::array::ensure(value); array && has_texts(array))
        feed.tensors.push_back(text_numbers(array, run_texts(), held));
      else
        feed.tensors.push_back(view_of(value, held));
      return;
    }
    const auto& shared = py::cast<const SharedValue&>(value);
    feed.is_sequence = feed.is_sequence || shared.is_sequence;
    for (const SharedTensor& tensor : shared.tensors) feed.tensors.push_back(tensor.view());
    held.push_back(py::reinterpret_borrow<py::object>(value));
  }

  /// Keys and values, these of the type that the input declares.
  void add_map(HostFeed& feed, const py::dict& map, size_t input) {
    feed.is_map = true;
    const auto& inputs = session_.inputs();
    const OnnxType* type = input < inputs.size() ? &inputs[input]->type : nullptr;
    if (type && type->kind == OnnxType::Kind::Map) check_keys(*inputs[input], map);
    while (type && type->element) type = type->element.get();
    const auto numpy = py::module_::import("numpy");
    add(feed, numpy.attr("array")(py::list(map.attr("keys")())));
    try {
      add(feed, numpy.attr("array")(py::list(map.attr("values")()),
                                    numpy_dtype(type ? type->element_type : 0)));
    } catch (const py::error_already_set& error) {
      if (!error.matches(PyExc_ValueError) && !error.matches(PyExc_TypeError)) throw;
      throw Error(str("[run] input '", input < inputs.size() ? inputs[input]->name : "",
                      "' must be a dict of numbers, but found another value: ",
                      py::cast<std::string>(py::str(error.value()))));
    }
  }

  /// numpy would make texts of all keys if one is a text.
  static void check_keys(const OnnxValue& input, const py::dict& map) {
    constexpr int kString = 8;
    const bool texts = input.type.element_type == kString;
    for (const auto& [key, value] : map) {
      const bool fits = texts ? py::isinstance<py::str>(key) : PyIndex_Check(key.ptr()) != 0;
      ORTM_CHECK(fits, "[run] input '", input.name, "' must be a dict by ", texts ? "str" : "int",
                 ", but found the key ", py::cast<std::string>(py::repr(key)), " of type ",
                 py::cast<std::string>(py::str(py::type::of(key).attr("__name__"))));
    }
  }

  RunTexts& run_texts() {
    if (!texts) texts.emplace(session_.model().texts());
    return *texts;
  }

 private:
  const InferenceSession& session_;
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
    case OnnxType::Kind::Map:
      return str("map(", onnx_type_name(type.element_type), ",",
                 type.element ? type_text(*type.element) : "", ")");
    default: return str("tensor(", onnx_type_name(type.element_type), ")");
  }
}

/// (name, type as onnxruntime writes it, sizes, what the sizes denote by axis)
py::tuple describe(const OnnxValue& value, const OnnxFacts& facts) {
  py::list dims;
  if (value.type.dims)
    for (const OnnxDim& dim : *value.type.dims) dims.append(dim_object(dim));
  const auto denotations = facts.denotations.find(value.name);
  return py::make_tuple(
      value.name, type_text(value.type), dims,
      denotations == facts.denotations.end() ? py::dict() : py::cast(denotations->second));
}

template <class Values>
py::list describe_all(const InferenceSession& session, const Values& values) {
  const OnnxFacts& facts = session.model().facts();
  py::list list;
  for (const auto& value : values) {
    if constexpr (std::is_pointer_v<std::decay_t<decltype(value)>>)
      list.append(describe(*value, facts));
    else
      list.append(describe(value, facts));
  }
  return list;
}

py::dict metadata(const InferenceSession& session) {
  const OnnxModel& model = session.model().model();
  py::dict custom;
  for (const auto& [key, value] : model.metadata) custom[py::str(key)] = value;
  py::dict facts;
  facts["producer_name"] = model.producer;
  facts["graph_name"] = model.graph.name;
  facts["domain"] = session.model().facts().domain;
  facts["description"] = session.model().facts().doc;
  facts["graph_description"] = session.model().facts().graph_doc;
  facts["version"] = session.model().facts().version;
  facts["custom_metadata_map"] = custom;
  return facts;
}

/// Bytes that a Python object holds; the result keeps it alive.
SharedBytes bytes_of(py::object object, const void* data, size_t size) {
  return {keep(std::move(object)), std::string_view(static_cast<const char*>(data), size)};
}

/// Arrays by the name of the initializer that they replace, contents by name of an external file.
OnnxSubstitutes substitutes(const py::dict& initializers, const py::dict& files) {
  OnnxSubstitutes given;
  for (const auto& [name, value] : initializers) {
    const auto array = py::array::ensure(value, py::array::c_style);
    if (!array) throw py::error_already_set();
    const SharedTensor tensor = shared_tensor(array);  // in the machine's byte order
    const SharedBytes elements(tensor.owner, {static_cast<const char*>(tensor.data),
                                              static_cast<size_t>(tensor.byte_count())});
    given.initializers.emplace(py::cast<std::string>(name),
                               substitute(tensor.element_type, tensor.sizes.vector(), elements));
  }
  for (const auto& [name, value] : files) {
    const py::buffer_info info = py::reinterpret_borrow<py::buffer>(value).request();
    given.files.emplace(
        py::cast<std::string>(name),
        bytes_of(py::reinterpret_borrow<py::object>(value), info.ptr,
                 static_cast<size_t>(info.size) * static_cast<size_t>(info.itemsize)));
  }
  return given;
}

std::unique_ptr<InferenceSession> open_session(const py::object& model, InferenceOptions options,
                                               const py::dict& initializers, const py::dict& files,
                                               const std::string& folder) {
  const OnnxSubstitutes given = substitutes(initializers, files);
  const bool is_content = py::isinstance<py::bytes>(model);
  SharedBytes content;
  std::string path;
  if (is_content)
    content = SharedBytes::borrowed(PyBytes_AS_STRING(model.ptr()),
                                    static_cast<size_t>(PyBytes_GET_SIZE(model.ptr())));
  else
    path = py::cast<std::filesystem::path>(model).string();
  const ReleasedGil released;  // other threads run sessions meanwhile
  std::shared_ptr<LoadedModel> loaded;
  if (is_content) {
    OnnxFacts facts;
    // Most weights in it are at addresses that no kernel can read. Copying all of them here lets
    // the caller free the bytes.
    OnnxModel parsed = parse_onnx_model(content, "bytes", folder, given, &facts);
    loaded = std::make_shared<LoadedModel>(std::move(parsed), std::move(facts));
  } else {
    const bool shared = given.initializers.empty() && given.files.empty();
    loaded = shared ? load_shared_model(path) : load_model(path, given);
  }
  return std::make_unique<InferenceSession>(std::move(loaded), std::move(options));
}

py::list run(InferenceSession& session, const py::list& values,
             const std::shared_ptr<const RunControl>& control) {
  Feeds feeds(session, values);
  std::vector<HostResult> outputs;
  {
    const ReleasedGil released;
    outputs =
        session.run(feeds.feeds, {}, control ? &control->terminate : nullptr, &feeds.run_texts());
  }
  py::list results;
  for (HostResult& output : outputs)
    results.append(output.meaning.meaning == OnnxMeaning::Numbers
                       ? to_arrays(SharedValue(std::move(output)))
                       : to_texts_or_maps(output, feeds.run_texts()));
  return results;
}

/// As run(), with values in place of arrays.
std::vector<SharedValue> run_values(InferenceSession& session, const py::list& values,
                                    const std::shared_ptr<const RunControl>& control) {
  const Feeds feeds(session, values);
  const ReleasedGil released;
  std::vector<HostResult> outputs =
      session.run(feeds.feeds, {}, control ? &control->terminate : nullptr);
  std::vector<SharedValue> results;
  for (HostResult& output : outputs) results.emplace_back(std::move(output));
  return results;
}

/// As Feeds, where a tuple has the sizes of a tensor without data, and `sizes` those of inputs that
/// are None.
struct Shapes : Feeds {
  Shapes(const InferenceSession& session, const py::list& values,
         const std::map<std::string, int64_t>& sizes)
      : Feeds(session, without_tuples(values)) {
    for (size_t i = 0; i < feeds.size() && i < session.inputs().size(); ++i) {
      if (!py::isinstance<py::tuple>(values[i])) continue;
      feeds[i].tensors.push_back(tensor_of_sizes(*session.inputs()[i], py::cast<Sizes>(values[i])));
    }
    if (feeds.size() >= session.inputs().size()) session.named_sizes().complete(feeds, sizes);
  }

  static py::list without_tuples(const py::list& values) {
    py::list others;
    for (const py::handle value : values)
      others.append(py::isinstance<py::tuple>(value) ? py::handle(Py_None) : value);
    return others;
  }
};

py::dict memory(InferenceSession& session, const py::list& values,
                const std::map<std::string, int64_t>& sizes) {
  const Shapes shapes(session, values, sizes);
  InferenceMemory memory;
  {
    const ReleasedGil released;  // a model may be imported
    memory = session.memory(shapes.feeds);
  }
  py::dict report;
  report["weights_bytes"] = memory.weights;
  report["block_bytes"] = memory.block;
  report["outputs_bytes"] = memory.outputs;
  report["peak_bytes"] = memory.peak;
  report["total_bytes"] = memory.total;
  report["exact"] = memory.exact;
  report["parts"] = memory.parts;
  return report;
}

int64_t largest(InferenceSession& session, const std::string& name, int64_t limit_bytes,
                const py::list& values, const std::map<std::string, int64_t>& sizes, int64_t step) {
  std::map<std::string, int64_t> all = sizes;
  all.emplace(name, step);
  const Shapes shapes(session, values, all);
  const ReleasedGil released;
  return session.largest(name, limit_bytes, shapes.feeds, step);
}

/// Feeds with type and sizes of each input, without data.
py::dict timeline(InferenceSession& session, const py::list& values,
                  const std::map<std::string, int64_t>& sizes) {
  const Shapes shapes(session, values, sizes);
  std::shared_ptr<const Plan> plan;
  {
    const ReleasedGil released;
    plan = session.plan(shapes.feeds);
  }
  return plan_timeline(*plan);
}

/// By set, then by input.
std::vector<std::vector<Sizes>> likely(const InferenceSession& session) {
  std::string why;
  std::vector<std::vector<Sizes>> all = likely_sizes(session, why);
  if (all.empty()) throw Error("[run] sizes must be given, as " + why);
  return all;
}

std::string plan_text(InferenceSession& session, const py::list& arrays) {
  const Feeds feeds(session, arrays);
  const ReleasedGil released;
  return session.plan_text(feeds.feeds);
}

void save(InferenceSession& session, const py::list& arrays, const std::filesystem::path& path) {
  const Feeds feeds(session, arrays);
  const ReleasedGil released;
  session.save_optimized(feeds.feeds, path.string());
}

py::dict held(const InferenceSession& session) {
  const InferenceHeld now = session.held();
  py::dict report;
  report["runs_bytes"] = now.runs;
  report["peak_bytes"] = now.peak;
  report["kept_bytes"] = now.kept;
  report["plans_bytes"] = now.plans;
  return report;
}

/// By the provider's names; "" for the default.
void set_convolution_search(InferenceOptions& options, const std::string& name) {
  std::optional<ConvolutionSearch>& search = options.device.convolution_search;
  search.reset();
  if (name == "EXHAUSTIVE") search = ConvolutionSearch::Exhaustive;
  if (name == "HEURISTIC") search = ConvolutionSearch::Heuristic;
  if (name == "DEFAULT") search = ConvolutionSearch::Default;
}

py::list operators() {
  py::list rows;
  for (const OnnxRow* row : all_onnx_rows())
    rows.append(py::make_tuple(std::string(row->domain), std::string(row->op), row->since));
  return rows;
}

std::set<std::string> passes() {
  std::set<std::string> names;
  for (const auto& list : {forward_passes(), joint_passes()})
    for (const Pass& pass : list) names.insert(pass.name);
  return names;
}

void bind_options(py::module_& m) {
  py::class_<RunMemoryOptions>(m, "MemoryOptions", "See RunMemoryOptions.")
      .def(py::init<>())
      .def_readwrite("keep_block", &RunMemoryOptions::keep_block)
      .def_readwrite("one_block", &RunMemoryOptions::one_block)
      .def_readwrite("reuse", &RunMemoryOptions::reuse)
      .def_readwrite("power_of_two_block", &RunMemoryOptions::power_of_two_block)
      .def_readwrite("limit_bytes", &RunMemoryOptions::limit_bytes);
  py::class_<OnnxDataPlacement>(m, "DataPlacement", "See OnnxDataPlacement.")
      .def(py::init<>())
      .def_readwrite("threshold", &OnnxDataPlacement::threshold)
      .def_readwrite("least_bytes", &OnnxDataPlacement::least_bytes)
      .def_readwrite("file", &OnnxDataPlacement::file);
  py::class_<InferenceOptions>(m, "Options", "How a session runs a model; see InferenceOptions.")
      .def(py::init<>())
      .def_readwrite("threads", &InferenceOptions::threads)
      .def_readwrite("fixed_sizes", &InferenceOptions::fixed_sizes)
      .def_readwrite("fixed_denotations", &InferenceOptions::fixed_denotations)
      .def_readwrite("seed", &InferenceOptions::seed)
      .def_readwrite("optimization_level", &InferenceOptions::optimization_level)
      .def_readwrite("disabled_passes", &InferenceOptions::disabled_passes)
      .def_readwrite("profiling", &InferenceOptions::profiling)
      .def_readwrite("half_weights", &InferenceOptions::half_weights)
      .def_readwrite("optimized_data", &InferenceOptions::optimized_data)
      .def_property(
          "device", [](const InferenceOptions& options) { return options.device.number; },
          [](InferenceOptions& options, int number) { options.device.number = number; })
      .def_property("convolution_search", nullptr, &set_convolution_search)
      .def_property(
          "allow_tf32", nullptr,
          [](InferenceOptions& options, bool allow) { options.device.allow_tf32 = allow; })
      .def_readwrite("memory", &InferenceOptions::memory);
  py::class_<RunControl, std::shared_ptr<RunControl>>(m, "RunControl", "Ends runs that watch it.")
      .def(py::init<>())
      .def_property(
          "terminate", [](const RunControl& control) { return control.terminate.load(); },
          [](RunControl& control, bool terminate) { control.terminate = terminate; });
}

using SessionClass = py::class_<InferenceSession>;

void bind_opening(SessionClass& session) {
  session
      .def(py::init(&open_session), py::arg("model"), py::arg("options") = InferenceOptions(),
           py::arg("initializers") = py::dict(), py::arg("files") = py::dict(),
           py::arg("folder") = "")
      .def(
          "reopened",
          [](const InferenceSession& of, InferenceOptions options) {
            return std::make_unique<InferenceSession>(of.shared_model(), std::move(options));
          },
          py::arg("options"), py::call_guard<ReleasedGil>(),
          "Another session of the model, which is not read again.");
}

void bind_facts(SessionClass& session) {
  session.def("inputs", [](const InferenceSession& of) { return describe_all(of, of.inputs()); })
      .def("overridable",
           [](const InferenceSession& of) { return describe_all(of, of.overridable()); })
      .def("outputs", [](const InferenceSession& of) { return describe_all(of, of.outputs()); })
      .def(
          "typed_outputs",
          [](InferenceSession& of) {
            const std::vector<OnnxValue>* outputs = nullptr;
            {
              const ReleasedGil released;
              outputs = &of.typed_outputs();
            }
            return describe_all(of, *outputs);
          },
          "The outputs with types and sizes that the file leaves out.")
      .def("metadata", &metadata)
      .def("shares_weights_with",
           [](const InferenceSession& one, const InferenceSession& other) {
             return &one.model() == &other.model();
           })
      .def("wide_weights",
           [](InferenceSession& of) {
             std::map<std::string, std::string> types;
             for (const auto& [name, dtype] : of.wide_weights()) types[name] = torch_name_of(dtype);
             return types;
           })
      .def_property_readonly("threads", &InferenceSession::threads);
}

void bind_runs(SessionClass& session) {
  session
      .def("run", &run, py::arg("feeds"), py::arg("control") = py::none(),
           "Arrays by input, then by overridable input; returns arrays by output.")
      .def("run_values", &run_values, py::arg("feeds"), py::arg("control") = py::none(),
           "The same; returns values by output.")
      .def("start_profiling", &InferenceSession::start_profiling)
      .def("profiling_start_ns", &InferenceSession::profiling_start_ns)
      .def(
          "end_profiling",
          [](InferenceSession& of, const std::filesystem::path& path) {
            return of.end_profiling(path.string());
          },
          py::arg("path"))
      .def_property_readonly("last_peak_bytes", &InferenceSession::last_peak_bytes)
      .def_property_readonly("copied_bytes", &InferenceSession::copied_bytes);
}

void bind_plans(SessionClass& session) {
  session
      .def("memory", &memory, py::arg("shapes"), py::arg("sizes"),
           "By input: an array, a tuple of sizes, or None for those that `sizes` has by name.")
      .def("largest", &largest, py::arg("name"), py::arg("limit_bytes"), py::arg("shapes"),
           py::arg("sizes"), py::arg("step"))
      .def("timeline", &timeline, py::arg("shapes"), py::arg("sizes"))
      .def("plan", &plan_text)
      .def("likely_sizes", &likely, "Sizes of all inputs that may be assumed, likely ones first.")
      .def("return_kept", &InferenceSession::return_kept)
      .def_property_readonly("held", &held)
      .def("save_optimized", &save, py::arg("feeds"), py::arg("path"))
      .def(
          "save_optimized_early",
          [](InferenceSession& of, const std::filesystem::path& path) {
            return save_optimized_early(of, path.string());
          },
          py::arg("path"), py::call_guard<ReleasedGil>(),
          "Returns why the file must wait for a run, or None.")
      .def("why_not_on_device", &why_not_on_device, py::call_guard<ReleasedGil>(),
           "Why the session's device cannot run the model, where sizes can be assumed, or None.");
}

}  // namespace
}  // namespace ortmodule::bindings

PYBIND11_MODULE(_inference, m) {
  using namespace ortmodule;
  using namespace ortmodule::bindings;
  m.doc() = "Inference sessions of ortmodule_py, without torch.";
  m.attr("__version__") = std::string(version());
  // Local: in a process with torch, the extension of training translates Error in its own way.
  register_error<Error>(m, "EngineError", PyExc_RuntimeError, /*local=*/true);
  bind_values(m);
  m.def("operators", &operators, "The ONNX operators with a rule: (domain, name, since).");
  m.def("passes", &passes, "The optimizer's passes, by name.");
  bind_options(m);
  SessionClass session(m, "Session", "An ONNX model that is planned and run.");
  bind_opening(session);
  bind_facts(session);
  bind_runs(session);
  bind_plans(session);
  bind_io_binding(m);
  bind_quantization(m);
}
