#include "bindings/derived_gradients.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/view_as_complex.h>
#include <ATen/ops/view_as_real.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/function.h>

#include <algorithm>

#include "bindings/engine.h"
#include "bindings/run_state.h"
#include "ir/text.h"

namespace ortmodule::bindings {
namespace {

using StatePtr = c10::intrusive_ptr<RunState>;

/// Calls `visit(input, node, edge)` for each graph input to which the nodes of the ranges have an
/// edge, from the current node, that of range 0, on.
template <typename Visit>
void visit_edges(const RunState& state, const Visit& visit) {
  const auto first = torch::autograd::get_current_node();
  const torch::autograd::Node* node = &*first;
  for (size_t range = 0; range < state.plan().ranges && node; ++range) {
    size_t edge = 0;
    for (const size_t input : state.edges(range)) visit(input, *node, edge++);
    node = edge < node->num_outputs() ? &*node->next_edge(edge).function : nullptr;
  }
}

/// The graph inputs whose gradients autograd asks for.
std::vector<bool> wanted_gradients(const RunState& state) {
  std::vector<bool> wanted(state.piece.session().exported_graph().inputs().size(), false);
  visit_edges(state, [&](size_t input, const torch::autograd::Node& node, size_t edge) {
    wanted.at(input) = node.task_should_compute_output(edge);
  });
  return wanted;
}

BackwardQuery query_of(const RunState& state, const std::vector<at::Tensor>& grads) {
  BackwardQuery query;
  query.training = at::GradMode::is_enabled();
  query.wanted = wanted_gradients(state);
  const std::vector<bool>& outputs = state.piece.session().differentiable_outputs();
  for (size_t k = 0; k < outputs.size(); ++k) {
    query.arrived.push_back(outputs[k] && grads[k].defined());
    query.differentiable.push_back(query.arrived[k] && query.training && grads[k].requires_grad());
  }
  for (size_t i = outputs.size(); i < grads.size(); ++i)
    if (grads[i].defined()) query.hidden.push_back(state.hidden.at(i - outputs.size()));
  return query;
}

/// A copy on the device of a value that the run keeps on the host.
at::Tensor fetched(RunState& state, const PlannedTensor& tensor, const PlannedStorage& storage) {
  const DeviceRuntime& runtime = state.piece.runtime();
  const int64_t bytes = extent(tensor.layout) * static_cast<int64_t>(size_of(tensor.dtype));
  Buffer memory = runtime.allocate(bytes);
  const char* host = static_cast<char*>(state.frame.address(storage.buffer));
  state.host_copies->to_device(memory.data(), host + storage.offset_bytes, bytes);
  state.host_copies->await(memory.data());
  return tensor_from(std::move(memory), tensor.dtype, tensor.layout, runtime);
}

/// A saved activation as a tensor that keeps the run alive.
at::Tensor view_of_saved(const StatePtr& state, TensorId id) {
  const PlannedTensor& tensor = state->plan().tensors[id];
  const PlannedStorage& storage = state->plan().storages[tensor.storage];
  if (storage.role == PlannedStorage::Role::Host) return fetched(*state, tensor, storage);
  const auto options = at::TensorOptions()
                           .dtype(to_scalar_type(tensor.dtype))
                           .device(state->piece.runtime().device());
  const int64_t offset_bytes =
      storage.offset_bytes + tensor.layout.offset * static_cast<int64_t>(size_of(tensor.dtype));
  const StatePtr keep = state;
  const auto lease = state->lease;
  return at::from_blob(
      static_cast<char*>(state->frame.address(storage.buffer)) + offset_bytes, tensor.layout.sizes,
      tensor.layout.strides, [keep, lease](void*) {}, options);
}

/// An argument of forward that the plan does not save.
at::Tensor unsaved_argument(const RunState& state, const BackwardOperand& operand) {
  at::Tensor tensor = state.unsaved.at(operand.index).get();
  TORCH_CHECK(tensor.defined(), "[backward] a gradient of a gradient must read argument ",
              operand.name,
              " of forward as it was, but it was freed or changed in place since; keep it, or set "
              "ORTMODULE_BYPASS=1 to run the original module");
  return tensor;
}

/// A tensor of these sizes whose values are not read.
at::Tensor without_values(const RunState& state, const Value& value) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const auto options =
      at::TensorOptions().dtype(to_scalar_type(value.dtype)).device(state.piece.runtime().device());
  return at::empty({}, options).expand(evaluate(value.dims, state.plan().symbols));
}

/// Makes `tensor` the output of the current node that stands for the saved value `name`.
void connect(RunState& state, at::Tensor& tensor, const std::string& name) {
  const auto node = torch::autograd::get_current_node();
  for (const GraphOutput& output : state.piece.session().joint_graph().outputs())
    if (output.kind == OutputKind::Output && output.value && output.value->name == name)
      return torch::autograd::impl::set_gradient_edge(tensor,
                                                      {node, static_cast<uint32_t>(output.index)});
  const size_t outputs = state.piece.session().differentiable_outputs().size();
  const auto known = std::ranges::find(state.hidden, name);
  const auto position = outputs + static_cast<size_t>(known - state.hidden.begin());
  if (known == state.hidden.end()) {
    state.hidden.push_back(name);
    const uint32_t made = node->add_input_metadata(tensor);
    ORTM_ASSERT(made == position, "a saved value became output ", made, " of its node");
  }
  torch::autograd::impl::set_gradient_edge(tensor, {node, static_cast<uint32_t>(position)});
}

/// Gives `tensor` the edge of graph input `index`, to the node that computed it.
void connect_to_argument(const RunState& state, at::Tensor& tensor, size_t index) {
  visit_edges(state, [&](size_t input, const torch::autograd::Node& node, size_t edge) {
    if (input == index && node.next_edge(edge).is_valid())
      torch::autograd::impl::set_gradient_edge(tensor, node.next_edge(edge));
  });
}

/// The elements of `tensor` in this layout, whose offset counts from its first element.
at::Tensor viewed(const at::Tensor& tensor, const Layout& layout) {
  return tensor.as_strided(layout.sizes, layout.strides, tensor.storage_offset() + layout.offset);
}

/// The layout of the parts of complex numbers, a last dimension of 2.
Layout layout_of_parts(Layout layout) {
  for (int64_t& stride : layout.strides) stride *= 2;
  layout.sizes.push_back(2);
  layout.strides.push_back(1);
  layout.offset *= 2;
  return layout;
}

/// `tensor`, which is tensor `whole` of the plan, or the view `id` of it, also as complex numbers
/// or as the parts of such.
at::Tensor as_planned(const RunState& state, const at::Tensor& tensor, TensorId whole,
                      TensorId id) {
  if (id == whole) return tensor;
  const PlannedTensor& view = state.plan().tensors[id];
  if (to_scalar_type(view.dtype) == tensor.scalar_type()) return viewed(tensor, view.layout);
  if (tensor.is_complex()) return viewed(at::view_as_real(tensor), view.layout);
  return at::view_as_complex(viewed(tensor, layout_of_parts(view.layout)));
}

at::Tensor operand_of(const StatePtr& state, const BackwardOperand& operand, const Value& value,
                      bool training, const std::vector<at::Tensor>& grads,
                      const std::vector<at::Tensor>& saved) {
  const Plan& plan = state->plan();
  const size_t outputs = state->piece.session().differentiable_outputs().size();
  const auto position = [&](const std::vector<size_t>& list) {
    return static_cast<size_t>(std::ranges::find(list, operand.index) - list.begin());
  };
  switch (operand.kind) {
    case BackwardOperand::Kind::Argument:
      return as_planned(*state, saved.at(position(plan.saved_arguments)),
                        state->entry->program.argument_tensor[operand.index], operand.tensor);
    case BackwardOperand::Kind::Unsaved: return unsaved_argument(*state, operand);
    case BackwardOperand::Kind::Changed: {
      // A copy, since the next forward may change it again while this run has passes to come.
      at::Tensor& copy = state->changed[operand.index];
      if (!copy.defined()) copy = unsaved_argument(*state, operand).detach().clone();
      return copy;
    }
    case BackwardOperand::Kind::Output:
      return as_planned(*state,
                        saved.at(plan.saved_arguments.size() + position(plan.saved_outputs)),
                        plan.output_tensors[operand.index], operand.tensor);
    case BackwardOperand::Kind::Saved: {
      at::Tensor tensor = view_of_saved(state, operand.tensor);
      if (training && operand.differentiable) connect(*state, tensor, operand.name);
      return tensor;
    }
    case BackwardOperand::Kind::Recomputed: {
      at::Tensor tensor = without_values(*state, value);
      connect(*state, tensor, operand.name);
      return tensor;
    }
    case BackwardOperand::Kind::Edge: {
      at::Tensor tensor = without_values(*state, value);
      connect_to_argument(*state, tensor, operand.index);
      return tensor;
    }
    case BackwardOperand::Kind::Gradient: return grads.at(operand.index);
    case BackwardOperand::Kind::HiddenGradient: break;
  }
  size_t next = outputs;
  for (size_t left = operand.index;; ++next)
    if (grads.at(next).defined() && left-- == 0) return grads[next];
}

/// Records the peak of the passes so far: each ran beside what forward had saved. After the last
/// one (`ends`), forward's plans count them.
void record_peaks(RunState& state, bool ends) {
  int64_t planned = std::max(state.plan().forward_peak_bytes, state.planned_peak_bytes);
  int64_t measured = state.frame.peak_bytes();
  for (const DerivedRun& run : state.derived_runs) {
    const RunStatistics statistics = run.piece->statistics();
    planned = std::max(planned, run.outside_bytes + statistics.planned_peak_bytes);
    measured = std::max(measured, run.outside_bytes + statistics.measured_peak_bytes);
  }
  state.piece.finished_derived(planned, measured);
  if (ends)
    state.piece.session().memory()->assume_derived(state.plan().symbols,
                                                   planned - state.plan().saved_bytes);
}

/// Refuses a batch of gradients, which has no memory that steps could read.
void check_memory(const at::Tensor& grad) {
  TORCH_CHECK(grad.has_storage(),
              "[backward] ortmodule_py runs one backward at a time, but found a batch of them "
              "(is_grads_batched, vmap); compute them in a loop (vectorize=False), or set "
              "ORTMODULE_BYPASS=1 to run the original module");
}

}  // namespace

std::shared_ptr<const DerivedPiece> DerivedPieces::find(CompiledPiece& owner,
                                                        const std::shared_ptr<PlanEntry>& entry,
                                                        const BackwardQuery& query) {
  const std::lock_guard lock(mutex_);
  std::erase_if(by_entry_, [](const auto& item) { return item.second.entry.expired(); });
  OfEntry& known = by_entry_[entry.get()];
  known.entry = entry;
  std::shared_ptr<const DerivedPiece>& slot = known.by_query[query];
  if (slot) return slot;
  slot = make(owner, entry, query);
  return slot;
}

std::shared_ptr<const DerivedPiece> DerivedPieces::make(CompiledPiece& owner,
                                                        const std::shared_ptr<PlanEntry>& entry,
                                                        const BackwardQuery& query) try {
  BackwardPiece made = owner.session().backward_piece(*entry, query);
  const std::string text = print(*made.piece.graph, PrintOptions{true, true});
  std::shared_ptr<CompiledPiece>& compiled = by_graph_[{text, query.training}];
  if (!compiled) {
    PieceOptions options = owner.options();
    options.session.optimizer.training = query.training;
    options.is_derived = true;
    // If the two do not fit a budget together, forward says so, once it counts this piece.
    options.session.memory.strict = false;
    options.session.memory.mid_training = true;
    compiled =
        std::make_shared<CompiledPiece>(std::move(made.piece), std::vector<at::Tensor>(), options);
    const int64_t others = owner.session().memory()->budget_share().others_bytes;
    compiled->session().memory()->set_budget_share(
        {others + entry->program.plan->saved_bytes, 1.0, true});
  }
  return std::make_shared<DerivedPiece>(DerivedPiece{
      compiled, std::move(made.operands), std::move(made.results), std::move(made.symbols)});
} catch (const Error& error) {
  const std::string text = error.what();
  if (text.find("ORTMODULE_BYPASS") != std::string::npos) throw;
  throw Error(str(text,
                  ". This is a gradient of a gradient (create_graph=True): set "
                  "ORTMODULE_BYPASS=1 to run the original module"));
}

std::vector<std::shared_ptr<CompiledPiece>> DerivedPieces::all() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<CompiledPiece>> pieces;
  for (const auto& [graph, piece] : by_graph_) pieces.push_back(piece);
  return pieces;
}

bool needs_derived(const RunState& state, const std::vector<at::Tensor>& grads) {
  const size_t outputs = state.piece.session().differentiable_outputs().size();
  return at::GradMode::is_enabled() ||
         std::any_of(grads.begin() + static_cast<std::ptrdiff_t>(outputs), grads.end(),
                     [](const at::Tensor& grad) { return grad.defined(); });
}

std::vector<at::Tensor> derived_gradients(const StatePtr& state,
                                          const std::vector<at::Tensor>& grads,
                                          const std::vector<at::Tensor>& saved) {
  TORCH_CHECK(!state->piece.runner().graph_counts(),
              "[backward] CUDA graphs replay first derivatives only, but backward ran with "
              "create_graph=True; unset ORTMODULE_CUDA_GRAPH");
  std::vector<at::Tensor> given = grads;
  for (at::Tensor& grad : given) {
    if (!grad.defined()) continue;
    check_memory(grad);
    grad = grad.resolve_conj().resolve_neg();
  }
  const BackwardQuery query = query_of(*state, given);
  const auto derived = state->piece.derived().find(state->piece, state->entry, query);
  state->lease = state->lease ? state->lease : std::make_shared<int>(0);
  std::vector<at::Tensor> operands;
  const auto& inputs = derived->compiled->session().exported_graph().inputs();
  for (size_t i = 0; i < derived->operands.size(); ++i) {
    const Value& value = *inputs[i].value;
    const at::Tensor operand =
        operand_of(state, derived->operands[i], value, query.training, given, saved);
    operands.push_back(operand.to(to_scalar_type(value.dtype)));
  }
  std::vector<at::Tensor> gradients(query.wanted.size());
  const std::vector<at::Tensor> results =
      derived->compiled->run(operands, derived->symbols, nullptr, &state->seed.seed);
  int64_t outside_bytes = state->plan().saved_bytes;
  for (size_t i = state->piece.session().differentiable_outputs().size(); i < given.size(); ++i)
    if (given[i].defined()) outside_bytes += static_cast<int64_t>(given[i].nbytes());
  state->derived_runs.push_back({derived->compiled, outside_bytes});
  record_peaks(*state, !query.training);
  for (const BackwardResult& result : derived->results)
    gradients[result.input] = result.output >= 0 ? results[static_cast<size_t>(result.output)]
                                                 : operands[static_cast<size_t>(result.operand)];
  return gradients;
}

}  // namespace ortmodule::bindings
