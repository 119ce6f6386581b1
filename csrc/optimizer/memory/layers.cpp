#include "optimizer/memory/layers.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <unordered_map>

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

  /// Live ranges that cross the cut before position `at`. Those that also cross the cut a `period`
  /// earlier or later are shared by layers and left out.
  std::vector<const Span*> crossing(size_t at, size_t period) const {
    std::vector<const Span*> result;
    for (const Span& span : spans_) {
      if (span.made >= at || span.last_read < at) continue;
      const bool shared =
          span.last_read >= at + period || (at >= period && span.made + period < at);
      if (!shared) result.push_back(&span);
    }
    return without_derived(std::move(result));
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

}  // namespace

size_t Layers::count() const {
  size_t total = 0;
  for (const LayerGroup& group : groups) total += group.count;
  return total;
}

Layers find_layers(const Graph& joint, const SymbolValues& sizes) {
  const Sequence sequence(joint, sizes);
  return {LayerFinder(sequence).run()};
}

}  // namespace ortmodule
