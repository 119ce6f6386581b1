// The kernel steps of StepBuilder: facts, kernels, and the layouts of results.
#include <algorithm>
#include <utility>

#include "lower/step_forms.h"
#include "ops/op_def.h"
#include "plan/step_builder.h"
#include "plan/step_layouts.h"

namespace ortmodule {
namespace {

/// Whether `node` finds the operand in a register of the group, where another node left it.
bool is_register(const Value& operand, const Node& node, const StepNodes& nodes) {
  return operand.producer() && operand.producer() != &node &&
         std::ranges::find(nodes.nodes, operand.producer()) != nodes.nodes.end();
}

/// A group moves single elements where layouts differ, so each access takes a whole sector of the
/// L2 cache. That is cheaper than a launch while the tensors stay there; larger ones are copied by
/// tiles.
constexpr int64_t kMostStridedBytes = int64_t{16} << 20;

}  // namespace

TensorList StepBuilder::operands_of(const StepNodes& nodes, Region region) {
  TensorList in;
  for (const Node* node : nodes.nodes)
    for (const Value* input : node->inputs()) {
      const bool read = input && !input->is_literal() && !is_register(*input, *node, nodes);
      const TensorId tensor = read ? tensor_of(input, region) : TensorId();
      if (!nodes.pointwise || (read && std::ranges::find(in, tensor) == in.end()))
        in.push_back(tensor);
    }
  return in;
}

void StepBuilder::fill_operands(const StepNodes& nodes, StepFacts& facts, const TensorList& in,
                                Region region) {
  facts.nodes.reserve(nodes.nodes.size());
  for (const Node* node : nodes.nodes) {
    NodeFacts& n = facts.nodes.emplace_back();
    n.inputs.reserve(node->inputs().size());
    n.input_dtypes.reserve(node->inputs().size());
    n.op = node->op;
    n.attrs = node->attrs.resolve(request_.symbols);
    for (const Value* input : node->inputs()) {
      const size_t place = n.inputs.size();
      OperandRef& ref = n.inputs.emplace_back();
      n.input_dtypes.push_back(input ? input->dtype : DType::Undefined);
      if (!input) continue;
      if (input->is_literal()) {
        ref.kind = OperandRef::Kind::Literal;
        const Scalar& scalar = input->literal();
        ref.literal =
            std::holds_alternative<double>(scalar)
                ? std::get<double>(scalar)
                : static_cast<double>(std::get<DimExpr>(scalar).evaluate(request_.symbols));
      } else if (is_register(*input, *node, nodes)) {
        ref.kind = OperandRef::Kind::Register;
        const auto member = std::ranges::find(nodes.nodes, input->producer());
        ref.index = static_cast<int>(member - nodes.nodes.begin());
      } else {
        ref.kind = OperandRef::Kind::Input;
        const auto known =
            nodes.pointwise ? std::ranges::find(in, tensor_of(input, region)) : in.begin() + place;
        ref.index = static_cast<int>(known - in.begin());
      }
    }
  }
}

StepFacts StepBuilder::make_facts(const StepNodes& nodes, const TensorList& in, Region region) {
  StepFacts facts;
  facts.threads = request_.threads;
  fill_operands(nodes, facts, in, region);
  facts.inputs.reserve(in.size());
  for (TensorId tensor : in) {
    if (!tensor) {
      facts.inputs.emplace_back();
    } else {
      const PlannedTensor& t = plan_.tensors[tensor];
      facts.inputs.push_back({t.dtype, t.layout});
    }
  }
  for (size_t n = 0; n < nodes.nodes.size(); ++n) {
    const Node& node = *nodes.nodes[n];
    for (const Value* output : node.outputs()) {
      const bool inside = nodes.pointwise && stays_inside(*output, nodes);
      const Sizes& sizes = sizes_of(output);
      facts.nodes[n].output_dtypes.push_back(output->dtype);
      facts.nodes[n].output_sizes.push_back(sizes);
      facts.nodes[n].output_used.push_back(!output->uses().empty() || output->is_graph_output());
      facts.nodes[n].outputs.push_back(inside ? -1 : static_cast<int>(facts.outputs.size()));
      if (!inside) facts.outputs.push_back({output->dtype, contiguous_layout(sizes)});
    }
  }
  return facts;
}

void StepBuilder::choose_kernel(PlannedStep& step, const StepFacts& facts, const StepNodes& nodes) {
  std::string why;
  const std::string& op = nodes.nodes.front()->op;
  step.kernel =
      select_kernel(nodes.pointwise ? "PointwiseGroup" : op, lowered_.device, facts, &why);
  if (step.kernel) return;
  const Node& node = *nodes.nodes.front();
  throw Error(str("[kernel] ", node.op, " needs a kernel, but found none that takes it (",
                  node.origin.module, ", ", node.origin.source, "): ", why));
}

std::vector<Layout> StepBuilder::conform_operands(PlannedStep& step, StepFacts& facts) {
  std::vector<Layout> given;
  for (size_t i = 0; i < step.in.size(); ++i) {
    if (!step.in[i]) continue;
    const Layout layout = plan_.tensors[step.in[i]].layout;
    if (takes_layout(*step.kernel, i, layout)) continue;
    if (given.empty())
      for (const OperandFacts& operand : facts.inputs) given.push_back(operand.layout);
    copy_operand(step, i);
    facts.inputs[i].layout = plan_.tensors[step.in[i]].layout;
  }
  return given;
}

void StepBuilder::copy_operand(PlannedStep& step, size_t i) {
  step.in[i] = contiguous_copy(step.in[i], step.region,
                               str(step.kernel->name, " wants operand ", i, " contiguous"));
}

void StepBuilder::add_kernel_step(const StepNodes& nodes, Region region) {
  PlannedStep step;
  step.nodes.assign(nodes.nodes.begin(), nodes.nodes.end());
  step.lowered = number_of(nodes);
  step.region = region;
  step.in = operands_of(nodes, region);
  std::vector<Sizes> wanted = wanted_strides(nodes);
  std::optional<int64_t> workspace_bytes = plan_as_before(nodes, wanted, step);
  if (!workspace_bytes) workspace_bytes = plan_alone(nodes, std::move(wanted), step);
  add_results(nodes, step);
  if (*workspace_bytes > 0)
    step.workspace_storage = new_temporary(
        region, *workspace_bytes, {&nodes.nodes.front()->op, StorageName::Kind::Workspace});
  plan_.steps.push_back(std::move(step));
}

void StepBuilder::take_steps_of(const Plan* earlier) {
  const bool same_graph = earlier && earlier->graph == lowered_.graph;
  if (!same_graph) return;
  plan_.tensors.reserve(earlier->tensors.size());
  plan_.storages.reserve(earlier->storages.size());
  plan_.steps.reserve(earlier->steps.size());
  if (lowered_.edges.empty()) earlier_ = earlier;
}

Sizes StepBuilder::wanted_strides_of(const Value& result) {
  if (result.uses().empty()) {
    const auto gradient = gradients_of_.find(&result);
    if (gradient != gradients_of_.end())
      return strides_of_gradient(result, gradient->second.front());
    const auto output = output_of_.find(&result);
    return output != output_of_.end() ? strides_of_output(result, output->second) : Sizes();
  }
  // A view that would copy to another layout, for all readers.
  if (result.is_graph_output()) return {};
  const CopiedFn copied = op_def(result.uses()[0].node->op).copied;
  const bool by_all = copied && std::ranges::all_of(result.uses(), [&](const Use& use) {
                        return op_def(use.node->op).copied == copied;
                      });
  return by_all ? copied(sizes_of(&result)).strides : Sizes();
}

std::vector<Sizes> StepBuilder::wanted_strides(const StepNodes& nodes) {
  std::vector<Sizes> wanted;
  if (!nodes.pointwise || lowered_.device != Device::CUDA) return wanted;
  for (const Node* node : nodes.nodes) {
    const Value& result = *node->output();
    if (stays_inside(result, nodes)) continue;
    const Sizes& sizes = sizes_of(&result);
    Sizes& strides = wanted.emplace_back();
    if (storage_bytes(contiguous_layout(sizes), result.dtype) > kMostStridedBytes) continue;
    strides = wanted_strides_of(result);
    // Elements may share memory where the caller wants an expanded result.
    if (!strides.empty() && !is_dense({sizes, strides, 0})) strides.clear();
  }
  return wanted;
}

std::optional<int64_t> StepBuilder::plan_as_before(const StepNodes& nodes,
                                                   const std::vector<Sizes>& wanted,
                                                   PlannedStep& step) {
  for (const Known& known : of_form_[nodes.form]) {
    if (known.wanted != wanted || !is_alike(plan_.steps[known.step], known.given, nodes, step))
      continue;
    const int64_t workspace_bytes = take(plan_, plan_.steps[known.step], step);
    for (size_t i = 0; i < known.given.size(); ++i)
      if (step.in[i] && !(known.given[i] == step.facts->inputs[i].layout)) copy_operand(step, i);
    return workspace_bytes;
  }
  const PlannedStep* twin = twin_of(nodes, wanted);
  if (!twin || !is_alike(*twin, {}, nodes, step)) return std::nullopt;
  of_form_[nodes.form].push_back({plan_.steps.size(), {}, wanted});
  return take(*earlier_, *twin, step);
}

int64_t StepBuilder::take(const Plan& plan, const PlannedStep& earlier, PlannedStep& step) {
  step.kernel = earlier.kernel;
  step.facts = earlier.facts;
  step.prepared = earlier.prepared;
  step.library_bytes = earlier.library_bytes;
  const StorageId workspace = earlier.workspace_storage;
  return workspace ? plan.storages[workspace].bytes : 0;
}

const PlannedStep* StepBuilder::twin_of(const StepNodes& nodes, const std::vector<Sizes>& wanted) {
  if (!earlier_) return nullptr;
  // Both plans have the steps in one order, with copies in between.
  const std::vector<PlannedStep>& steps = earlier_->steps;
  size_t at = next_earlier_;
  while (at < steps.size() &&
         (steps[at].nodes.empty() || steps[at].nodes.front() != nodes.nodes.front()))
    ++at;
  if (at == steps.size()) return nullptr;
  next_earlier_ = at + 1;
  const PlannedStep& twin = steps[at];
  // What a library takes may have been measured since.
  if (nodes.reads_symbols || twin.kernel->library_bytes || twin.kernel->inexact ||
      twin.facts->threads != request_.threads)
    return nullptr;
  for (size_t n = 0; n < nodes.nodes.size(); ++n)
    for (size_t o = 0; o < nodes.nodes[n]->outputs().size(); ++o)
      if (sizes_of(nodes.nodes[n]->output(o)) != twin.facts->nodes[n].output_sizes[o])
        return nullptr;
  for (size_t i = 0; i < wanted.size(); ++i)
    if (!wanted[i].empty() && twin.facts->outputs[i].layout.strides != wanted[i]) return nullptr;
  return &twin;
}

bool StepBuilder::is_alike(const PlannedStep& earlier, const std::vector<Layout>& given,
                           const StepNodes& nodes, const PlannedStep& step) {
  const StepFacts& facts = *earlier.facts;
  if (facts.inputs.size() != step.in.size()) return false;
  for (size_t i = 0; i < step.in.size(); ++i) {
    if (!step.in[i]) continue;  // by their form, in both
    const Layout& wanted = given.empty() ? facts.inputs[i].layout : given[i];
    if (!(plan_.tensors[step.in[i]].layout == wanted)) return false;
  }
  // The operands of a group are in the same places.
  for (size_t n = 0; n < nodes.nodes.size(); ++n)
    for (size_t i = 0; i < facts.nodes[n].inputs.size(); ++i) {
      const OperandRef& ref = facts.nodes[n].inputs[i];
      if (ref.kind == OperandRef::Kind::Input &&
          step.in[static_cast<size_t>(ref.index)] !=
              tensor_of(nodes.nodes[n]->input(i), step.region))
        return false;
    }
  return true;
}

int64_t StepBuilder::plan_alone(const StepNodes& nodes, std::vector<Sizes> wanted,
                                PlannedStep& step) {
  StepFacts facts = make_facts(nodes, step.in, step.region);
  choose_kernel(step, facts, nodes);
  // Copies are steps of their own, before this one.
  std::vector<Layout> given = conform_operands(step, facts);
  if (!given.empty()) choose_kernel(step, facts, nodes);
  const std::vector<Layout> results =
      choose_output_layouts(nodes.pointwise, *step.kernel, wanted, facts);
  for (size_t n = 0; n < results.size(); ++n)
    edges_->found(nodes.nodes[n]->output(), results[n], plan_);
  if (step.kernel->library_bytes)
    step.library_bytes = static_cast<int64_t>(step.kernel->library_bytes(facts));
  if (step.kernel->inexact) plan_.exact = false;
  if (step.kernel->prepare) step.prepared = step.kernel->prepare(facts);
  const auto workspace = step.kernel->workspace_bytes;
  const int64_t workspace_bytes = workspace ? static_cast<int64_t>(workspace(facts)) : 0;
  step.facts = std::make_shared<const StepFacts>(std::move(facts));
  // Gradient edges take the layouts of the values inside of each group.
  if (lowered_.edges.empty())
    of_form_[nodes.form].push_back({plan_.steps.size(), std::move(given), std::move(wanted)});
  return workspace_bytes;
}

void StepBuilder::add_results(const StepNodes& nodes, PlannedStep& step) {
  size_t next = 0;
  for (size_t n = 0; n < nodes.nodes.size(); ++n)
    for (size_t o = 0; o < nodes.nodes[n]->outputs().size(); ++o) {
      if (step.facts->nodes[n].outputs[o] < 0) continue;
      const Value* output = nodes.nodes[n]->output(o);
      const OperandFacts& facts = step.facts->outputs[next++];
      // An unused output takes no memory if the kernel allocates its outputs or can skip it.
      const bool left_out = (step.kernel->allocates_outputs || step.kernel->leaves_out_unused) &&
                            !step.facts->nodes[n].output_used[o];
      const StorageId storage = new_temporary(
          step.region, left_out ? 0 : storage_bytes(facts.layout, output->dtype), {&output->name});
      const TensorId tensor = new_tensor(output, output->dtype, facts.layout, storage);
      tensor_of_value_[output] = tensor;
      plan_.storages[storage].kernel_allocated = step.kernel->allocates_outputs;
      if (step.kernel->host_outputs) plan_.storages[storage].role = PlannedStorage::Role::Host;
      step.out.push_back(tensor);
    }
}

}  // namespace ortmodule
