// A plan for other sizes, made from an earlier plan of the same graph: what sizes do not change is
// copied, and nodes are read only where they do.
#pragma once

#include <memory>

#include "plan/make_plan.h"

namespace ortmodule {

/// Keeps what memory planning is about to change, so that `replan` can continue from there. Does
/// nothing for plans that it does not take.
void keep_draft(Plan& plan, const Lowered& lowered);

struct Replanned {
  std::shared_ptr<Plan> plan;  // null: its steps would differ in more than sizes
  /// Whether its memory is to be planned; otherwise every place is as in the earlier plan.
  bool moves = false;
};

/// The plan that make_plan() makes step by step, from `earlier`, a plan of that graph. For
/// sessions, whose plans have no backward part.
Replanned replan(const Lowered& lowered, const PlanRequest& request, const Plan& earlier);

}  // namespace ortmodule
