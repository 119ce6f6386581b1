// Plans as text, for reports and tests.
#include <iomanip>
#include <sstream>
#include <utility>

#include "plan/plan.h"

namespace ortmodule {
namespace {

const char* name_of(BufferKind kind) {
  switch (kind) {
    case BufferKind::Argument: return "argument";
    case BufferKind::OutputGrad: return "output grad";
    case BufferKind::Output: return "output";
    case BufferKind::Gradient: return "gradient";
    case BufferKind::Saved: return "saved";
    case BufferKind::Host: return "host";
    case BufferKind::ForwardArena: return "forward arena";
    case BufferKind::BackwardArena: return "backward arena";
  }
  return "?";
}

std::string operand_text(const Plan& plan, TensorId tensor) {
  if (!tensor) return "_";
  const PlannedTensor& t = plan.tensors[tensor];
  const PlannedStorage& storage = plan.storages[t.storage];
  std::ostringstream out;
  out << (t.value ? t.value->name : storage.name.text()) << "@b" << storage.buffer << "+"
      << storage.offset_bytes;
  return out.str();
}

void print_step(std::ostream& out, const Plan& plan, size_t index) {
  const PlannedStep& step = plan.steps[index];
  out << std::setw(5) << index << (step.region == Region::Forward ? " F " : " B ");
  out << step.kernel->name << " [";
  for (size_t n = 0; n < step.nodes.size(); ++n) out << (n ? " " : "") << step.nodes[n]->op;
  out << "] (";
  for (size_t i = 0; i < step.in.size(); ++i)
    out << (i ? ", " : "") << operand_text(plan, step.in[i]);
  out << ") -> ";
  for (size_t i = 0; i < step.out.size(); ++i)
    out << (i ? ", " : "") << operand_text(plan, step.out[i]);
  const auto list = [&](const char* sign, auto&& is_listed) {
    for (BufferId b : plan.buffers.ids()) {
      if (!plan.buffers[b].owned() || !is_listed(plan.buffers[b])) continue;
      out << std::exchange(sign, "") << " b" << b;
    }
  };
  const int s = static_cast<int>(index);
  list("  +", [&](const PlannedBuffer& buffer) { return buffer.first_step == s; });
  list("  -",
       [&](const PlannedBuffer& buffer) { return buffer.last_step == s && !buffer.returned(); });
  if (!step.nodes.empty() && !step.nodes.back()->origin.module.empty())
    out << "  // " << step.nodes.back()->origin.module << "  " << step.nodes.back()->origin.source;
  out << "\n";
}

}  // namespace

std::string print(const Plan& plan) {
  std::ostringstream out;
  out << "plan for";
  for (const auto& [symbol, value] : plan.symbols.entries()) out << " " << symbol << "=" << value;
  out << "\n  peak " << plan.peak_bytes << " bytes at step " << plan.peak_step << ", forward "
      << plan.forward_peak_bytes << ", saved " << plan.saved_bytes
      << (plan.exact ? "" : " (inexact: a kernel may allocate more than it declares)") << "\n";
  out << "buffers\n";
  for (BufferId b : plan.buffers.ids()) {
    const PlannedBuffer& buffer = plan.buffers[b];
    if (!buffer.owned()) continue;
    out << "  b" << b << " " << name_of(buffer.kind) << " " << buffer.bytes << " bytes, steps "
        << buffer.first_step << ".." << buffer.last_step << "\n";
  }
  out << "steps (" << plan.forward_steps << " forward, " << plan.step_count() - plan.forward_steps
      << " backward in " << plan.ranges << " ranges)\n";
  for (size_t s = 0; s < plan.steps.size(); ++s) print_step(out, plan, s);
  for (const std::string& note : plan.notes) out << "note: " << note << "\n";
  return out.str();
}

}  // namespace ortmodule
