#include "plan/step_builder.h"

#include <algorithm>
#include <functional>
#include <ranges>
#include <set>

#include "ops/op_def.h"

namespace ortmodule {
namespace {

/// The forward output, or the graph input of a gradient or mutation.
size_t position(const GraphOutput& output) { return static_cast<size_t>(output.index); }

size_t region_index(Region region) { return region == Region::Forward ? 0 : 1; }

}  // namespace

void check_sizes(const Value& value, const Sizes& sizes) {
  // Beyond this, arithmetic on bytes could overflow.
  constexpr int64_t kMostElements = int64_t{1} << 48;
  int64_t count = 1;
  for (int64_t size : sizes) {
    ORTM_CHECK(size >= 0, "[plan] sizes must not be negative, but found ", size, " in ",
               value.name);
    const bool fits = !__builtin_mul_overflow(count, std::max<int64_t>(size, 1), &count);
    ORTM_CHECK(fits && count <= kMostElements, "[plan] a tensor must have at most ", kMostElements,
               " elements, but found ", value.name, " with a size of ", size);
  }
}

bool same_strides(const Layout& layout, const Sizes& wanted) {
  if (element_count(layout.sizes) == 0) return true;
  for (size_t i = 0; i < wanted.size(); ++i)
    if (layout.sizes[i] > 1 && layout.strides[i] != wanted[i]) return false;
  return true;
}

StepBuilder::StepBuilder(Plan& plan, const Lowered& lowered, const PlanRequest& request)
    : plan_(plan),
      lowered_(lowered),
      request_(request),
      tensor_of_value_(*lowered.graph, {}),
      sizes_(*lowered.graph, std::nullopt),
      of_form_(lowered.forms) {
  plan_.graph = lowered.graph;
  plan_.symbols = request.symbols;
  bind_arguments();
  edges_.emplace(lowered, tensor_of_value_);
}

StepBuilder::StepBuilder(Plan& plan, const Plan& base, const Lowered& lowered,
                         const PlanRequest& request)
    : StepBuilder(plan, lowered, request) {
  // Argument tensors come first in both plans, so the tensor ids agree.
  for (TensorId tensor : plan_.tensors.ids())  // an edge has the layout that forward gave it
    plan_.tensors[tensor].layout = base.tensors[tensor].layout;
  for (TensorId tensor : base.tensors.ids() | std::views::drop(plan_.tensors.size()))
    plan_.tensors.add(base.tensors[tensor]);
  plan_.storages = base.storages;
  plan_.forward_graph = base.graph;
  for (PlannedStorage& storage : plan_.storages) {
    const bool of_backward = storage.role == PlannedStorage::Role::Gradient ||
                             storage.role == PlannedStorage::Role::Backward;
    if (!of_backward) continue;
    if (storage.becomes_gradient) {
      storage.role = PlannedStorage::Role::Saved;
      continue;
    }
    storage.role = PlannedStorage::Role::Backward;
    storage.bytes = 0;
  }
  plan_.steps.assign(base.steps.begin(), base.steps.begin() + base.forward_steps);
  plan_.forward_steps = base.forward_steps;
  plan_.output_tensors = base.output_tensors;
  plan_.mutated_arguments = base.mutated_arguments;
  plan_.old_contents = base.old_contents;
  // The forward nodes of both graphs are copies of each other, in the same order.
  std::unordered_map<const Value*, const Value*> twin;
  auto other = base.graph->nodes().begin();
  for (const auto& node : lowered.graph->nodes()) {
    if (node->region != Region::Forward) break;
    ORTM_ASSERT((*other)->op == node->op, "forward parts of two plans differ");
    for (size_t i = 0; i < node->outputs().size(); ++i) twin[(*other)->output(i)] = node->output(i);
    ++other;
  }
  for (TensorId tensor : base.tensors.ids()) {
    auto found = twin.find(base.tensors[tensor].value);
    if (found == twin.end()) continue;
    TensorId& slot = tensor_of_value_[found->second];
    if (!slot) slot = tensor;
  }
}

Layout grad_output_layout(const Layout& output) {
  if (is_dense(output)) return {output.sizes, output.strides, 0};
  return contiguous_layout(output.sizes);
}

void StepBuilder::bind_arguments() {
  const auto& inputs = lowered_.graph->inputs();
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Value* value = inputs[i].value;
    const Sizes& sizes = sizes_of(value);
    Layout layout = contiguous_layout(sizes);
    const auto output = static_cast<size_t>(inputs[i].index);
    if (inputs[i].kind != InputKind::GradOutput) {
      if (i < request_.arguments.size()) layout = request_.arguments[i];
    } else if (output < request_.output_strides.size() &&
               request_.output_strides[output].size() == sizes.size()) {
      layout = grad_output_layout({sizes, request_.output_strides[output], 0});
    }
    ORTM_CHECK(layout.sizes == sizes, "[plan] argument ", value->name,
               " must have the sizes it was captured with");
    layout.offset = 0;
    const StorageId storage = new_storage(PlannedStorage::Role::Argument,
                                          storage_bytes(layout, value->dtype), {&value->name});
    plan_.storages[storage].index = i;
    tensor_of_value_[value] = new_tensor(value, value->dtype, std::move(layout), storage);
  }
}

const Sizes& StepBuilder::sizes_of(const Value* value) {
  std::optional<Sizes>& sizes = sizes_[value];
  if (!sizes) {
    sizes = evaluate(value->dims, request_.symbols);
    check_sizes(*value, *sizes);
  }
  return *sizes;
}

StorageId StepBuilder::new_storage(PlannedStorage::Role role, int64_t bytes, StorageName name) {
  PlannedStorage storage;
  storage.role = role;
  storage.bytes = bytes;
  storage.name = name;
  return plan_.storages.add(std::move(storage));
}

StorageId StepBuilder::new_temporary(Region region, int64_t bytes, StorageName name) {
  const bool forward = region == Region::Forward;
  return new_storage(forward ? PlannedStorage::Role::Forward : PlannedStorage::Role::Backward,
                     bytes, name);
}

TensorId StepBuilder::new_tensor(const Value* value, DType dtype, Layout layout,
                                 StorageId storage) {
  return plan_.tensors.add({value, dtype, std::move(layout), storage});
}

TensorId StepBuilder::tensor_of(const Value* value, Region region) {
  const TensorId tensor = tensor_of_value_[value];
  ORTM_ASSERT(tensor, "value ", value->name, " is read before it is computed");
  return region == Region::Backward ? with_old_content(tensor) : tensor;
}

TensorId StepBuilder::with_old_content(TensorId tensor) {
  if (plan_.old_contents.empty()) return tensor;
  const PlannedTensor changed = plan_.tensors[tensor];
  for (const auto& [argument, copy] : plan_.old_contents) {
    if (plan_.tensors[argument].storage != changed.storage) continue;
    auto [slot, is_new] = in_old_content_.try_emplace(tensor);
    if (is_new)
      slot->second =
          new_tensor(changed.value, changed.dtype, changed.layout, plan_.tensors[copy].storage);
    return slot->second;
  }
  return tensor;
}

void StepBuilder::build_forward() {
  plan_.output_tensors.clear();
  for (const GraphOutput& output : lowered_.graph->outputs())
    if (output.kind == OutputKind::Output && output.value)
      output_of_.emplace(output.value, position(output));
  protect_mutated_arguments();
  for (size_t i = 0; i < lowered_.forward_steps; ++i) add_step(lowered_.steps[i], Region::Forward);
  claim_rest(Region::Forward);
  write_back();
  plan_.forward_steps = plan_.step_count();
}

void StepBuilder::build_backward() {
  for (const GraphOutput& output : lowered_.graph->outputs())
    if (output.kind == OutputKind::Gradient) {
      gradients_of_[output.value].push_back(plan_.gradients.size());
      plan_.gradients.push_back({.input = position(output), .tensor = {}, .range = 0});
    }
  for (size_t i = lowered_.forward_steps; i < lowered_.steps.size(); ++i)
    add_step(lowered_.steps[i], Region::Backward);
  claim_rest(Region::Backward);
}

void StepBuilder::add_step(const StepNodes& nodes, Region region) {
  if (nodes.op->kind == OpKind::View) {
    add_view(nodes, region);
  } else {
    add_kernel_step(nodes, region);
  }
  for (const Node* node : nodes.nodes) {
    for (const Value* output : node->outputs())
      if (const TensorId tensor = tensor_of_value_[output])
        edges_->found(output, plan_.tensors[tensor].layout, plan_);
    claim_results(*node);
  }
}

void StepBuilder::add_view(const StepNodes& nodes, Region region) {
  const OpDef& def = *nodes.op;
  const Node& node = *nodes.nodes.front();
  std::optional<Attrs> resolved;
  if (nodes.reads_symbols) resolved = node.attrs.resolve(request_.symbols);
  const Attrs& attrs = resolved ? *resolved : node.attrs;
  TensorId source = tensor_of(node.input(0), region);
  for (size_t i = 0; i < node.outputs().size(); ++i) {
    const Value* output = node.output(i);
    const Sizes& sizes = sizes_of(output);
    Layout in = plan_.tensors[source].layout;
    std::optional<Layout> layout = def.view(in, attrs, sizes, i);
    if (!layout) {
      source = copy_for_view(source, node, region);
      in = plan_.tensors[source].layout;
      layout = def.view(in, attrs, sizes, i);
      ORTM_ASSERT(layout, "no view of a contiguous tensor for ", node.op);
    }
    const TensorId result =
        new_tensor(output, output->dtype, std::move(*layout), plan_.tensors[source].storage);
    tensor_of_value_[output] = result;
    plan_.views.push_back({source, result, number_of(nodes), static_cast<uint32_t>(i)});
  }
}

TensorId StepBuilder::copy_for_view(TensorId source, const Node& node, Region region) {
  const std::string why = str(node.op, " has no view of this layout");
  const CopiedFn copied = op_def(node.op).copied;
  if (!copied) return contiguous_copy(source, region, why);
  const PlannedTensor& tensor = plan_.tensors[source];
  note_copy(tensor.storage, why);
  return copy_to(source, copied(tensor.layout.sizes), region);
}

TensorId StepBuilder::copy_to(TensorId tensor, const Layout& layout, Region region,
                              StorageId storage) {
  const PlannedTensor source = plan_.tensors[tensor];
  PlannedStep step;
  step.region = region;
  const auto known = std::ranges::find_if(copies_, [&](size_t at) {
    const StepFacts& facts = *plan_.steps[at].facts;
    return facts.inputs[0].dtype == source.dtype && facts.inputs[0].layout == source.layout &&
           facts.outputs[0].layout == layout;
  });
  if (known != copies_.end()) {
    take(plan_, plan_.steps[*known], step);
  } else {
    plan_copy(source, layout, step);
    if (copies_.size() < kMostCopies) copies_.push_back(plan_.steps.size());
  }
  if (!storage)
    storage = new_temporary(region, storage_bytes(layout, source.dtype),
                            {plan_.storages[source.storage].name.of, StorageName::Kind::Copy});
  step.in.push_back(tensor);
  const TensorId result = new_tensor(nullptr, source.dtype, layout, storage);
  step.out.push_back(result);
  plan_.steps.push_back(std::move(step));
  return result;
}

void StepBuilder::plan_copy(const PlannedTensor& source, const Layout& layout, PlannedStep& step) {
  StepFacts facts;
  NodeFacts& node = facts.nodes.emplace_back();
  node.op = "Contiguous";
  node.inputs.push_back({OperandRef::Kind::Input, 0, 0.0});
  node.input_dtypes.push_back(source.dtype);
  node.outputs.push_back(0);
  node.output_dtypes.push_back(source.dtype);
  node.output_sizes.push_back(layout.sizes);
  node.output_used.push_back(true);
  facts.inputs.push_back({source.dtype, source.layout});
  facts.outputs.push_back({source.dtype, layout});
  std::string why;
  step.kernel = select_kernel("Contiguous", lowered_.device, facts, &why);
  ORTM_ASSERT(step.kernel, "no copy kernel for ", name_of(source.dtype), ": ", why);
  if (step.kernel->prepare) step.prepared = step.kernel->prepare(facts);
  step.facts = std::make_shared<const StepFacts>(std::move(facts));
}

TensorId StepBuilder::contiguous_copy(TensorId tensor, Region region, const std::string& why) {
  auto [slot, is_new] = contiguous_copy_[region_index(region)].try_emplace(tensor);
  if (!is_new) return slot->second;
  const Layout layout = contiguous_layout(plan_.tensors[tensor].layout.sizes);
  const TensorId copy = copy_to(tensor, layout, region);
  contiguous_copy_[region_index(region)][tensor] = copy;
  note_copy(plan_.tensors[tensor].storage, why);
  return copy;
}

void StepBuilder::note_copy(StorageId storage, const std::string& why) {
  plan_.notes.push_back(str("copy of ", plan_.storages[storage].name.text(), ": ", why));
}

// --- results ------------------------------------------------------------------------------------

TensorId StepBuilder::claim(TensorId tensor, PlannedStorage::Role role, size_t index,
                            const Sizes& strides, Region region) {
  const PlannedTensor t = plan_.tensors[tensor];
  PlannedStorage& storage = plan_.storages[t.storage];
  const bool whole = t.layout.offset == 0 && is_dense(t.layout) &&
                     storage.bytes == storage_bytes(t.layout, t.dtype);
  const bool free = storage.role == (region == Region::Forward ? PlannedStorage::Role::Forward
                                                               : PlannedStorage::Role::Backward);
  if (free && whole && same_strides(t.layout, strides)) {
    storage.role = role;
    storage.index = index;
    // The stride of a dimension of size 1 addresses nothing, but the caller can read it.
    plan_.tensors[tensor].layout.strides = strides;
    return tensor;
  }
  Layout layout{t.layout.sizes, strides, 0};
  const TensorId copy = copy_to(tensor, layout, region);
  PlannedStorage& target = plan_.storage_of(copy);
  target.role = role;
  target.index = index;
  return copy;
}

Sizes StepBuilder::strides_of_gradient(const Value& value, size_t gradient) {
  const Value* argument = lowered_.graph->inputs()[plan_.gradients[gradient].input].value;
  const Layout& like = plan_.tensors[tensor_of_value_[argument]].layout;
  return is_dense(like) ? like.strides : contiguous_strides(sizes_of(&value));
}

Sizes StepBuilder::strides_of_output(const Value& value, size_t index) {
  const bool is_given =
      index < request_.output_strides.size() && !request_.output_strides[index].empty();
  return is_given ? request_.output_strides[index] : contiguous_strides(sizes_of(&value));
}

void StepBuilder::claim_results(const Node& node) {
  if (node.region == Region::Forward) return;  // claim_rest copies them in backward
  for (const Value* value : node.outputs()) {
    const auto found = value->is_graph_output() ? gradients_of_.find(value) : gradients_of_.end();
    if (found == gradients_of_.end()) continue;
    const TensorId tensor = tensor_of_value_[value];
    for (size_t g : found->second) {
      plan_.gradients[g].tensor =
          claim(tensor, PlannedStorage::Role::Gradient, plan_.gradients[g].input,
                strides_of_gradient(*value, g), Region::Backward);
    }
  }
}

void StepBuilder::claim_rest(Region region) {
  size_t next = 0;  // gradient
  for (const GraphOutput& output : lowered_.graph->outputs()) {
    const size_t g = output.kind == OutputKind::Gradient ? next++ : 0;
    if (!output.value) continue;
    if (region == Region::Forward && output.kind == OutputKind::Output) {
      const size_t index = position(output);
      if (plan_.output_tensors.size() <= index) plan_.output_tensors.resize(index + 1);
      const TensorId tensor = tensor_of(output.value, region);
      plan_.output_tensors[index] = claim(tensor, PlannedStorage::Role::Output, index,
                                          strides_of_output(*output.value, index), region);
    }
    if (region == Region::Backward && output.kind == OutputKind::Gradient) {
      if (plan_.gradients[g].tensor) continue;
      const TensorId tensor = tensor_of(output.value, region);
      plan_.gradients[g].tensor = claim(tensor, PlannedStorage::Role::Gradient, position(output),
                                        contiguous_strides(sizes_of(output.value)), region);
    }
  }
}

// --- mutated arguments --------------------------------------------------------------------------

namespace {

/// Whether a step of backward reads the storage of `value`, itself or through views.
bool backward_reads(const Value& value) {
  return std::any_of(value.uses().begin(), value.uses().end(), [](Use use) {
    if (use.node->region == Region::Backward) return true;
    const auto& views = use.node->outputs();
    return op_def(use.node->op).kind == OpKind::View &&
           std::any_of(views.begin(), views.end(), [](Value* v) { return backward_reads(*v); });
  });
}

}  // namespace

void StepBuilder::protect_mutated_arguments() {
  for (const GraphOutput& output : lowered_.graph->outputs()) {
    if (output.kind != OutputKind::Mutation) continue;
    const Value* argument = lowered_.graph->inputs()[position(output)].value;
    if (!backward_reads(*argument)) continue;
    const TensorId tensor = tensor_of_value_[argument];
    // The copy has the argument's layout, so that each view of one is a view of the other.
    const Layout layout = plan_.tensors[tensor].layout;
    plan_.old_contents.emplace_back(tensor, copy_to(tensor, layout, Region::Forward));
    plan_.notes.push_back("backward keeps the old content of " + argument->name);
  }
}

void StepBuilder::write_back() {
  std::vector<Write> writes;
  std::set<StorageId> written;  // storages
  for (const GraphOutput& output : lowered_.graph->outputs()) {
    if (output.kind != OutputKind::Mutation || !output.value) continue;
    const Value* argument = lowered_.graph->inputs()[position(output)].value;
    if (argument == output.value) continue;
    const TensorId target = tensor_of_value_[argument];
    writes.push_back({tensor_of(output.value, Region::Forward), target});
    written.insert(plan_.tensors[target].storage);
    plan_.mutated_arguments.push_back(position(output));
  }
  // A new value may be a view of a mutated argument (buffers that are swapped or transposed): copy
  // it before any argument is overwritten.
  for (Write& write : writes) {
    const PlannedTensor source = plan_.tensors[write.source];
    if (!written.contains(source.storage)) continue;
    const Layout dense = contiguous_layout(source.layout.sizes);
    write.source = copy_to(write.source, dense, Region::Forward);
  }
  write_together(writes);
  for (const Write& write : writes) {
    const PlannedTensor old = plan_.tensors[write.target];
    copy_to(write.source, old.layout, Region::Forward, old.storage);
  }
}

void StepBuilder::write_together(std::vector<Write>& writes) {
  StepFacts facts;
  facts.nodes.emplace_back().op = "WriteBack";
  const auto lies_alike = [&](const Write& write) {
    const Layout &from = plan_.tensors[write.source].layout,
                 &to = plan_.tensors[write.target].layout;
    return is_dense(from) && from.sizes == to.sizes && same_strides(from, to.strides);
  };
  const auto alike = std::ranges::stable_partition(writes, std::not_fn(lies_alike));
  PlannedStep step;
  step.kernel = select_kernel("WriteBack", lowered_.device, facts, nullptr);
  if (!step.kernel || alike.size() < 2) return;
  for (const Write& write : alike) {
    const PlannedTensor from = plan_.tensors[write.source], to = plan_.tensors[write.target];
    NodeFacts& node = facts.nodes.front();
    node.inputs.push_back({OperandRef::Kind::Input, static_cast<int>(facts.inputs.size()), 0.0});
    node.input_dtypes.push_back(from.dtype);
    node.outputs.push_back(static_cast<int>(facts.outputs.size()));
    node.output_dtypes.push_back(from.dtype);
    node.output_sizes.push_back(to.layout.sizes);
    node.output_used.push_back(true);
    facts.inputs.push_back({from.dtype, from.layout});
    facts.outputs.push_back({from.dtype, to.layout});
    step.in.push_back(write.source);
    step.out.push_back(new_tensor(nullptr, from.dtype, to.layout, to.storage));
  }
  step.region = Region::Forward;
  step.facts = std::make_shared<const StepFacts>(std::move(facts));
  plan_.steps.push_back(std::move(step));
  writes.erase(alike.begin(), alike.end());
}

}  // namespace ortmodule
