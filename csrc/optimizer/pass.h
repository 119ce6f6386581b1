// A pass of the optimizer, its context and its report.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/device.h"
#include "base/error.h"
#include "ir/graph.h"

namespace ortmodule {

/// Which graph a pass edits: forward only, or forward and backward. On the forward graph an edit
/// must not change the gradient: Detach stays, and a chain of casts keeps the rounding of its
/// backward.
enum class Stage : uint8_t { Forward, Joint };

/// Receives the text of the graph after each pass that changed it. `stage`: number of the pass.
using DumpHook = std::function<void(int stage, std::string_view name, const std::string& text)>;

/// What attention becomes that a model in training writes as products and a softmax.
enum class TrainedAttention : uint8_t {
  Spelled,     // it stays as it is, so that its parts have clusters of their own
  Own,         // ScaledDotProductAttention
  TorchCUDA,   // torch's fused operator on CUDA
  TorchOnCPU,  // torch's on the CPU, in its place under the emulation
};

/// The compilation target, and switches of the optimizer.
struct OptimizerOptions {
  Device device = Device::CPU;  // whose kernels run the graph
  bool training = true;         // a gradient will be built
  bool verify = false;          // check the graph's invariants after every pass
  bool channels_last = false;   // the device's convolutions gain by channels-last operands
  SymbolValues first_sizes;     // what symbols were in the first call, where that is known
  TrainedAttention attention = TrainedAttention::Spelled;
  bool partial_reasons = false;    // also record why parts of patterns did not match
  std::set<std::string> disabled;  // names of passes that do not run
  std::shared_ptr<int64_t> fuel;   // rewrites left, counted down over all graphs; null: no limit
  DumpHook dump;                   // may be empty
  int first_dump_stage = 0;        // number of the first pass in the dumps
};

/// Why a rewrite did not happen, and at how many nodes.
struct Rejection {
  std::string rule;
  std::string reason;
  std::string where;      // the first place: value name, module path and source line
  bool complete = false;  // the whole pattern matched, so the user might expect a hit
  int64_t count = 0;
};

/// What one pass did.
struct PassRow {
  std::string name;
  size_t nodes_before = 0;
  size_t nodes_after = 0;
  int64_t hits = 0;
  double milliseconds = 0;
  bool disabled = false;
  std::vector<Rejection> rejections;
};

struct PassReport {
  std::vector<PassRow> rows;
  /// The first row of that name, or null.
  const PassRow* find(std::string_view name) const;
  /// Appends the rows of a later run.
  void append(PassReport other);
};

/// One line per pass that did something: `fuse_bias_gelu  214 -> 190 nodes  12 hits  0.8 ms`.
/// With `rejections`, the complete ones follow each line.
std::string text(const PassReport& report, bool rejections = false);

/// Target, fuel and report of a running pass.
class PassContext {
 public:
  PassContext(Stage stage, const OptimizerOptions& options, PassRow& row)
      : stage_(stage), options_(options), row_(row) {}

  Stage stage() const { return stage_; }
  /// The target: some fusions are only worthwhile on one device.
  Device device() const { return options_.device; }
  /// Whether a gradient will be built. Without one, outputs that only it reads are useless.
  bool training() const { return options_.training; }
  bool channels_last() const { return options_.channels_last; }
  /// The value of a size in the first call, or nothing. What depends on it must be right, though
  /// perhaps slower, for other sizes as well.
  std::optional<int64_t> first_size(const DimExpr& size) const;
  TrainedAttention attention() const { return options_.attention; }
  bool partial_reasons() const { return options_.partial_reasons; }
  /// Takes fuel for one rewrite and counts a hit; false if the fuel is used up. Call it directly
  /// before the edit, after all checks.
  bool take();
  bool out_of_fuel() const { return options_.fuel && *options_.fuel <= 0; }
  /// Counts hits without fuel: for removals that cannot be wrong.
  void count(int64_t hits) { row_.hits += hits; }
  /// Records why `node` was not rewritten. Per rule and node, the reason against a complete match
  /// replaces those against partial ones, which are kept with `partial_reasons` only.
  void reject(std::string_view rule, const std::string& reason, const Node& node, bool complete);
  /// Drops the rejections of an erased node.
  void forget(int node_id) { rejected_.erase(node_id); }
  /// Moves the rejections into the row. Called once, after the pass.
  void finish();

 private:
  Stage stage_;
  const OptimizerOptions& options_;
  PassRow& row_;
  std::map<int, std::vector<Rejection>> rejected_;  // by node id, which grows in program order
};

/// A named edit of a graph. `run` returns whether the graph changed.
struct Pass {
  std::string name;  // imperative: "eliminate_dead_code"
  std::function<bool(Graph&, PassContext&)> run;
};

}  // namespace ortmodule
