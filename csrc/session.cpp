#include "session.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "gradient/build_gradient.h"
#include "optimizer/memory/budget.h"
#include "plan/replay.h"
#include "plan/step_cost.h"

namespace ortmodule {
namespace {

class StageTimer {
 public:
  explicit StageTimer(double& total_ms) : total_ms_(total_ms) {}
  ~StageTimer() {
    const auto elapsed = std::chrono::steady_clock::now() - start_;
    total_ms_ += std::chrono::duration<double, std::milli>(elapsed).count();
  }

 private:
  double& total_ms_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace

Session::Session(ExportedPiece piece, SessionOptions options)
    : piece_(std::move(piece)), options_(std::move(options)) {
  {
    StageTimer timer(times_.optimize_forward_ms);
    forward_ = piece_.graph->clone();
    forward_report_ = optimize_forward(*forward_, options_.optimizer);
  }
  {
    StageTimer timer(times_.gradient_ms);
    joint_ = options_.training ? build_gradient(*forward_) : forward_->clone();
  }
  {
    StageTimer timer(times_.optimize_joint_ms);
    joint_report_ = optimize_joint(*joint_, options_.optimizer);
  }
  {
    StageTimer timer(times_.lower_ms);
    lowered_ = std::make_shared<Lowered>(lower(*joint_, options_.device));
  }
  find_planned_symbols();
  differentiable_outputs_.assign(piece_.output_strides.size(), false);
  for (const GraphInput& input : joint_->inputs())
    if (input.kind == InputKind::GradOutput)
      differentiable_outputs_[static_cast<size_t>(input.index)] = true;
}

void Session::find_planned_symbols() {
  std::vector<std::string> names;
  joint_->collect_symbols(names);
  for (const Dims& strides : piece_.output_strides)
    for (const DimExpr& stride : strides) stride.collect_symbols(names);
  for (const BoundInput& bound : piece_.arguments)
    if (bound.kind == BoundInput::Kind::Symbol)
      planned_symbols_.push_back(std::ranges::find(names, bound.symbol) != names.end());
}

SymbolValues Session::bind_symbols(const std::vector<Layout>& arguments,
                                   const std::vector<int64_t>& symbols, Symbols which) const {
  SymbolValues values;
  size_t next = 0;
  for (const BoundInput& bound : piece_.arguments) {
    if (bound.kind != BoundInput::Kind::Symbol) continue;
    if (which == Symbols::All || planned_symbols_.at(next))
      values.bind(bound.symbol, symbols.at(next));
    ++next;
  }
  const auto& inputs = piece_.graph->inputs();
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Value& value = *inputs[i].value;
    const Sizes& sizes = arguments.at(i).sizes;
    ORTM_CHECK(sizes.size() == value.rank(), "[forward] argument ", value.name, " must have rank ",
               value.rank(), ", but found ", sizes.size());
    for (size_t d = 0; d < sizes.size(); ++d) {
      std::string symbol;
      if (value.dims[d].is_symbol(&symbol)) {
        values.bind(symbol, sizes[d]);
      } else if (value.dims[d].is_constant()) {
        ORTM_CHECK(value.dims[d].value() == sizes[d], "[forward] argument ", value.name,
                   " must have size ", value.dims[d], " in dim ", d, ", but found ", sizes[d]);
      }
    }
  }
  return values;
}

std::shared_ptr<PlanEntry> Session::latest_plan_for(std::span<const LayoutView> arguments,
                                                    const std::vector<int64_t>& symbols) {
  const std::lock_guard lock(mutex_);
  // Walks the key as plan_for builds it.
  std::shared_ptr<PlanEntry> latest = plans_.latest([&](const std::vector<int64_t>& key) {
    std::span<const int64_t> left = key;
    const auto is_next = [&](std::span<const int64_t> part) {
      if (left.size() < part.size() || !std::equal(part.begin(), part.end(), left.begin()))
        return false;
      left = left.subspan(part.size());
      return true;
    };
    for (size_t i = 0; i < symbols.size(); ++i)
      if (planned_symbols_.at(i) && !is_next({&symbols[i], 1})) return false;
    for (const LayoutView& layout : arguments)
      if (!is_next(layout.sizes) || !is_next(layout.strides)) return false;
    return left.empty();
  });
  return latest && !latest->outdated ? latest : nullptr;
}

std::shared_ptr<PlanEntry> Session::plan_for(const std::vector<Layout>& arguments,
                                             const std::vector<int64_t>& symbols) {
  std::vector<int64_t> key;
  for (size_t i = 0; i < symbols.size(); ++i)
    if (planned_symbols_.at(i)) key.push_back(symbols[i]);
  for (const Layout& layout : arguments) {
    key.insert(key.end(), layout.sizes.begin(), layout.sizes.end());
    key.insert(key.end(), layout.strides.begin(), layout.strides.end());
  }
  const std::lock_guard lock(mutex_);
  if (std::shared_ptr<PlanEntry> known = plans_.find(key)) {
    if (!known->outdated) return known;
    plans_.erase(key);
    forget_figures();
  }
  if (options_.before_plan) options_.before_plan();
  PlanRequest request;
  request.device = options_.device;
  request.symbols = bind_symbols(arguments, symbols, Symbols::Planned);
  request.arguments = arguments;
  for (const Dims& strides : piece_.output_strides)
    request.output_strides.push_back(evaluate(strides, request.symbols));
  const MemoryDecisions decisions = decide(request);
  std::shared_ptr<const Lowered> lowered = lowered_for(decisions);
  StageTimer timer(times_.plan_ms);
  std::shared_ptr<const Plan> plan = planned(decisions, request);
  compared_.clear();
  auto entry = std::make_shared<PlanEntry>(std::move(plan), std::move(lowered), std::move(request));
  entry->decisions = decisions;
  ++plans_made_;
  const size_t steps = entry->program.plan->steps.size();
  plans_.add(std::move(key), entry, plans_within(options_.plan_cache_bytes, steps));
  return entry;
}

std::shared_ptr<const Lowered> Session::lowered_for(const MemoryDecisions& decisions) {
  if (decisions.empty()) return lowered_;
  for (const auto& [known, lowered] : recomputing_)
    if (known == decisions) return lowered;
  constexpr size_t kMostLowered = 96;
  if (recomputing_.size() >= kMostLowered) recomputing_.erase(recomputing_.begin());
  auto lowered = std::make_shared<Lowered>(lower(*joint_, options_.device, decisions));
  recomputing_.emplace_back(decisions, lowered);
  return lowered;
}

PlanFigures Session::figures_with(const MemoryDecisions& decisions, const PlanRequest& request) {
  const Plan& plan = *planned(decisions, request);
  int64_t gradients = 0;
  for (const PlannedBuffer& buffer : plan.buffers)
    if (buffer.kind == BufferKind::Gradient && buffer.first_step <= plan.peak_step)
      gradients += buffer.bytes;
  PlanFigures figures{plan.peak_bytes, replay(plan, ReplayMode::Accumulate).peak_bytes,
                      plan.saved_bytes, gradients, estimated_us(plan, options_.memory.rates)};
  const int64_t beside = gradient_bytes(plan);
  if (accumulates_ && figures.accumulating_peak_bytes + beside > figures.peak_bytes) {
    figures.peak_bytes = figures.accumulating_peak_bytes + beside;
    figures.gradients_at_peak_bytes = beside;
  }
  return figures;
}

std::shared_ptr<const Plan> Session::planned(const MemoryDecisions& decisions,
                                             const PlanRequest& request) {
  for (const Compared& known : compared_)
    if (known.decisions == decisions && known.symbols == request.symbols.entries() &&
        known.arguments == request.arguments)
      return known.plan;
  std::shared_ptr<const Plan> plan = make_plan(*lowered_for(decisions), request);
  constexpr size_t kMostCompared = 4;
  if (compared_.size() >= kMostCompared) compared_.erase(compared_.begin());
  compared_.push_back({decisions, request.symbols.entries(), request.arguments, plan});
  return plan;
}

PlanFigures Session::figures_of(const MemoryDecisions& decisions, const PlanRequest* request) {
  const std::lock_guard lock(mutex_);
  ORTM_CHECK(first_request_, "[memory] a forward must have run before plans are compared");
  return figures_with(decisions, request ? *request : *first_request_);
}

std::shared_ptr<const Plan> Session::plan_with(const MemoryDecisions& decisions,
                                               const PlanRequest* request) {
  const std::lock_guard lock(mutex_);
  ORTM_CHECK(first_request_, "[memory] a forward must have run before a plan is shown");
  return make_plan(*lowered_for(decisions), request ? *request : *first_request_);
}

std::shared_ptr<const MemoryChoice> Session::chosen_for(const PlanRequest& request) {
  StageTimer timer(times_.optimize_memory_ms);
  return std::make_shared<MemoryChoice>(choose_memory_plan(
      *joint_, options_.memory, request.symbols,
      [&](const MemoryDecisions& decisions) { return figures_with(decisions, request); }));
}

std::shared_ptr<const MemoryChoice> Session::memory_choice() {
  const std::lock_guard lock(mutex_);
  if (!first_request_ || !options_.training) return nullptr;
  if (!memory_choice_) memory_choice_ = chosen_for(*first_request_);
  return memory_choice_;
}

MemoryChoice Session::choice_in(const PlanEntry& entry) {
  const std::shared_ptr<const MemoryChoice> first = memory_choice();
  const std::lock_guard lock(mutex_);
  ORTM_CHECK(first, "[memory] a training forward must have run before its choice is shown");
  MemoryChoice shown = *first;
  if (entry.request.symbols.entries() == shown.sizes.entries()) return shown;
  shown.sizes = entry.request.symbols;
  if (entry.decisions != shown.decisions) decide_as(shown, entry.decisions);
  shown.before = figures_with({}, entry.request);
  shown.after =
      shown.decisions.empty() ? shown.before : figures_with(shown.decisions, entry.request);
  return shown;
}

MemoryDecisions Session::decide(const PlanRequest& request) {
  if (!options_.training) return {};
  if (!first_request_) {
    first_request_ = request;
    if (options_.memory.asked()) memory_choice_ = chosen_for(request);
  }
  if (!memory_choice_) return {};
  if (options_.memory.level > 0 && outgrown_by(request)) {
    first_request_ = request;
    memory_choice_ = chosen_for(request);
  }
  const bool known_shape = request.symbols.entries() == first_request_->symbols.entries();
  const bool relative = options_.memory.budget_fraction.has_value();
  const int64_t without = known_shape || !relative ? memory_choice_->before.peak_bytes
                                                   : figures_with({}, request).peak_bytes;
  const std::optional<int64_t> budget = budget_of(options_.memory, without);
  if (!budget) return memory_choice_->decisions;
  if (!known_shape) return fit_to_budget(request, scaled_part(*budget));
  if (memory_choice_->fits) return memory_choice_->decisions;
  const bool first =
      corrections_ == 0 && options_.memory.other_pieces_bytes == 0 && !options_.memory.mid_training;
  return least_of(*memory_choice_, *budget, first || options_.memory.strict);
}

bool Session::outgrown_by(const PlanRequest& request) const {
  return stash_bytes(request.symbols) > 2 * stash_bytes(first_request_->symbols);
}

int64_t Session::scaled_part(int64_t budget_bytes) const {
  return static_cast<int64_t>(growth_ * static_cast<double>(budget_bytes));
}

MemoryDecisions Session::fit_to_budget(const PlanRequest& request, int64_t budget_bytes) {
  // What pieces keep was balanced for their plans: a faster one would take what others need.
  if (options_.memory.other_pieces_bytes != 0 &&
      figures_with(memory_choice_->decisions, request).peak_bytes <= budget_bytes)
    return memory_choice_->decisions;
  const auto& frontier = memory_choice_->frontier;
  // What is not a gradient grows with what the step keeps: good enough to look at one or two plans.
  const double growth =
      static_cast<double>(stash_bytes(request.symbols)) /
      static_cast<double>(std::max<int64_t>(stash_bytes(first_request_->symbols), 1));
  const auto expected = [&](size_t i) {
    const PlanFigures& known = frontier[i].figures;
    const auto changing = static_cast<double>(known.peak_bytes - known.gradients_at_peak_bytes);
    return known.gradients_at_peak_bytes + static_cast<int64_t>(changing * growth);
  };
  const size_t taken = fastest_that_fits(
      frontier.size(), [&](size_t i) { return expected(i) <= budget_bytes; },
      [&](size_t i) {
        return figures_with(frontier[i].decisions, request).peak_bytes <= budget_bytes;
      });
  if (figures_with(frontier[taken].decisions, request).peak_bytes <= budget_bytes)
    return frontier[taken].decisions;
  // The plans of the first shape are too large: those of this one have the last word.
  const std::shared_ptr<const MemoryChoice> own = chosen_for(request);
  return own->fits ? own->decisions : least_of(*own, budget_bytes, options_.memory.strict);
}

MemoryDecisions Session::least_of(const MemoryChoice& choice, int64_t budget_bytes, bool fatal) {
  MemoryOptions asked = options_.memory;
  if (asked.budget_bytes) asked.other_pieces_bytes += *asked.budget_bytes - budget_bytes;
  const std::string text = over_budget_text(asked, budget_bytes, choice.minimum_bytes);
  if (fatal) throw Error(text);
  if (!lenient_) warnings_.push_back(text + "; this shape runs with the plan of the least peak");
  return choice.frontier.front().decisions;
}

void Session::observe_peak(PlanEntry& entry, int64_t planned_bytes, int64_t measured_bytes) {
  constexpr double kBand = 1.005;
  if (static_cast<double>(measured_bytes) <= kBand * static_cast<double>(planned_bytes)) return;
  const std::lock_guard lock(mutex_);
  // A bound, should what is measured never settle.
  constexpr int kMostCorrections = 100, kMostWarnings = 3;
  if (corrections_ == kMostCorrections || entry.outdated.exchange(true)) return;
  if (++corrections_ > kMostWarnings) return;
  warnings_.push_back(
      str("a step took ", measured_bytes, " bytes at its peak where ", planned_bytes,
          " were planned, since operators of torch allocated more than could be known before; the "
          "next step of these shapes is planned anew with what they took",
          corrections_ == kMostWarnings ? ". Further ones are not reported" : ""));
}

void Session::leave_to_others(int64_t bytes, bool lenient, double growth) {
  const std::lock_guard lock(mutex_);
  lenient_ = lenient;
  growth_ = growth;
  const int64_t more = bytes - options_.memory.other_pieces_bytes;
  if (!options_.memory.budget_bytes || more == 0) return;
  *options_.memory.budget_bytes -= more;
  options_.memory.other_pieces_bytes = bytes;
  plans_.clear();
  forget_figures();
}

void Session::keep_gradients() {
  const std::lock_guard lock(mutex_);
  if (std::exchange(accumulates_, true)) return;
  options_.memory.mid_training = true;
  plans_.clear();
  forget_figures();
}

void Session::forget_figures() {
  compared_.clear();
  // Without training there is no first request, and nothing is chosen.
  if (first_request_ && options_.memory.asked()) memory_choice_ = chosen_for(*first_request_);
}

int64_t Session::stash_bytes(const SymbolValues& sizes) const {
  int64_t bytes = 0;
  for (const Stash& stash : memory_choice_->stashes) bytes += stash.bytes.evaluate(sizes);
  return bytes;
}

std::vector<std::string> Session::take_warnings() {
  const std::lock_guard lock(mutex_);
  return std::exchange(warnings_, {});
}

StageTimes Session::times() const {
  const std::lock_guard lock(mutex_);
  return times_;
}

size_t Session::plans_made() const {
  const std::lock_guard lock(mutex_);
  return plans_made_;
}

const Program& Session::backward_program(PlanEntry& entry, const std::vector<bool>& arrived,
                                         bool keep_saved) {
  const bool all = arrived == differentiable_outputs_;
  if (all && !keep_saved) return entry.program;
  const std::lock_guard lock(mutex_);
  std::unique_ptr<Program>& slot = entry.backward[{arrived, keep_saved}];
  if (!slot) {
    if (options_.before_plan) options_.before_plan();
    StageTimer timer(times_.plan_ms);
    const Plan& base = *entry.program.plan;
    slot = std::make_unique<Program>(
        all ? make_backward_plan(base, *entry.lowered, entry.request, keep_saved)
            : make_backward_plan(base, prune_lowered(*entry.lowered, arrived, options_.device),
                                 entry.request, keep_saved));
  }
  return *slot;
}

}  // namespace ortmodule
