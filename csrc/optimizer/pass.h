// One step of the optimizer, what it may ask while it runs, and what it reports afterwards.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/device.h"
#include "base/error.h"
#include "ir/graph.h"

namespace ortmodule {

/// Which graph a pass sees. Before the gradient exists, an edit must not change what the gradient
/// will be: Detach stays, and a chain of casts keeps the rounding of its backward.
enum class Stage : uint8_t { Forward, Joint };

/// Receives the graph after each pass that changed it.
using DumpHook = std::function<void(int stage, std::string_view name, const std::string& text)>;

/// What a graph is compiled for, and switches of the optimizer. Whoever reads the environment fills
/// them in.
struct OptimizerOptions {
  Device device = Device::CPU;     // whose kernels will run the graph
  bool training = true;            // a gradient will be taken
  bool verify = false;             // check the graph's invariants after every pass
  bool channels_last = false;      // the device's convolutions gain by channels-last operands
  std::set<std::string> disabled;  // names of passes that do not run
  std::shared_ptr<int64_t> fuel;   // rewrites left, counted down over all graphs; null: no limit
  DumpHook dump;                   // may be empty
  int first_dump_stage = 0;        // number of the first pass in the dumps
};

/// Why a rewrite did not happen, with the number of places that say the same.
struct Rejection {
  std::string rule;
  std::string reason;
  std::string where;      // the first place: value name, module path and source line
  bool complete = false;  // every node of the pattern was there, so one could expect a hit
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
  /// The row of that name; null if the pass was not in the list. The first, if it ran twice.
  const PassRow* find(std::string_view name) const;
  /// Appends the rows of a later run.
  void append(PassReport other);
};

/// One line per pass that did something: `fuse_bias_gelu  214 -> 190 nodes  12 hits  0.8 ms`.
/// With `rejections`, the complete ones follow each line.
std::string text(const PassReport& report, bool rejections = false);

/// Handed to a pass while it runs.
class PassContext {
 public:
  PassContext(Stage stage, const OptimizerOptions& options, PassRow& row)
      : stage_(stage), options_(options), row_(row) {}

  Stage stage() const { return stage_; }
  /// Whose kernels will run the graph: some fusions are worth their while on one device alone.
  Device device() const { return options_.device; }
  /// Whether a gradient will be taken, so that what is written for it alone has a reader.
  bool training() const { return options_.training; }
  bool channels_last() const { return options_.channels_last; }
  /// Asks for one rewrite, directly before the edit: counts a hit, or says that the fuel is used
  /// up. Passes inspect first and ask last.
  bool take();
  bool out_of_fuel() const { return options_.fuel && *options_.fuel <= 0; }
  /// Counts without asking: for removals that cannot be wrong.
  void count(int64_t hits) { row_.hits += hits; }
  /// Records why `node` was left alone. Of one rule at one node, a reason against a complete
  /// binding stands above the others, and the latest of those.
  void reject(std::string_view rule, const std::string& reason, const Node& node, bool complete);
  /// Forgets what was said about a node that is gone.
  void forget(int node_id) { rejected_.erase(node_id); }
  /// Brings the rejections into the row; called once, when the pass is done.
  void finish();

 private:
  Stage stage_;
  const OptimizerOptions& options_;
  PassRow& row_;
  std::map<int, std::vector<Rejection>> rejected_;  // by node id, which grows in program order
};

/// A named edit of a graph. `run` is true if the graph changed.
struct Pass {
  std::string name;  // imperative: "eliminate_dead_code"
  std::function<bool(Graph&, PassContext&)> run;
};

}  // namespace ortmodule
