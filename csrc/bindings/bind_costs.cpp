// Measures the overhead of a step beside its kernels, by part, for benchmarks/dispatch.py.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/ones.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <map>

#include "bindings/casts/sizes.h"
#include "bindings/engine.h"
#include "bindings/topics.h"

namespace ortmodule::bindings {
namespace py = pybind11;
namespace {

using Clock = std::chrono::steady_clock;

/// The lowest time of each part over all repetitions, in microseconds.
class Stopwatch {
 public:
  void lap(const std::string& part) {
    const Clock::time_point now = Clock::now();
    const double us = std::chrono::duration<double, std::micro>(now - last_).count();
    const auto [known, is_new] = least_.try_emplace(part, us);
    known->second = std::min(known->second, us);
    last_ = Clock::now();
  }
  void start() { last_ = Clock::now(); }
  const std::map<std::string, double>& least() const { return least_; }

 private:
  Clock::time_point last_ = Clock::now();
  std::map<std::string, double> least_;
};

void no_kernel(const KernelArgs&) {}

/// One step of `program` under the names "<what> forward" and so on.
void run_step(const Program& program, CompiledPiece& piece, std::vector<at::Tensor>& tensors,
              const std::string& what, Stopwatch& watch) {
  const Plan& plan = *program.plan;
  KernelContext context;
  piece.runtime().fill(context);
  std::vector<at::Tensor> held;
  watch.start();
  Frame frame(program, piece.runtime().allocator());
  for (BufferId b : plan.buffers.ids())
    if (plan.buffers[b].kind == BufferKind::Argument)
      frame.bind(b, tensors[plan.buffers[b].index].mutable_data_ptr());
  watch.lap(what + " frame");
  execute(program, frame, context, 0, plan.forward_steps, false);
  watch.lap(what + " forward");
  for (BufferId b : plan.buffers.ids()) {
    if (plan.buffers[b].kind != BufferKind::OutputGrad) continue;
    const GraphInput& input = plan.graph->inputs()[plan.buffers[b].index];
    const TensorId tensor = plan.output_tensors[static_cast<size_t>(input.index)];
    held.push_back(at::ones(plan.tensors[tensor].layout.sizes,
                            at::TensorOptions(to_scalar_type(input.value->dtype))));
    frame.bind(b, held.back().mutable_data_ptr());
  }
  watch.start();
  frame.switch_to(program);
  execute(program, frame, context, plan.forward_steps, plan.step_count(), false);
  watch.lap(what + " backward");
  for (const PlannedGradient& gradient : plan.gradients) {
    if (!gradient.tensor) continue;
    const PlannedTensor& tensor = plan.tensors[gradient.tensor];
    Buffer buffer = frame.take_gradient(plan.storages[tensor.storage].buffer);
    held.push_back(tensor_from(std::move(buffer), tensor.dtype, tensor.layout, piece.runtime()));
  }
  watch.lap(what + " gradient tensors");
}

std::map<std::string, double> step_costs(CompiledPiece& piece, std::vector<at::Tensor> tensors,
                                         const std::vector<int64_t>& symbols, int repeats) {
  ORTM_CHECK(piece.session().training() && piece.runtime().device().is_cpu(),
             "[step_costs] the piece must be one that trains on the CPU, but found one on ",
             piece.runtime().device().str(), piece.session().training() ? "" : " for inference");
  ORTM_CHECK(tensors.size() == piece.session().exported_graph().inputs().size(),
             "[step_costs] there must be a tensor for each of ",
             piece.session().exported_graph().inputs().size(), " graph inputs, but found ",
             tensors.size());
  const py::gil_scoped_release release;
  const DeviceScope scope(piece.runtime());
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const std::shared_ptr<PlanEntry> entry = piece.plan(tensors, symbols);
  ORTM_CHECK(!entry->program.random && entry->program.plan->mutated_arguments.empty(),
             "[step_costs] a step must be repeatable, but found one that draws random numbers or "
             "changes its arguments");
  Program idle(entry->program.plan);
  for (ProgramStep& step : idle.steps) step.run = no_kernel;
  Stopwatch watch;
  for (int i = 0; i < repeats; ++i) {
    watch.start();
    piece.plan(tensors, symbols);
    watch.lap("lookup");
    run_step(idle, piece, tensors, "executor", watch);
    run_step(entry->program, piece, tensors, "all", watch);
  }
  return watch.least();
}

}  // namespace

void init_costs(py::module_& m) {
  m.def("step_costs", &step_costs, py::arg("piece"), py::arg("tensors"), py::arg("symbols"),
        py::arg("repeats"),
        "Microseconds of the parts of a step, the lowest of `repeats`: looking up the plan, and "
        "frame, forward, backward and gradient tensors, with all kernels and with kernels that do "
        "nothing. `tensors` is by graph input.");
}

}  // namespace ortmodule::bindings
