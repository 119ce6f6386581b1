#include "session.h"

#include <chrono>

#include "gradient/build_gradient.h"

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
    lowered_ = lower(*joint_, options_.device);
  }
  differentiable_outputs_.assign(piece_.output_strides.size(), false);
  for (const GraphInput& input : joint_->inputs())
    if (input.kind == InputKind::GradOutput)
      differentiable_outputs_[static_cast<size_t>(input.index)] = true;
}

SymbolValues Session::bind_symbols(const std::vector<Layout>& arguments,
                                   const std::vector<int64_t>& symbols) const {
  SymbolValues values;
  size_t next = 0;
  for (const BoundInput& bound : piece_.arguments)
    if (bound.kind == BoundInput::Kind::Symbol) values.bind(bound.symbol, symbols.at(next++));
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

std::shared_ptr<PlanEntry> Session::plan_for(const std::vector<Layout>& arguments,
                                             const std::vector<int64_t>& symbols) {
  Key key = symbols;
  for (const Layout& layout : arguments) {
    key.insert(key.end(), layout.sizes.begin(), layout.sizes.end());
    key.insert(key.end(), layout.strides.begin(), layout.strides.end());
  }
  const std::lock_guard lock(mutex_);
  for (auto it = plans_.begin(); it != plans_.end(); ++it) {
    if (it->first != key) continue;
    plans_.splice(plans_.begin(), plans_, it);
    return plans_.front().second;
  }
  StageTimer timer(times_.plan_ms);
  PlanRequest request;
  request.device = options_.device;
  request.symbols = bind_symbols(arguments, symbols);
  request.arguments = arguments;
  for (const Dims& strides : piece_.output_strides)
    request.output_strides.push_back(evaluate(strides, request.symbols));
  std::shared_ptr<Plan> plan = make_plan(lowered_, request);
  auto entry = std::make_shared<PlanEntry>(std::move(plan), std::move(request));
  ++plans_made_;
  plans_.emplace_front(std::move(key), entry);
  if (plans_.size() > options_.plan_cache_size) plans_.pop_back();
  return entry;
}

const Program& Session::backward_program(PlanEntry& entry, const std::vector<bool>& arrived) {
  if (arrived == differentiable_outputs_) return entry.program;
  const std::lock_guard lock(mutex_);
  std::unique_ptr<Program>& slot = entry.backward[arrived];
  if (!slot) {
    StageTimer timer(times_.plan_ms);
    const Lowered pruned = prune_lowered(lowered_, arrived, options_.device);
    slot =
        std::make_unique<Program>(make_backward_plan(*entry.program.plan, pruned, entry.request));
  }
  return *slot;
}

}  // namespace ortmodule
