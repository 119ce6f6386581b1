// The compiled piece as a Python callable, and its facts for reports.
#include <ATen/Context.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <map>
#include <set>

#include "bindings/casts/errors.h"
#include "bindings/casts/sizes.h"
#include "bindings/engine.h"
#include "bindings/topics.h"
#include "ir/text.h"
#include "optimizer/pipeline.h"
#include "plan/replay.h"

namespace ortmodule::bindings {
namespace py = pybind11;
namespace {

/// Dynamo's flat arguments, split into tensors by graph input (constants included) and symbols.
struct FlatArguments {
  std::vector<at::Tensor> tensors;
  std::vector<int64_t> symbols;

  FlatArguments(const CompiledPiece& piece, const py::args& args) {
    const ExportedPiece& exported = piece.session().piece();
    size_t constant = 0;
    size_t position = 0;
    tensors.reserve(exported.arguments.size());
    for (const BoundInput& bound : exported.arguments) {
      if (bound.kind == BoundInput::Kind::Symbol) {
        symbols.push_back(py::cast<int64_t>(args[position++]));
        continue;
      }
      const auto& input = exported.graph->inputs()[static_cast<size_t>(bound.graph_input)];
      if (input.kind == InputKind::Constant) {
        tensors.push_back(piece.constants().at(constant++));
      } else {
        tensors.push_back(py::cast<at::Tensor>(args[position++]));
      }
    }
  }
};

void plan(CompiledPiece& piece, const py::args& args) {
  const FlatArguments given(piece, args);
  const py::gil_scoped_release release;
  piece.plan(given.tensors, given.symbols);
}

/// Calls the piece with Dynamo's flat arguments; returns the flat results.
py::list call(CompiledPiece& piece, const py::args& args) {
  const ExportedPiece& exported = piece.session().piece();
  FlatArguments given(piece, args);
  const bool gives_sizes = std::ranges::any_of(exported.results, [](const BoundOutput& bound) {
    return bound.kind == BoundOutput::Kind::Dim;
  });
  SymbolValues sizes;
  std::vector<at::Tensor> outputs;
  {
    const py::gil_scoped_release release;
    outputs = piece.run(std::move(given.tensors), given.symbols, gives_sizes ? &sizes : nullptr);
  }
  py::list results;
  for (const BoundOutput& bound : exported.results) {
    switch (bound.kind) {
      case BoundOutput::Kind::Tensor:
        results.append(std::move(outputs[static_cast<size_t>(bound.graph_output)]));
        break;
      case BoundOutput::Kind::Dim: results.append(bound.dim.evaluate(sizes)); break;
      case BoundOutput::Kind::Input:
        results.append(args[static_cast<size_t>(bound.argument)]);
        break;
      case BoundOutput::Kind::None: results.append(py::none()); break;
    }
  }
  return results;
}

/// The names of nondeterministic kernels in the plan; for torch operators, the operators. None
/// under torch.use_deterministic_algorithms, where torch's kernels are deterministic or raise.
std::set<std::string> nondeterministic_kernels(const Plan& plan) {
  std::set<std::string> names;
  const at::Context& flags = at::globalContext();
  if (flags.deterministicAlgorithms() && !flags.deterministicAlgorithmsWarnOnly()) return names;
  for (const PlannedStep& step : plan.steps)
    if (!step.kernel->deterministic)
      names.insert(step.facts->node().attrs.string("operator", std::string(step.kernel->name)));
  return names;
}

/// Whether the last plans of the piece and of its backward passes of higher order are exact.
bool is_exact(CompiledPiece& piece) {
  const auto entry = piece.last_plan();
  const auto derived = piece.derived().all();
  return (!entry || entry->program.plan->exact) &&
         std::ranges::all_of(derived, [](const auto& each) { return is_exact(*each); });
}

py::dict facts(CompiledPiece& piece) {
  Session& session = piece.session();
  py::dict result;
  size_t aten = 0;
  for (const auto& node : session.joint_graph().nodes()) aten += node->op == "ATen" ? 1 : 0;
  const StageTimes times = session.times();
  py::dict stages;
  stages["optimize_forward"] = times.optimize_forward_ms;
  stages["gradient"] = times.gradient_ms;
  stages["optimize_joint"] = times.optimize_joint_ms;
  stages["lower"] = times.lower_ms;
  stages["optimize_memory"] = times.optimize_memory_ms;
  stages["plan"] = times.plan_ms;
  result["stages_ms"] = stages;
  result["device"] = piece.runtime().device().str();
  result["training"] = session.training();
  result["nodes"] = session.joint_graph().node_count();
  result["nodes_aten"] = aten;
  result["plans"] = times.plans;
  result["refusals"] = session.piece().refusals;
  const RunStatistics runs = piece.statistics();
  result["forwards"] = runs.forwards;
  result["last_run"] = runs.last_run;
  result["backwards"] = runs.backwards;
  result["derived_pieces"] = piece.derived().all().size();
  result["planned_peak_bytes"] = runs.planned_peak_bytes;
  result["measured_peak_bytes"] = runs.measured_peak_bytes;
  if (const std::optional<GraphCounts> counts = piece.runner().graph_counts()) {
    result["graphs_recorded"] = counts->recorded;
    result["graphs_replayed"] = counts->replayed;
    result["graphs_in_flight"] = counts->in_flight;
    result["graphs_refused"] = counts->refusals;
  }
  if (const auto entry = piece.last_plan()) {
    result["nondeterministic_kernels"] = nondeterministic_kernels(*entry->program.plan);
    result["exact"] = is_exact(piece);
    result["plan_peak_bytes"] = entry->program.plan->peak_bytes;
    result["saved_bytes"] = entry->program.plan->saved_bytes;
    result["host_bytes"] = entry->program.plan->host_bytes;
    result["gradient_bytes"] = gradient_bytes(*entry->program.plan);
    result["steps"] = entry->program.plan->steps.size();
    std::vector<int64_t> buffers;
    for (const PlannedBuffer& buffer : entry->program.plan->buffers) {
      if (buffer.owned()) buffers.push_back(buffer.bytes);
    }
    result["buffer_bytes"] = buffers;
    result["output_bytes"] = output_bytes(*entry->program.plan);
    result["ranges"] = entry->program.plan->ranges;
  }
  return result;
}

/// Texts, and a BudgetShortfall if there is one.
py::list take_warnings(CompiledPiece& piece) {
  py::list warnings;
  {
    const auto policy = piece.session().memory();
    for (const std::string& text : policy->take_warnings()) warnings.append(text);
    if (const auto found = policy->take_shortfall()) warnings.append(*found);
  }
  for (const std::string& text : piece.runner().take_warnings()) warnings.append(text);
  return warnings;
}

/// The lowered graph of the last forward, with recomputation; before the first forward, without.
std::shared_ptr<const Graph> lowered_graph(CompiledPiece& piece) {
  const auto entry = piece.last_plan();
  return (entry ? entry->lowered : piece.session().lowered())->graph;
}

/// A copy of a stage's graph.
std::shared_ptr<Graph> stage_graph(CompiledPiece& piece, const std::string& stage) {
  const Session& session = piece.session();
  if (stage == "exported") return session.exported_graph().clone();
  if (stage == "forward") return session.forward_graph().clone();
  if (stage == "joint") return session.joint_graph().clone();
  ORTM_CHECK(stage == "lowered",
             "[inspect] the stage must be exported, forward, joint or lowered, "
             "but found '",
             stage, "'");
  return lowered_graph(piece)->clone();
}

/// Parameters and buffers of fixed sizes, whose data a file can hold.
std::vector<std::string> weight_names(CompiledPiece& piece) {
  std::vector<std::string> names;
  for (const GraphInput& input : piece.session().exported_graph().inputs()) {
    const Dims& dims = input.value->dims;
    if ((input.kind == InputKind::Parameter || input.kind == InputKind::Buffer) &&
        std::all_of(dims.begin(), dims.end(), [](const DimExpr& d) { return d.is_constant(); }))
      names.push_back(input.value->name);
  }
  return names;
}

std::map<std::string, at::Tensor> constants_by_name(CompiledPiece& piece) {
  std::map<std::string, at::Tensor> constants;
  size_t next = 0;
  for (const GraphInput& input : piece.session().exported_graph().inputs())
    if (input.kind == InputKind::Constant)
      constants[input.value->name] = piece.constants().at(next++);
  return constants;
}

std::string stage_text(CompiledPiece& piece, const std::string& stage) {
  const Session& session = piece.session();
  const PrintOptions options{true, true};
  if (stage == "exported") return print(session.exported_graph(), options);
  if (stage == "forward") return print(session.forward_graph(), options);
  if (stage == "joint") return print(session.joint_graph(), options);
  if (stage == "lowered") return print(*lowered_graph(piece), options);
  if (stage == "passes")
    return text(session.forward_report(), true) + text(session.joint_report(), true);
  ORTM_CHECK(stage == "plan",
             "[inspect] the stage must be exported, forward, joint, lowered, "
             "passes or plan, but found '",
             stage, "'");
  const auto entry = piece.last_plan();
  return entry ? print(*entry->program.plan) : std::string("no plan yet: run a forward first\n");
}

/// The names that ORTMODULE_DISABLE_PASSES may hold.
std::vector<std::string> pass_names() {
  std::vector<std::string> names;
  for (const std::vector<Pass>& passes : {forward_passes(), joint_passes()})
    for (const Pass& pass : passes) names.push_back(pass.name);
  std::ranges::sort(names);
  const auto repeated = std::ranges::unique(names);
  names.erase(repeated.begin(), repeated.end());
  return names;
}

}  // namespace

void init_session(py::module_& m) {
  register_error<Error>(m, "ORTModuleError", PyExc_RuntimeError, /*local=*/false);
  const py::tuple index_bases =
      py::make_tuple(m.attr("ORTModuleError"), py::handle(PyExc_IndexError));
  register_error<IndexOutOfRange>(m, "ORTModuleIndexError", index_bases, /*local=*/false);
  m.def("engine_runs", &engine_runs,
        "The number of forward runs in this process, over all pieces.");
  m.def("pass_names", &pass_names, "The optimizer's passes, sorted by name.");
  py::class_<CompiledPiece, std::shared_ptr<CompiledPiece>>(
      m, "CompiledPiece", "A captured piece of a module, compiled; call it with flat arguments.")
      .def("__call__", &call)
      .def("plan", &plan,
           "Makes the plan for arguments of these shapes and runs nothing; fake tensors will do.")
      .def("facts", &facts, "Counts, stage times and bytes as a dict.")
      .def("memory", &memory_facts, py::arg("last") = false,
           "The results of the memory optimizer as a dict; None before the first forward. Here and "
           "below: for the first shapes, or with `last` for those of the last forward.")
      .def("timeline", &timeline, py::arg("optimized"), py::arg("last") = false,
           "The live range of each storage: its first and last step.")
      .def("take_warnings", &take_warnings,
           "Warnings about memory and CUDA graphs since the last call: texts, and a "
           "BudgetShortfall if "
           "the budget of the last new shapes is too small.")
      .def(
          "set_budget_share",
          [](CompiledPiece& piece, int64_t others_bytes, double growth, bool lenient) {
            const DeviceScope scope(piece.runtime());
            piece.session().memory()->set_budget_share({others_bytes, growth, lenient});
          },
          py::arg("others_bytes"), py::arg("growth") = 1.0, py::arg("lenient") = false,
          "Sets how many bytes of the budget other pieces use while this one runs.")
      .def(
          "assume_accumulation",
          [](CompiledPiece& piece) {
            const DeviceScope scope(piece.runtime());
            piece.session().memory()->assume_accumulation();
          },
          "From now on budgets include the gradients of earlier steps, which are accumulated into.")
      .def("decision_figures", &decision_figures, py::arg("decisions"),
           "Peak and time if these (stash, strategy) were recomputed.")
      .def("row_figures", &row_figures, py::arg("row"), py::arg("last") = false,
           "Peak and time if exactly that row of memory() were applied.")
      .def("graph", &stage_graph, py::arg("stage"), "A copy of a stage's graph.")
      .def(
          "input_names",
          [](CompiledPiece& piece) {
            std::vector<std::string> names;
            for (const GraphInput& input : piece.session().exported_graph().inputs())
              names.push_back(input.value->name);
            return names;
          },
          "Names of the graph's inputs, in order.")
      .def("weight_names", &weight_names,
           "Names of the inputs that are parameters or buffers of fixed sizes.")
      .def("constants", &constants_by_name, "Tensors that the program closed over, by input name.")
      .def("text", &stage_text, py::arg("stage"), "A stage's printed form.");
}

}  // namespace ortmodule::bindings
