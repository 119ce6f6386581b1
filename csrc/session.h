// The whole engine in one class: from a captured piece to its graphs, lowered steps and plans.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "ir/exported_piece.h"
#include "optimizer/pass.h"
#include "session/backward_piece.h"
#include "session/locked.h"
#include "session/memory_policy.h"
#include "session/planner.h"
#include "session/session_options.h"
#include "session/stage_times.h"
#include "session/symbol_binder.h"

namespace ortmodule {

/// The stages of one piece, in the order of docs/design.md. Thread-safe.
class Session {
 public:
  Session(ExportedPiece piece, SessionOptions options);

  /// The plan for such a call. Throws Error if a size contradicts the captured graph. Fast, without
  /// an allocation, if the shapes are those of the call before.
  std::shared_ptr<PlanEntry> plan_for(const CallShapes& call);
  /// The plan for such a call, made for the caller and not cached.
  std::shared_ptr<const Plan> plan_to_show(const CallShapes& call);
  /// Keeps the most recently used plans that fit in `bytes`; returns what they take, about.
  int64_t shrink_plans(int64_t bytes);
  /// For a session that runs seldom: packs the graph of which plans are made until one is, if all
  /// plans are gone. The session does not train.
  void pack();
  /// The program whose backward pass takes exactly the output gradients in `arrived`; with
  /// `keep_saved` it can run again (retain_graph).
  const Program& backward_program(PlanEntry& entry, const std::vector<bool>& arrived,
                                  bool keep_saved);

  /// The backward pass of `entry` as a piece of its own, which can be differentiated.
  BackwardPiece backward_piece(const PlanEntry& entry, const BackwardQuery& query) const;

  /// The policy that decides what is recomputed, locked: no other thread plans meanwhile.
  Locked<MemoryPolicy> memory() { return {mutex_, memory_}; }
  const SymbolBinder& symbols() const { return symbols_; }

  const ExportedPiece& piece() const { return piece_; }
  bool training() const { return options_.training(); }
  /// Whether forward output k can receive a gradient.
  const std::vector<bool>& differentiable_outputs() const { return differentiable_outputs_; }

  /// By forward output: equal for those that need one backward pass together. Made when asked for.
  const std::vector<size_t>& gradient_groups();

  /// Without keep_graphs, its inputs alone, up to the last one that is no constant.
  const Graph& exported_graph() const { return *piece_.graph; }
  const Graph& forward_graph() const { return *forward_; }
  const Graph& joint_graph() const { return *joint_; }
  /// Lowered without recomputation.
  std::shared_ptr<const Lowered> lowered() const;
  /// Bytes of that graph, about.
  int64_t lowered_bytes() const;
  /// Empty without training and keep_graphs, as is the next one.
  const PassReport& forward_report() const { return forward_report_; }
  const PassReport& joint_report() const { return joint_report_; }
  StageTimes times() const;

 private:
  Signature signature_of(const CallShapes& call) const;

  const SessionOptions options_;
  StageTimes times_;
  PassReport forward_report_;
  PassReport joint_report_;

  ExportedPiece piece_;  // without keep_graphs, inputs alone
  const size_t argument_count_;
  std::unique_ptr<Graph> forward_;  // null without keep_graphs, as is the next one
  std::unique_ptr<const Graph> joint_;
  const std::vector<bool> differentiable_outputs_;
  const SymbolBinder symbols_;

  mutable std::mutex mutex_;  // guards the rest, and the times
  mutable Planner planner_;   // a graph that is read is unpacked
  MemoryPolicy memory_;
  std::vector<size_t> gradient_groups_;  // empty until they are asked for
};

}  // namespace ortmodule
