#include "bindings/step_runner.h"

#include <utility>

#include "bindings/run_state.h"
#include "kernels/aten/allocation_counter.h"
#include "kernels/step_compiler.h"

namespace ortmodule::bindings {
namespace {

KernelContext make_context(const RunState& state, LibraryMeter& meter) {
  KernelContext context;
  context.meter = &meter;
  state.piece.runtime().fill(context);
  if (const auto search = state.piece.convolution_search()) context.convolution_search = *search;
  context.seed = state.seed.seed;
  context.generated_code = state.generated_code;
  context.host_copies = state.host_copies.get();
  return context;
}

}  // namespace

void choose_code(RunState& state) {
  DeviceRuntime& runtime = state.piece.runtime();
  if (runtime.kernels() != Device::CUDA || !step_compiler()) return;
  if (!state.piece.options().generated_code) return;
  KernelContext context;
  runtime.fill(context);
  state.generated_code = newest_generated_code(context);
}

void launch_forward(RunState& state) {
  const Program& program = state.entry->program;
  if (program.random && !state.seed_is_given) state.seed = state.piece.runtime().draw_seed();
  AtenLibraryMeter meter;
  KernelContext context = make_context(state, meter);
  execute(program, state.frame, context, 0, state.plan().forward_steps, false);
}

void launch_range(RunState& state, size_t range, bool keep_saved) {
  const Program& program = *state.backward;
  AtenLibraryMeter meter;
  KernelContext context = make_context(state, meter);
  execute(program, state.frame, context, program.range_begin[range], program.range_begin[range + 1],
          keep_saved);
}

void StepByStep::forward(RunState& state) {
  const Plan& plan = state.plan();
  for (BufferId b : plan.buffers.ids())
    if (plan.buffers[b].kind == BufferKind::Argument)
      state.frame.bind(b, state.tensors[plan.buffers[b].index].mutable_data_ptr());
  choose_code(state);
  launch_forward(state);
  for (TensorId output : plan.output_tensors) {
    const PlannedTensor& tensor = plan.tensors[output];
    Buffer buffer = state.frame.take(plan.storages[tensor.storage].buffer);
    state.outputs.push_back(
        tensor_from(std::move(buffer), tensor.dtype, tensor.layout, state.piece.runtime()));
  }
}

std::vector<at::Tensor> StepByStep::backward(RunState& state, size_t range,
                                             const std::vector<int64_t>& inputs, bool keep_saved) {
  launch_range(state, range, keep_saved);
  std::vector<at::Tensor> gradients(inputs.size());
  const Plan& plan = *state.backward->plan;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const TensorId gradient = state.backward->gradient_tensor[static_cast<size_t>(inputs[i])];
    if (!gradient) continue;
    const PlannedTensor& tensor = plan.tensors[gradient];
    Buffer buffer = state.frame.take_gradient(plan.storages[tensor.storage].buffer);
    gradients[i] =
        tensor_from(std::move(buffer), tensor.dtype, tensor.layout, state.piece.runtime());
  }
  return gradients;
}

}  // namespace ortmodule::bindings
