#include "optimizer/pass_manager.h"

#include <algorithm>
#include <chrono>
#include <iomanip>

#include "ir/text.h"
#include "ir/verify.h"

namespace ortmodule {

const PassRow* PassReport::find(std::string_view name) const {
  for (const PassRow& row : rows)
    if (row.name == name) return &row;
  return nullptr;
}

void PassReport::append(PassReport other) {
  for (PassRow& row : other.rows) rows.push_back(std::move(row));
}

std::string text(const PassReport& report, bool rejections) {
  size_t width = 0;
  for (const PassRow& row : report.rows) width = std::max(width, row.name.size());
  std::ostringstream out;
  for (const PassRow& row : report.rows) {
    out << std::left << std::setw(static_cast<int>(width)) << row.name << "  ";
    if (row.disabled) {
      out << "disabled\n";
      continue;
    }
    out << row.nodes_before << " -> " << row.nodes_after << " nodes  " << row.hits << " hits  "
        << std::fixed << std::setprecision(1) << row.milliseconds << " ms\n";
    if (!rejections) continue;
    for (const Rejection& rejection : row.rejections)
      if (rejection.complete)
        out << "    " << rejection.count << "x " << rejection.rule << ": " << rejection.reason
            << " (" << rejection.where << ")\n";
  }
  return out.str();
}

std::optional<int64_t> PassContext::first_size(const DimExpr& size) const {
  if (size.is_constant()) return size.value();
  std::vector<std::string> symbols;
  size.collect_symbols(symbols);
  const SymbolValues& known = options_.first_sizes;
  if (std::any_of(symbols.begin(), symbols.end(),
                  [&](const std::string& symbol) { return !known.find(symbol); }))
    return std::nullopt;
  return size.evaluate(known);
}

bool PassContext::take() {
  if (out_of_fuel()) return false;
  if (options_.fuel) --*options_.fuel;
  ++row_.hits;
  return true;
}

void PassContext::reject(std::string_view rule, const std::string& reason, const Node& node,
                         bool complete) {
  if (!complete && !options_.partial_reasons) return;
  std::vector<Rejection>& known = rejected_[node.id()];
  for (const Rejection& rejection : known) {
    if (rejection.rule != rule) continue;
    if (rejection.reason == reason || (rejection.complete && !complete)) return;
  }
  std::erase_if(known, [&](const Rejection& rejection) {
    return rejection.rule == rule && !rejection.complete;
  });
  std::string where = node.outputs().empty() ? node.op : node.output()->name;
  if (!node.origin.module.empty()) where += str(", ", node.origin.module);
  if (!node.origin.source.empty()) where += str(", ", node.origin.source);
  known.push_back({std::string(rule), reason, where, complete, 1});
}

void PassContext::finish() {
  for (auto& [node, rejections] : rejected_)
    for (Rejection& rejection : rejections) {
      auto same =
          std::find_if(row_.rejections.begin(), row_.rejections.end(), [&](const Rejection& known) {
            return known.rule == rejection.rule && known.reason == rejection.reason;
          });
      if (same != row_.rejections.end())
        ++same->count;
      else
        row_.rejections.push_back(std::move(rejection));
    }
  rejected_.clear();
}

namespace {

double milliseconds_since(std::chrono::steady_clock::time_point start) {
  const auto elapsed = std::chrono::steady_clock::now() - start;
  return std::chrono::duration<double, std::milli>(elapsed).count();
}

void check_graph(const Graph& graph, const PassReport& before, std::string_view pass) {
  const Reason reason = verify(graph);
  if (!reason) return;
  std::string earlier;
  for (const PassRow& row : before.rows)
    if (row.hits > 0) earlier += str(earlier.empty() ? "" : ", ", row.name);
  throw InternalError(str("internal error, please report it: pass ", pass,
                          " left an invalid graph (earlier passes with hits: ",
                          earlier.empty() ? "none" : earlier, "): ", *reason));
}

}  // namespace

PassReport run_passes(Graph& graph, Stage stage, const std::vector<Pass>& passes,
                      const OptimizerOptions& options) {
  PassReport report;
  int number = options.first_dump_stage;
  for (const Pass& pass : passes) {
    PassRow row;
    row.name = pass.name;
    row.nodes_before = row.nodes_after = graph.node_count();
    row.disabled = options.disabled.contains(pass.name);
    bool changed = false;
    if (!row.disabled) {
      PassContext context(stage, options, row);
      const auto start = std::chrono::steady_clock::now();
      changed = pass.run(graph, context);
      row.milliseconds = milliseconds_since(start);
      row.nodes_after = graph.node_count();
      context.finish();
      if (options.verify) check_graph(graph, report, pass.name);
    }
    // Numbered by position in the list, so that the dumps of two runs have the same names.
    if (changed && options.dump) options.dump(number, pass.name, print(graph, {.origins = true}));
    ++number;
    report.rows.push_back(std::move(row));
  }
  return report;
}

}  // namespace ortmodule
