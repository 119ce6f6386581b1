// The results of the memory optimizer as Python values.
#include <torch/csrc/utils/pybind.h>

#include "bindings/casts/sizes.h"
#include "bindings/engine.h"
#include "bindings/topics.h"
#include "optimizer/loss_head.h"
#include "optimizer/memory/memory_optimizer.h"
#include "plan/timeline.h"

namespace ortmodule::bindings {
namespace py = pybind11;
namespace {

py::dict figures(const PlanFigures& figures) {
  py::dict result;
  result["peak_bytes"] = figures.peak_bytes;
  result["accumulating_peak_bytes"] = figures.accumulating_peak_bytes;
  result["saved_bytes"] = figures.saved_bytes;
  result["time_us"] = figures.time_us;
  result["host_bytes"] = figures.host_bytes;
  return result;
}

std::vector<std::string> names(const std::vector<const Value*>& values) {
  std::vector<std::string> result;
  for (const Value* value : values) result.push_back(value->name);
  return result;
}

py::dict row_facts(const ClusterRow& row, const MemoryChoice& choice, const SymbolValues& sizes) {
  py::dict result;
  result["cluster_id"] = row.cluster_id;
  result["strategy"] = static_cast<int>(row.strategy);
  result["frequency"] = row.stashes.size();
  result["applied"] = row.applied;
  result["saving"] = row.saving_bytes.text();
  result["saving_bytes"] = row.saving_bytes.evaluate(sizes);
  result["reason"] = row.reason;
  std::vector<std::string> origins;
  for (size_t s : row.stashes) origins.push_back(choice.stashes[s].node->origin.module);
  result["modules"] = origins;
  return result;
}

py::dict stash_facts(const Stash& stash, const std::optional<Strategy>& chosen,
                     const SymbolValues& sizes) {
  py::dict result;
  result["op"] = stash.node->op;
  result["values"] = names(stash.values);
  result["module"] = stash.node->origin.module;
  result["source"] = stash.node->origin.source;
  result["bytes"] = stash.bytes.evaluate(sizes);
  result["symbolic"] = stash.bytes.text();
  result["refusal"] = stash.refusal;
  result["chosen"] = chosen ? static_cast<int>(*chosen) : 0;
  py::list outputs;
  for (const Value* value : stash.values) {
    py::dict output;
    output["index"] = value->output_index();
    std::vector<std::string> dims;
    for (const DimExpr& dim : value->dims) dims.push_back(dim.text());
    output["dims"] = dims;
    output["element_bytes"] = size_of(value->dtype);
    outputs.append(output);
  }
  result["outputs"] = outputs;
  py::list subgraphs;
  for (const RecomputeSubgraph& subgraph : stash.subgraphs) {
    py::dict item;
    item["cluster_id"] = subgraph.cluster_id;
    item["strategy"] = static_cast<int>(subgraph.strategy);
    item["saving_bytes"] = subgraph.saving_bytes.evaluate(sizes);
    subgraphs.append(item);
  }
  result["plans"] = subgraphs;
  return result;
}

py::dict choice_facts(const MemoryChoice& choice) {
  const SymbolValues& sizes = choice.sizes;
  py::dict result;
  py::list rows, stashes, layers;
  for (const ClusterRow& row : choice.rows) rows.append(row_facts(row, choice, sizes));
  for (size_t s = 0; s < choice.stashes.size(); ++s)
    stashes.append(stash_facts(choice.stashes[s], choice.chosen[s], sizes));
  for (const LayerGroup& group : choice.layers.groups) {
    py::dict item;
    item["count"] = group.count;
    item["boundaries"] = names(group.boundaries);
    layers.append(item);
  }
  py::list frontier;
  for (const FrontierPoint& point : choice.frontier) frontier.append(figures(point.figures));
  result["frontier"] = frontier;
  result["rows"] = rows;
  result["stashes"] = stashes;
  result["layers"] = layers;
  result["before"] = figures(choice.before);
  result["after"] = figures(choice.after);
  result["on_device"] = py::none();
  if (choice.on_device) result["on_device"] = figures(*choice.on_device);
  result["warnings"] = choice.warnings;
  result["minimum_bytes"] = choice.minimum_bytes;
  result["fits"] = choice.fits;
  result["recomputed_values"] = choice.decisions.recompute.size();
  result["offloaded_values"] = choice.decisions.offload.size();
  py::dict values;
  for (const auto& [symbol, value] : sizes.entries()) values[py::str(symbol)] = value;
  result["sizes"] = values;
  return result;
}

/// The module's own arguments, to whose sizes the symbols refer.
py::list argument_facts(const Graph& graph) {
  py::list result;
  for (const GraphInput& input : graph.inputs()) {
    if (input.kind != InputKind::User) continue;
    py::dict item;
    item["name"] = input.value->name;
    const DType dtype = input.value->dtype;
    item["integer"] = dtype == DType::Int64 || dtype == DType::Int32;
    std::vector<std::string> dims;
    for (const DimExpr& dim : input.value->dims) dims.push_back(dim.text());
    item["dims"] = dims;
    result.append(item);
  }
  return result;
}

py::list returned_score_facts(const Session& session, const SymbolValues& sizes) {
  py::list result;
  for (const Value* scores : returned_scores(session.forward_graph())) {
    int64_t bytes = static_cast<int64_t>(size_of(scores->dtype));
    for (const DimExpr& dim : scores->dims) bytes *= dim.evaluate(sizes);
    const Node* producer = scores->producer();
    py::dict item;
    item["bytes"] = bytes;
    item["module"] = producer ? producer->origin.module : "";
    item["source"] = producer ? producer->origin.source : "";
    result.append(item);
  }
  return result;
}

}  // namespace

py::object memory_facts(CompiledPiece& piece, bool last) {
  const DeviceScope scope(piece.runtime());
  const auto choice = piece.session().memory()->choice();
  if (!choice) return py::none();
  const auto entry = last ? piece.last_plan() : nullptr;
  const MemoryChoice shown = entry ? piece.session().memory()->choice_in(*entry) : *choice;
  py::dict facts = choice_facts(shown);
  facts["inputs"] = argument_facts(piece.session().exported_graph());
  facts["returned_scores"] = returned_score_facts(piece.session(), shown.sizes);
  return facts;
}

py::object timeline(CompiledPiece& piece, bool optimized, bool last) {
  const DeviceScope scope(piece.runtime());
  Session& session = piece.session();
  const auto choice = session.memory()->choice();
  if (!choice) return py::none();
  const auto entry = last ? piece.last_plan() : nullptr;
  MemoryDecisions decisions;
  if (optimized)
    decisions = entry ? session.memory()->choice_in(*entry).decisions : choice->decisions;
  const auto plan = session.memory()->plan_with(decisions, entry ? &entry->signature : nullptr);
  py::list storages;
  for (const TimelineItem& live : timeline_of(*plan)) {
    const PlannedStorage& storage = plan->storages[live.storage];
    const Node* producer = live.producer;
    py::dict item;
    item["name"] = storage.name.text();
    item["op"] = producer ? producer->op : "";
    item["module"] = producer ? producer->origin.module : "";
    item["source"] = producer ? producer->origin.source : "";
    item["recomputed"] = producer && is_recomputation(*producer);
    item["bytes"] = live.bytes;
    item["first_step"] = live.first_step;
    item["last_step"] = live.last_step;
    item["kind"] = role_name(storage.role);
    storages.append(item);
  }
  py::dict result;
  result["storages"] = storages;
  result["steps"] = plan->steps.size();
  result["forward_steps"] = plan->forward_steps;
  result["peak_bytes"] = plan->peak_bytes;
  result["peak_step"] = plan->peak_step;
  return result;
}

/// Peak and time if exactly this row were applied.
py::object row_figures(CompiledPiece& piece, size_t row, bool last) {
  const DeviceScope scope(piece.runtime());
  const auto choice = piece.session().memory()->choice();
  if (!choice) return py::none();
  std::vector<std::optional<Strategy>> chosen(choice->stashes.size());
  const Strategy strategy = choice->rows.at(row).strategy;
  for (size_t s : choice->rows[row].stashes)
    if (subgraph_of(choice->stashes[s], strategy)) chosen[s] = strategy;  // else it is forbidden
  const auto entry = last ? piece.last_plan() : nullptr;
  return figures(piece.session().memory()->figures_of(decisions_of(*choice, chosen),
                                                      entry ? &entry->signature : nullptr));
}

/// Peak and time if exactly these stashes were recomputed, given as (position, strategy).
py::object decision_figures(CompiledPiece& piece,
                            const std::vector<std::pair<size_t, int>>& decisions) {
  const DeviceScope scope(piece.runtime());
  const auto choice = piece.session().memory()->choice();
  if (!choice) return py::none();
  std::vector<std::optional<Strategy>> chosen(choice->stashes.size());
  for (const auto& [stash, strategy] : decisions)
    chosen.at(stash) = static_cast<Strategy>(strategy);
  return figures(piece.session().memory()->figures_of(decisions_of(*choice, chosen)));
}

}  // namespace ortmodule::bindings
