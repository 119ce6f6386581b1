#include "optimizer/memory/layers.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>

#include "lower/recompute.h"
#include "ops/differentiated.h"
#include "ops/emit.h"
#include "ops/op_def.h"

namespace ortmodule {
namespace {

/// The live range of a value within forward, as positions in the sequence.
struct Span {
  const Value* value = nullptr;
  size_t made = 0;
  size_t last_read = 0;
  int64_t bytes = 0;
};

/// The forward nodes that carry a gradient, in program order. Nodes are the same if their op, kinds
/// of operands, and output types and ranks are.
class Sequence {
 public:
  Sequence(const Graph& joint, const SymbolValues& sizes)
      : gradient_(joint), argument_(joint, false) {
    for (const GraphInput& input : joint.inputs())
      argument_[input.value] = input.kind == InputKind::User;
    std::unordered_map<const Value*, size_t> span_of;
    for (const auto& node : joint.nodes()) {
      if (node->region == Region::Backward) break;
      add(*node, sizes, span_of);
    }
  }

  size_t size() const { return nodes_.size(); }
  const Node* node(size_t at) const { return nodes_[at]; }
  bool same(size_t a, size_t b) const { return signatures_[a] == signatures_[b]; }

  /// Live ranges that cross the cut before position `at`. Those that also cross the cut at `before`
  /// or `after`, its neighbours, are shared by layers and left out.
  std::vector<const Span*> crossing(size_t at, size_t before, size_t after) const {
    std::vector<const Span*> result;
    for (const Span& span : spans_) {
      if (span.made >= at || span.last_read < at) continue;
      const bool shared = span.last_read >= after || span.made < before;
      if (!shared) result.push_back(&span);
    }
    return without_derived(std::move(result));
  }
  /// As above, with a cut in each `period`.
  std::vector<const Span*> crossing(size_t at, size_t period) const {
    return crossing(at, at - std::min(at, period), at + period);
  }

 private:
  void add(const Node& node, const SymbolValues& sizes,
           std::unordered_map<const Value*, size_t>& span_of) {
    bool argument = false;
    for (const Value* input : node.inputs())
      argument = argument || (input && !input->is_literal() && argument_[input]);
    for (const Value* output : node.outputs()) argument_[output] = argument;
    const bool alias = storage_root(node.output()) != node.output();
    const bool carries =
        std::any_of(node.outputs().begin(), node.outputs().end(),
                    [&](const Value* output) { return gradient_.contains(output); });
    if (alias || !carries || !argument || op_def(node.op).kind == OpKind::View) return;
    const size_t at = nodes_.size();
    nodes_.push_back(&node);
    signatures_.push_back(signature(node));
    for (const Value* input : node.inputs()) {
      if (!input) continue;
      auto span = span_of.find(storage_root(input));
      if (span != span_of.end()) spans_[span->second].last_read = at;
    }
    for (const Value* output : node.outputs()) {
      if (!gradient_.contains(output)) continue;
      span_of[output] = spans_.size();
      const int64_t bytes =
          product(output->dims).evaluate(sizes) * static_cast<int64_t>(size_of(output->dtype));
      spans_.push_back({output, at, at, bytes});
    }
  }

  static size_t signature(const Node& node) {
    std::string text = node.op;
    for (const Value* input : node.inputs())
      text += !input ? "_" : input->is_literal() ? "#" : input->producer() ? "v" : "p";
    for (const Value* output : node.outputs())
      text += str(" ", name_of(output->dtype), output->rank());
    return std::hash<std::string>()(text);
  }

  // Of several outputs of one fused node that cross together, those that its body computes from
  // another one do not count: a norm's result follows from its residual sum.
  static std::vector<const Span*> without_derived(std::vector<const Span*> spans) {
    std::vector<const Span*> kept;
    for (const Span* span : spans) {
      const Node& node = *span->value->producer();
      const bool alone = std::none_of(spans.begin(), spans.end(), [&](const Span* other) {
        return other != span && other->value->producer() == &node;
      });
      if (alone || op_def(node.op).body.empty() || !follows_from_sibling(*span->value))
        kept.push_back(span);
    }
    return kept;
  }

  static bool follows_from_sibling(const Value& value) {
    const std::unique_ptr<Graph> body = instantiate_body(*value.producer());
    const Value* result = body->outputs().at(value.output_index()).value;
    if (!result || !result->producer()) return false;
    for (const Value* input : result->producer()->inputs())
      for (const GraphOutput& output : body->outputs())
        if (input && output.value == input) return true;
    return false;
  }

  Differentiated gradient_;
  PerValue<bool> argument_;  // depends on an argument of the module
  std::vector<const Node*> nodes_;
  std::vector<size_t> signatures_;
  std::vector<Span> spans_;
};

/// Positions [begin, end) of a sequence that repeat with `period`.
struct Repeat {
  size_t begin = 0;
  size_t end = 0;
  size_t period = 0;
  size_t length() const { return end - begin; }
};

class LayerFinder {
 public:
  explicit LayerFinder(const Sequence& sequence) : sequence_(sequence) {}

  std::vector<LayerGroup> run() {
    search(0, sequence_.size());
    std::sort(found_.begin(), found_.end(),
              [](const Repeat& a, const Repeat& b) { return a.begin < b.begin; });
    std::vector<LayerGroup> groups;
    for (const Repeat& repeat : found_) {
      LayerGroup group = group_of(repeat);
      if (group.count >= 2) groups.push_back(std::move(group));
    }
    return groups;
  }

 private:
  static constexpr size_t kLeastNodes = 2;
  /// Before and after a repeat, more than 1/n of the sequence is searched for further repeats.
  static constexpr size_t kRestPart = 5;
  /// In percent: two layers count as the same if this much of one repeats in the other.
  static constexpr size_t kSamePercent = 60;
  /// Added before rounding down: three tenths of a layer count as a layer.
  static constexpr double kRoundUp = 0.7;

  // Finds the longest repeat, then searches before and after it: encoder and decoder.
  void search(size_t begin, size_t end) {
    const Repeat best = longest(begin, end);
    if (best.period == 0 || best.length() * 2 < end - begin) return;
    found_.push_back(best);
    if ((best.begin - begin) * kRestPart > sequence_.size()) search(begin, best.begin);
    if ((end - best.end) * kRestPart > sequence_.size()) search(best.end, end);
  }

  Repeat longest(size_t begin, size_t end) const {
    Repeat best;
    for (size_t period = kLeastNodes; period <= (end - begin) / 2; ++period) {
      size_t run = 0;
      for (size_t at = begin; at + period <= end; ++at) {
        const bool same = at + period < end && sequence_.same(at, at + period);
        if (same) {
          ++run;
          continue;
        }
        // The shortest period wins: its multiples repeat as well but cover no more. The start or
        // end of a layer may be fused differently, so only most of it must repeat.
        if (run * 100 >= period * kSamePercent && run + period > best.length())
          best = {at - run, at + period, period};
        run = 0;
      }
    }
    return best;
  }

  /// Cuts the repeat into layers at the phase of the period where the fewest bytes cross.
  LayerGroup group_of(const Repeat& repeat) const {
    size_t best = 0;
    int64_t least = std::numeric_limits<int64_t>::max();
    for (size_t phase = 0; phase < repeat.period; ++phase) {
      int64_t bytes = 0;
      for (size_t at = repeat.begin + phase; at <= repeat.end; at += repeat.period)
        for (const Span* span : sequence_.crossing(at, repeat.period)) bytes += span->bytes;
      const size_t cuts = (repeat.length() - phase) / repeat.period + 1;
      bytes /= static_cast<int64_t>(cuts);
      if (bytes < least) {
        least = bytes;
        best = phase;
      }
    }
    LayerGroup group;
    for (size_t at = repeat.begin + best; at <= repeat.end; at += repeat.period) {
      if (at < sequence_.size()) group.starts.push_back(sequence_.node(at));
      for (const Span* span : sequence_.crossing(at, repeat.period))
        group.boundaries.push_back(span->value);
    }
    // A layer whose start or end differs (the first may compute a position bias) still counts.
    group.count = static_cast<size_t>(
        static_cast<double>(repeat.length()) / static_cast<double>(repeat.period) + kRoundUp);
    return group;
  }

  const Sequence& sequence_;
  std::vector<Repeat> found_;
};

/// Nodes [begin, end) of one module of a numbered list.
struct ModuleRun {
  std::string number;
  size_t begin = 0;
  size_t end = 0;
};

/// Finds layers by the names of their modules: `blocks.0`, `blocks.1`, ... of a list `blocks`.
class NumberedModules {
 public:
  explicit NumberedModules(const Sequence& sequence) : sequence_(sequence) {
    for (size_t at = 0; at < sequence.size(); ++at) add(at, sequence.node(at)->origin.module);
  }

  std::vector<LayerGroup> run() const {
    std::vector<std::pair<std::string, size_t>> lists;
    for (const auto& [list, runs] : runs_)
      if (runs.size() >= 2 && length(runs) >= kLeastNodes * runs.size())
        lists.emplace_back(list, length(runs) - longest(runs));
    // The best list leaves the fewest nodes in its longest layer and outside of it.
    std::ranges::stable_sort(lists, std::greater<>(), &std::pair<std::string, size_t>::second);
    std::map<size_t, LayerGroup> groups;  // by first position
    std::vector<std::string> taken;
    for (const auto& [list, score] : lists) {
      const auto nested = [&list = list](const std::string& other) {
        return list.starts_with(other + ".") || other.starts_with(list + ".");
      };
      if (list.empty() ? !taken.empty() : std::ranges::any_of(taken, nested)) continue;
      taken.push_back(list);
      groups[runs_.at(list).front().begin] = group_of(runs_.at(list));
      if (list.empty()) break;  // every other list is nested in this one
    }
    std::vector<LayerGroup> result;
    for (auto& [begin, group] : groups) result.push_back(std::move(group));
    return result;
  }

 private:
  /// On average, per layer: smaller modules are steps of one layer.
  static constexpr size_t kLeastNodes = 4;

  void add(size_t at, const std::string& path) {
    for (size_t begin = 0; begin < path.size();) {
      const size_t end = std::min(path.find('.', begin), path.size());
      const std::string part = path.substr(begin, end - begin);
      if (part.find_first_not_of("0123456789") == std::string::npos) {
        std::vector<ModuleRun>& runs = runs_[path.substr(0, begin - std::min<size_t>(begin, 1))];
        if (runs.empty() || runs.back().number != part) runs.push_back({part, at, at});
        runs.back().end = at + 1;
      }
      begin = end + 1;
    }
  }

  static size_t length(const std::vector<ModuleRun>& runs) {
    size_t total = 0;
    for (const ModuleRun& run : runs) total += run.end - run.begin;
    return total;
  }

  static size_t longest(const std::vector<ModuleRun>& runs) {
    size_t most = 0;
    for (const ModuleRun& run : runs) most = std::max(most, run.end - run.begin);
    return most;
  }

  LayerGroup group_of(const std::vector<ModuleRun>& runs) const {
    LayerGroup group;
    group.count = runs.size();
    for (const ModuleRun& run : runs) group.starts.push_back(sequence_.node(run.begin));
    for (size_t i = 0; i <= runs.size(); ++i) {
      const size_t at = i < runs.size() ? runs[i].begin : runs.back().end;
      const size_t before = i > 0 ? runs[i - 1].begin : 0;
      const size_t after = i + 1 < runs.size()    ? runs[i + 1].begin
                           : i + 1 == runs.size() ? runs.back().end
                                                  : sequence_.size();
      for (const Span* span : sequence_.crossing(at, before, after))
        group.boundaries.push_back(span->value);
    }
    return group;
  }

  const Sequence& sequence_;
  std::map<std::string, std::vector<ModuleRun>> runs_;  // by the path of the list
};

}  // namespace

size_t Layers::count() const {
  size_t total = 0;
  for (const LayerGroup& group : groups) total += group.count;
  return total;
}

Layers find_layers(const Graph& joint, const SymbolValues& sizes) {
  const Sequence sequence(joint, sizes);
  std::vector<LayerGroup> groups = LayerFinder(sequence).run();
  // Few layers, or layers that differ, do not repeat enough.
  if (groups.empty()) groups = NumberedModules(sequence).run();
  return {std::move(groups)};
}

}  // namespace ortmodule
