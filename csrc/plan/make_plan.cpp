#include "plan/make_plan.h"

#include "plan/place_storages.h"
#include "plan/step_builder.h"

namespace ortmodule {
namespace {

void finish(Plan& plan, const Plan* base, bool keep_saved) {
  find_lifetimes(plan);
  reuse_in_place(plan, !keep_saved, base != nullptr);
  place_storages(plan, base);
  cut_ranges(plan, base);
  replay_events(plan);
}

}  // namespace

std::shared_ptr<Plan> make_plan(const Lowered& lowered, const PlanRequest& request) {
  auto plan = std::make_shared<Plan>();
  StepBuilder builder(*plan, lowered, request);
  builder.build_forward();
  builder.build_backward();
  finish(*plan, nullptr, false);
  return plan;
}

std::shared_ptr<Plan> make_backward_plan(const Plan& base, const Lowered& lowered,
                                         const PlanRequest& request, bool keep_saved) {
  auto plan = std::make_shared<Plan>();
  StepBuilder builder(*plan, base, lowered, request);
  builder.build_backward();
  finish(*plan, &base, keep_saved);
  return plan;
}

}  // namespace ortmodule
