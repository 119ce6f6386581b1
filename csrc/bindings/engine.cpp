#include "bindings/engine.h"

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <utility>

#include "bindings/graph_replay.h"
#include "bindings/run_state.h"
#include "bindings/tensor_layout.h"
#include "ops/differentiated.h"
#include "plan/replay.h"

namespace ortmodule::bindings {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

using StatePtr = c10::intrusive_ptr<RunState>;

/// Guards under which steps run: the piece's device is current, and autograd and autocast are off
/// (the graph has its own casts).
struct EngineGuards {
  explicit EngineGuards(const DeviceRuntime& runtime) : device(runtime) {}
  DeviceScope device;
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  c10::impl::ExcludeDispatchKeyGuard no_autocast{c10::autocast_dispatch_keyset};
};

/// Eager accepts CPU scalars among GPU tensors; moves them to the GPU. A kernel fills in the value,
/// since a CUDA graph cannot capture a copy from host memory that may change.
void move_numbers(std::vector<at::Tensor>& tensors, c10::Device device) {
  for (at::Tensor& tensor : tensors)
    if (tensor.device() != device)
      tensor = at::scalar_tensor(tensor.item(), tensor.options().device(device));
}

void run_forward(RunState& state) {
  const EngineGuards guards(state.piece.runtime());
  ORTM_CHECK(!state.host_copies || !state.piece.runtime().capturing(),
             "[CUDA graph] a captured step must keep its values on the GPU, but found a plan that "
             "keeps some on the host; set ORTMODULE_OFFLOAD=0");
  move_numbers(state.tensors, state.piece.runtime().device());
  state.piece.runner().forward(state);
  for (size_t argument : state.plan().mutated_arguments)
    state.tensors[argument].unsafeGetTensorImpl()->bump_version();
}

/// The tensor with its values in memory: `z.conj()` has the conjugate bit and `z.conj().imag` the
/// negative bit, while their memory holds z.
at::Tensor in_memory(const at::Tensor& tensor) { return tensor.resolve_conj().resolve_neg(); }

/// The tensor that autograd returns for a saved one, in the planned layout: hooks
/// (`torch.autograd.graph.saved_tensors_hooks`) may return another tensor with the same values.
at::Tensor as_saved(const at::Tensor& found, const PlannedTensor& planned) {
  const at::ScalarType type = to_scalar_type(planned.dtype);
  TORCH_CHECK(found.sizes() == at::IntArrayRef(planned.layout.sizes) && found.scalar_type() == type,
              "[backward] a hook on saved tensors must give back sizes ",
              at::IntArrayRef(planned.layout.sizes), " of type ", c10::toString(type),
              ", but found ", found.sizes(), " of type ", c10::toString(found.scalar_type()),
              "; let its unpack return what pack was given");
  return laid_out(in_memory(found), planned.layout);
}

/// Whether each output has a gradient.
std::vector<bool> arrived_outputs(const RunState& state, const variable_list& grads) {
  std::vector<bool> arrived = state.piece.session().differentiable_outputs();
  for (size_t k = 0; k < arrived.size(); ++k) arrived[k] = arrived[k] && grads[k].defined();
  return arrived;
}

/// The saved arguments and outputs that a pass of `plan` reads; the others are undefined, as an
/// optimizer may have changed them. Runs hooks on saved tensors: a checkpoint around the module
/// repeats its forward.
variable_list unpacked(const RunState& state, const Plan& plan) {
  const Plan& forward = state.plan();
  const auto node = torch::autograd::get_current_node();
  variable_list found;
  const auto unpack = [&](const std::vector<size_t>& all, const std::vector<size_t>& read) {
    const bool reads_all = read == all;  // as most passes do
    for (const size_t index : all) {
      const bool is_read = reads_all || std::ranges::find(read, index) != read.end();
      const torch::autograd::SavedVariable& saved = state.saved[found.size()];
      found.push_back(is_read ? saved.unpack(node) : at::Tensor());
    }
  };
  unpack(forward.saved_arguments, plan.saved_arguments);
  unpack(forward.saved_outputs, plan.saved_outputs);
  return found;
}

/// Binds the output gradients that arrived and the saved tensors.
void begin_backward(RunState& state, const variable_list& grads, variable_list saved) {
  state.piece.runner().begin_backward(state, saved);
  if (state.host_copies) state.host_copies->finish();
  state.frame.switch_to(*state.backward);
  put_back(state);
  if (!state.left.empty()) keep_for(state, state.left);
  const Plan& plan = *state.backward->plan;
  state.held.clear();
  state.arrived.clear();
  size_t next = 0;
  auto bind_saved = [&](BufferId buffer, TensorId tensor) {
    const at::Tensor& found = saved[next++];
    if (!found.defined()) return;
    state.held.push_back(as_saved(found, state.plan().tensors[tensor]));
    state.frame.bind(buffer, state.held.back().mutable_data_ptr());
  };
  for (size_t argument : state.plan().saved_arguments)
    bind_saved(state.backward->argument_buffer[argument],
               state.entry->program.argument_tensor[argument]);
  for (size_t output : state.plan().saved_outputs)
    bind_saved(state.backward->output_buffer[output], state.plan().output_tensors[output]);
  const auto& inputs = plan.graph->inputs();
  for (BufferId b : plan.buffers.ids()) {
    if (plan.buffers[b].kind != BufferKind::OutputGrad) continue;
    const GraphInput& input = inputs[plan.buffers[b].index];
    const auto index = static_cast<size_t>(input.index);
    const at::Tensor& grad = grads[index];
    if (!grad.defined()) continue;
    TORCH_CHECK(grad.has_storage(),
                "[backward] ortmodule_py runs one backward at a time, but found a batch of them "
                "(is_grads_batched, vmap); compute them in a loop (vectorize=False), or set "
                "ORTMODULE_BYPASS=1 to run the original module");
    const TensorId output = plan.output_tensors[index];
    const at::Tensor plain = in_memory(grad.to(to_scalar_type(input.value->dtype)));
    state.arrived.emplace_back(b, laid_out(plain, grad_output_layout(plan.tensors[output].layout)));
    state.frame.bind(b, state.arrived.back().second.mutable_data_ptr());
  }
  state.piece.runner().bound_backward(state);
}

/// Refuses `retain_grad` on an output from which another output with a gradient is computed: that
/// part of the gradient is computed inside the piece and would be missing.
void check_retained(const RunState& state, const variable_list& grads) {
  const auto& retained = torch::autograd::get_current_node()->retains_grad_hooks();
  if (retained.empty()) return;
  const Graph& graph = *state.piece.session().piece().graph;
  const auto value_of = [&](size_t k) -> const Value* {
    for (const GraphOutput& output : graph.outputs())
      if (output.kind == OutputKind::Output && output.index == static_cast<int>(k))
        return output.value;
    return nullptr;
  };
  for (const auto& [k, hook] : retained) {
    const Value* value = value_of(k);
    if (!value) continue;
    const Differentiated made_of(graph, value);
    for (size_t other = 0; other < grads.size(); ++other) {
      const Value* result = value_of(other);
      TORCH_CHECK(
          !grads[other].defined() || !result || result == value || !made_of.contains(result),
          "[backward] retain_grad() on output ", k,
          " gets only gradients from outside of the module, but output ", other,
          ", which has a gradient, is computed from it: that part would be missing. Compute what "
          "needs the gradient of output ",
          k, " outside of the module, or set ORTMODULE_BYPASS=1 to run the original module");
    }
  }
}

/// Refuses backward passes that the frame does not support. Its buffers belong to the pass that
/// began last: later ranges of another one (interleaved by a second thread or a hook) cannot run.
void check_backward(const RunState& state, size_t range, int pass) {
  TORCH_CHECK(!(state.consumed && (range == 0 || state.derived_pass != pass)) &&
                  !(state.begun && range == 0),
              kSecondBackward);
  TORCH_CHECK(
      range == 0 || state.pass == pass,
      "[backward] ortmodule_py runs one backward pass at a time over one forward, but "
      "another one began before this one ended; call them one after the other (a zero-bubble "
      "pipeline schedule splits backward in two: take 1F1B, or eager PyTorch)");
}

/// The empty tensor that connects the autograd nodes of two ranges. It is on the piece's device,
/// since autograd chooses a node's thread and stream by the device.
at::Tensor empty_token(const RunState& state) {
  return at::empty({0},
                   at::TensorOptions().dtype(at::kFloat).device(state.piece.runtime().device()));
}

/// A backward range as an autograd node. The node of range 0 also runs forward and returns the
/// outputs. The nodes of later ranges come before it in the forward direction, and each passes an
/// empty token to the next.
class RangeNode : public torch::autograd::Function<RangeNode> {
 public:
  static variable_list forward(AutogradContext* ctx, const StatePtr& state, int64_t range,
                               std::vector<int64_t> arguments, at::TensorList inputs) {
    ctx->set_materialize_grads(false);
    ctx->saved_data["state"] = c10::IValue::make_capsule(state);
    ctx->saved_data["range"] = range;
    ctx->saved_data["arguments"] = std::move(arguments);
    ctx->saved_data["inputs"] = static_cast<int64_t>(inputs.size());
    if (range > 0) return {empty_token(*state)};
    run_forward(*state);
    variable_list fixed;
    for (const at::Tensor& tensor : state->tensors) state->unsaved.emplace_back(tensor);
    variable_list outputs = std::move(state->outputs);
    state->outputs.clear();
    const std::vector<bool>& differentiable = state->piece.session().differentiable_outputs();
    for (size_t k = 0; k < outputs.size(); ++k)
      if (!differentiable[k]) fixed.push_back(outputs[k]);
    ctx->mark_non_differentiable(fixed);
    return outputs;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto state =
        c10::static_intrusive_pointer_cast<RunState>(ctx->saved_data["state"].toCapsule());
    const auto range = static_cast<size_t>(ctx->saved_data["range"].toInt());
    const std::lock_guard lock(state->running);
    const int pass = torch::autograd::get_current_graph_task_id();
    check_backward(*state, range, pass);
    const bool asked_to_keep = torch::autograd::get_current_graph_task_keep_graph();
    if (range == 0 ? needs_derived(*state, grads) : state->derived_pass == pass)
      return derived(state, *ctx, grads, asked_to_keep);
    // Tensors of another pass may view what is saved.
    const bool keep = asked_to_keep || state->is_viewed();
    variable_list saved;
    if (range == 0) saved = choose_pass(*state, grads, keep, asked_to_keep);
    const EngineGuards guards(state->piece.runtime());
    if (range == 0) {
      check_retained(*state, grads);
      state->pass = pass;
      begin_backward(*state, grads, std::move(saved));
      if (!asked_to_keep && state->left.empty()) state->saved.clear();
      state->begun = !asked_to_keep;
    }
    const std::vector<int64_t> arguments = ctx->saved_data["arguments"].toIntVector();
    variable_list gradients = state->piece.runner().backward(*state, range, arguments, keep);
    variable_list results = results_of(*state, *ctx, std::move(gradients));
    if (range + 1 == state->backward->plan->ranges) finish(*state, keep, asked_to_keep);
    return results;
  }

 private:
  // Chooses the backward plan for the output gradients that arrived. Returns what it reads.
  static variable_list choose_pass(RunState& state, const variable_list& grads, bool keep,
                                   bool asked_to_keep) {
    const std::vector<bool> arrived = arrived_outputs(state, grads);
    check_separate(state, arrived);
    state.left.clear();
    {
      const EngineGuards guards(state.piece.runtime());
      if (!asked_to_keep) state.left = outputs_behind(state, arrived);
      state.backward = &state.piece.session().backward_program(*state.entry, arrived, keep);
    }
    return unpacked(state, *state.backward->plan);
  }

  // The gradients of this node's range where all ranges run as a piece of their own.
  static variable_list derived(const StatePtr& state, AutogradContext& ctx,
                               const variable_list& grads, bool keep) {
    if (ctx.saved_data["range"].toInt() == 0) {
      check_separate(*state, std::vector<bool>(state->ended.size(), true));
      const variable_list saved = unpacked(*state, state->plan());
      check_retained(*state, grads);
      state->derived = derived_gradients(state, grads, saved);
      state->pass = state->derived_pass = torch::autograd::get_current_graph_task_id();
      if (!keep) state->consumed = true;
      if (!keep && !state->is_viewed()) state->frame.clear();
    }
    variable_list gradients;
    for (const int64_t argument : ctx.saved_data["arguments"].toIntVector())
      gradients.push_back(std::move(state->derived.at(static_cast<size_t>(argument))));
    return results_of(*state, ctx, std::move(gradients));
  }

  // Autograd calls the hooks of an input even if its gradient is undefined. Eager would not have
  // called them, and hooks do not expect an undefined gradient: they get zeros.
  static at::Tensor zeros_for_hooks(size_t argument) {
    const torch::autograd::Edge& next = torch::autograd::get_current_node()->next_edge(argument);
    if (!next.is_valid() || next.function->tensor_pre_hooks().empty()) return {};
    return next.function->input_metadata(next.input_nr).zeros_like();
  }

  // The non-tensor arguments (state, range, arguments) come first and have no gradient.
  static variable_list results_of(const RunState& state, AutogradContext& ctx,
                                  variable_list gradients) {
    const auto inputs = static_cast<size_t>(ctx.saved_data["inputs"].toInt());
    variable_list results(3 + inputs);
    for (size_t i = 0; i < gradients.size(); ++i)
      results[3 + i] = gradients[i].defined() ? std::move(gradients[i]) : zeros_for_hooks(i);
    if (gradients.size() < inputs) results.back() = empty_token(state);
    return results;
  }

  static void finish(RunState& state, bool keep, bool asked_to_keep) {
    const Plan& plan = *state.backward->plan;
    state.planned_peak_bytes =
        std::max(state.planned_peak_bytes,
                 keep ? replay(plan, ReplayMode::RetainGraph).peak_bytes : plan.peak_bytes);
    if (!keep) state.piece.runner().finished(state);
    state.piece.finished(*state.entry, state.planned_peak_bytes + state.kept_bytes,
                         state.frame.peak_bytes() + state.kept_bytes, true);
    state.held.clear();
    state.arrived.clear();
    state.consumed = !asked_to_keep && state.left.empty();
    state.begun = state.consumed;
    if (keep) {
      state.frame.hand_over();
      return;
    }
    state.frame.clear();
    state.runner.reset();
  }
};

/// Not by the context of the node, which would check the versions of all when one is read.
void save_for_backward(RunState& state, const variable_list& outputs) {
  for (const size_t argument : state.plan().saved_arguments)
    state.saved.emplace_back(state.tensors[argument], false);
  for (const size_t output : state.plan().saved_outputs)
    state.saved.emplace_back(outputs[output], outputs[output].grad_fn() != nullptr);
  state.tensors.clear();
}

/// Records the chain of autograd nodes, last range first. Returns the outputs.
variable_list record(const StatePtr& state) {
  const Plan& plan = state->plan();
  at::Tensor token;
  for (size_t range = plan.ranges; range-- > 0;) {
    std::vector<int64_t> arguments;
    variable_list inputs;
    for (const size_t input : state->edges(range)) {
      arguments.push_back(static_cast<int64_t>(input));
      inputs.push_back(state->tensors[input]);
    }
    if (token.defined()) inputs.push_back(token);
    variable_list outputs = RangeNode::apply(state, static_cast<int64_t>(range),
                                             std::move(arguments), at::TensorList(inputs));
    if (range == 0) {
      save_for_backward(*state, outputs);
      return outputs;
    }
    token = outputs.at(0);
  }
  return {};
}

std::vector<LayoutView> views_of(const std::vector<at::Tensor>& tensors) {
  std::vector<LayoutView> views;
  views.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) views.push_back({tensor.sizes(), tensor.strides()});
  return views;
}

std::atomic<int64_t> runs_of_all_pieces{0};

/// The options of a piece's session, completed by facts about the device.
SessionOptions completed(SessionOptions options, const DeviceRuntime& runtime) {
  options.optimizer.device = runtime.kernels();
  const at::Context& torch = at::globalContext();
  options.optimizer.channels_last = options.device() == Device::CUDA
                                        ? torch.userEnabledCuDNN()
                                        : at::hasMKLDNN() && torch.userEnabledMkldnn();
  // Each piece has its own fuel.
  if (const auto& fuel = options.optimizer.fuel)
    options.optimizer.fuel = std::make_shared<int64_t>(*fuel);
  options.threads = &torch_threads;
  options.before_plan = [&runtime] {
    ORTM_CHECK(!runtime.capturing(),
               "[CUDA graph] a step must run before it is captured, but found shapes that have not "
               "run; run the step a few times first, as torch.cuda.graph requires");
  };
  return options;
}

}  // namespace

int64_t engine_runs() { return runs_of_all_pieces; }

CompiledPiece::CompiledPiece(ExportedPiece piece, std::vector<at::Tensor> constants,
                             const PieceOptions& options)
    : options_(options),
      runtime_(device_runtime(options.device, options.emulate_cuda)),
      session_(std::make_unique<Session>(std::move(piece), completed(options.session, runtime_))),
      constants_(std::move(constants)),
      convolution_search_(options.convolution_search) {
  if (!runtime_.present()) return;
  if (options.cuda_graph)
    runner_ = std::make_unique<GraphReplay>(runtime_, runtime_.step_recorder());
  for (at::Tensor& constant : constants_) constant = constant.to(runtime_.device());
}

CompiledPiece::~CompiledPiece() = default;

void CompiledPiece::check(const at::Tensor& tensor, const Value& expected) const {
  ORTM_CHECK(tensor.scalar_type() == to_scalar_type(expected.dtype), "[forward] argument ",
             expected.name, " must be of type ", name_of(expected.dtype), ", but found ",
             c10::toString(tensor.scalar_type()));
  const bool number = tensor.dim() == 0 && tensor.device().is_cpu();
  ORTM_CHECK(tensor.device() == runtime_.device() || number, "[forward] argument ", expected.name,
             " must be on ", runtime_.device().str(), " like the other arguments, but found it on ",
             tensor.device().str());
}

RunStatistics CompiledPiece::statistics() const {
  const std::lock_guard lock(report_mutex_);
  return statistics_;
}

std::shared_ptr<PlanEntry> CompiledPiece::last_plan() const {
  const std::lock_guard lock(report_mutex_);
  return last_plan_;
}

void CompiledPiece::finished(PlanEntry& entry, int64_t planned_bytes, int64_t measured_bytes,
                             bool backward) {
  {
    const std::lock_guard lock(report_mutex_);
    statistics_.planned_peak_bytes = planned_bytes;
    statistics_.measured_peak_bytes = measured_bytes;
    if (backward) ++statistics_.backwards;
  }
  runtime_.expect_again(measured_bytes);
  if (MemoryPolicy::exceeds_plan(planned_bytes, measured_bytes))
    session_->memory()->observe_peak(entry, planned_bytes, measured_bytes);
}

void CompiledPiece::finished_derived(int64_t planned_bytes, int64_t measured_bytes) {
  const std::lock_guard lock(report_mutex_);
  statistics_.planned_peak_bytes = planned_bytes;
  statistics_.measured_peak_bytes = measured_bytes;
  ++statistics_.backwards;
}

std::shared_ptr<PlanEntry> CompiledPiece::plan(const std::vector<at::Tensor>& tensors,
                                               const std::vector<int64_t>& symbols) {
  const DeviceScope scope(runtime_);
  const auto& inputs = session_->exported_graph().inputs();
  for (size_t i = 0; i < tensors.size(); ++i) check(tensors[i], *inputs.at(i).value);
  std::shared_ptr<PlanEntry> entry = session_->plan_for({views_of(tensors), symbols});
  const std::lock_guard lock(report_mutex_);
  last_plan_ = entry;
  return entry;
}

std::vector<at::Tensor> CompiledPiece::run(std::vector<at::Tensor> tensors,
                                           const std::vector<int64_t>& symbols, SymbolValues* sizes,
                                           const RunSeed* seed) {
  std::vector<bool> lazy;
  lazy.reserve(tensors.size());
  for (at::Tensor& tensor : tensors) {
    lazy.push_back(tensor.is_conj() || tensor.is_neg());
    if (lazy.back()) tensor = in_memory(tensor);
  }
  const std::shared_ptr<PlanEntry> entry = plan(tensors, symbols);
  if (sizes) *sizes = session_->symbols().bind_all({views_of(tensors), symbols});
  for (size_t argument : entry->program.plan->mutated_arguments)
    ORTM_CHECK(!lazy[argument],
               "[forward] an argument that is changed in place must not have the conjugate or "
               "negative bit, but found one that has it; pass tensor.resolve_conj().resolve_neg()");
  auto state = c10::make_intrusive<RunState>(shared_from_this(), entry);
  state->tensors = std::move(tensors);
  state->seed_is_given = seed != nullptr;
  if (seed) state->seed.seed = *seed;
  {
    const std::lock_guard lock(report_mutex_);
    ++statistics_.forwards;
    statistics_.last_run = ++runs_of_all_pieces;
  }
  // A piece that trains and runs under no_grad has turned gradients on itself.
  const bool record_gradients = session_->training() && !c10::InferenceMode::is_enabled();
  const auto& gradients = state->plan().gradients;
  const bool any_flows =
      std::any_of(gradients.begin(), gradients.end(),
                  [](const PlannedGradient& g) { return static_cast<bool>(g.tensor); });
  state->records_gradients = record_gradients && any_flows;
  if (state->records_gradients) {
    const at::AutoGradMode enabled(true);
    return record(state);
  }
  run_forward(*state);
  finished(*entry, state->plan().forward_peak_bytes, state->frame.peak_bytes(), false);
  return std::move(state->outputs);
}

}  // namespace ortmodule::bindings
