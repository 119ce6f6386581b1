#include "plan/make_plan.h"

#include "plan/cut_ranges.h"
#include "plan/host_copies.h"
#include "plan/lifetimes.h"
#include "plan/place_storages.h"
#include "plan/replan.h"
#include "plan/replay.h"
#include "plan/reuse_in_place.h"
#include "plan/step_builder.h"

namespace ortmodule {
namespace {

void finish(Plan& plan, const Plan* base, bool keep_saved, const MachineRates& rates,
            const PlacementOptions& placement = {}) {
  schedule_host_copies(plan, rates, base != nullptr);
  find_lifetimes(plan);
  if (placement.reuse) reuse_in_place(plan, !keep_saved, base != nullptr);
  place_storages(plan, base, placement);
  cut_ranges(plan, base);
  const ReplayFigures figures = replay(plan, ReplayMode::Once);
  plan.peak_bytes = figures.peak_bytes;
  plan.peak_step = figures.peak_step;
  plan.forward_peak_bytes = figures.forward_peak_bytes;
  plan.saved_bytes = saved_bytes(plan);
  plan.host_bytes = host_bytes(plan);
}

}  // namespace

std::shared_ptr<Plan> make_plan(const Lowered& lowered, const PlanRequest& request,
                                const Plan* earlier) {
  if (earlier)
    if (const Replanned made = replan(lowered, request, *earlier); made.plan) {
      if (made.moves) finish(*made.plan, nullptr, false, request.rates, request.placement);
      return made.plan;
    }
  auto plan = std::make_shared<Plan>();
  StepBuilder builder(*plan, lowered, request);
  builder.take_steps_of(earlier);
  builder.build_forward();
  builder.build_backward();
  keep_draft(*plan, lowered);
  finish(*plan, nullptr, false, request.rates, request.placement);
  return plan;
}

std::shared_ptr<Plan> make_backward_plan(const Plan& base, const Lowered& lowered,
                                         const PlanRequest& request, bool keep_saved) {
  auto plan = std::make_shared<Plan>();
  StepBuilder builder(*plan, base, lowered, request);
  builder.build_backward();
  finish(*plan, &base, keep_saved, request.rates);
  return plan;
}

}  // namespace ortmodule
