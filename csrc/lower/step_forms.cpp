#include "lower/step_forms.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <ranges>
#include <unordered_map>

#include "ops/op_def.h"

namespace ortmodule {
namespace {

// 0.0 and -0.0 are not the same, and a NaN is.
bool same_number(double a, double b) {
  return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b);
}

bool same_attr(const Attr& a, const Attr& b) {
  if (a.index() != b.index()) return false;
  if (const auto* number = std::get_if<double>(&a))
    return same_number(*number, std::get<double>(b));
  if (const auto* numbers = std::get_if<std::vector<double>>(&a))
    return std::ranges::equal(*numbers, std::get<std::vector<double>>(b), same_number);
  return a == b;
}

bool same_attrs(const Attrs& a, const Attrs& b) {
  return std::ranges::equal(a.entries(), b.entries(), [](const auto& x, const auto& y) {
    return x.first == y.first && same_attr(x.second, y.second);
  });
}

bool same_scalar(const Scalar& a, const Scalar& b) {
  if (a.index() != b.index()) return false;
  const auto* number = std::get_if<double>(&a);
  return number ? same_number(*number, std::get<double>(b)) : a == b;
}

/// Position of the node of the step that computes `value`, or -1.
ptrdiff_t member_of(const Value& value, const StepNodes& step) {
  const auto member = std::ranges::find(step.nodes, value.producer());
  return member == step.nodes.end() ? -1 : member - step.nodes.begin();
}

bool is_used(const Value& output) { return !output.uses().empty() || output.is_graph_output(); }

bool same_operand(const Value* a, const StepNodes& of_a, const Value* b, const StepNodes& of_b) {
  if (!a || !b) return a == b;
  if (a->dtype != b->dtype || a->is_literal() != b->is_literal()) return false;
  return a->is_literal() ? same_scalar(a->literal(), b->literal())
                         : member_of(*a, of_a) == member_of(*b, of_b);
}

bool same_result(const Value& a, const StepNodes& of_a, const Value& b, const StepNodes& of_b) {
  return a.dtype == b.dtype && a.dims == b.dims && is_used(a) == is_used(b) &&
         (!of_a.pointwise || stays_inside(a, of_a) == stays_inside(b, of_b));
}

bool same_form(const StepNodes& a, const StepNodes& b) {
  if (a.pointwise != b.pointwise || a.nodes.size() != b.nodes.size()) return false;
  for (size_t n = 0; n < a.nodes.size(); ++n) {
    const Node &x = *a.nodes[n], &y = *b.nodes[n];
    if (x.op != y.op || x.inputs().size() != y.inputs().size() ||
        x.outputs().size() != y.outputs().size() || !same_attrs(x.attrs, y.attrs))
      return false;
    for (size_t i = 0; i < x.inputs().size(); ++i)
      if (!same_operand(x.input(i), a, y.input(i), b)) return false;
    for (size_t o = 0; o < x.outputs().size(); ++o)
      if (!same_result(*x.output(o), a, *y.output(o), b)) return false;
  }
  return true;
}

bool is_symbolic(const DimExpr& dim) { return !dim.is_constant(); }

bool is_symbolic(const Attr& attr) {
  if (const auto* dim = std::get_if<DimExpr>(&attr)) return is_symbolic(*dim);
  const auto* dims = std::get_if<Dims>(&attr);
  return dims && std::ranges::any_of(*dims, [](const DimExpr& dim) { return is_symbolic(dim); });
}

bool is_symbolic(const Value* operand) {
  if (!operand || !operand->is_literal()) return false;
  const auto* dim = std::get_if<DimExpr>(&operand->literal());
  return dim && is_symbolic(*dim);
}

bool reads_symbols(const Node& node) {
  return std::ranges::any_of(node.attrs.entries(),
                             [](const auto& entry) { return is_symbolic(entry.second); }) ||
         std::ranges::any_of(node.inputs(), [](const Value* value) { return is_symbolic(value); });
}

/// Equal for steps of one form; of others it differs mostly.
size_t hash_of(const StepNodes& step) {
  size_t hash = step.nodes.size();
  const auto mix = [&](size_t with) { hash = (hash ^ with) * 0x9E3779B97F4A7C15u; };
  for (const Node* node : step.nodes) {
    mix(std::hash<std::string>()(node->op));
    mix(node->inputs().size());
    for (const auto& [name, attr] : node->attrs.entries())
      if (const auto* size = std::get_if<DimExpr>(&attr); size && size->is_constant())
        mix(static_cast<size_t>(size->value()));
    for (const Value* output : node->outputs())
      for (const DimExpr& dim : output->dims)
        mix(dim.is_constant() ? static_cast<size_t>(dim.value()) : 1);
  }
  return hash;
}

/// Passes the symbolic sizes of an attribute to `take`; returns false if it has a graph instead.
template <class Take>
bool visit_sizes(const Attr& attr, const Take& take) {
  if (const auto* dim = std::get_if<DimExpr>(&attr)) take(*dim);
  if (const auto* dims = std::get_if<Dims>(&attr)) std::ranges::for_each(*dims, take);
  return !std::holds_alternative<std::shared_ptr<const Graph>>(attr);
}

/// The bits of the symbols that a node's results, attributes and literals mention.
class SymbolBits {
 public:
  explicit SymbolBits(std::vector<std::string>& names) : names_(names) {}

  uint64_t of(const Node& node) {
    bits_ = 0;
    const auto take = [&](const DimExpr& dim) { add(dim); };
    for (const Value* output : node.outputs()) std::ranges::for_each(output->dims, take);
    for (const auto& [name, attr] : node.attrs.entries())
      if (!visit_sizes(attr, take)) bits_ = kAll;
    for (const Value* input : node.inputs())
      if (is_symbolic(input)) add(std::get<DimExpr>(input->literal()));
    return bits_;
  }

 private:
  static constexpr uint64_t kAll = ~uint64_t{0};

  void add(const DimExpr& dim) {
    if (dim.is_constant()) return;
    std::vector<std::string> mentioned;
    dim.collect_symbols(mentioned);
    for (std::string& name : mentioned) {
      const auto known = std::ranges::find(names_, name);
      const auto bit = static_cast<size_t>(known - names_.begin());
      if (known == names_.end()) names_.push_back(std::move(name));
      bits_ |= bit < 64 ? uint64_t{1} << bit : kAll;
    }
  }

  std::vector<std::string>& names_;
  uint64_t bits_ = 0;
};

}  // namespace

void find_symbols(Lowered& lowered) {
  lowered.symbols.clear();
  SymbolBits bits(lowered.symbols);
  for (StepNodes& step : lowered.steps) {
    step.symbols = 0;
    for (const Node* node : step.nodes) step.symbols |= bits.of(*node);
  }
}

bool stays_inside(const Value& output, const StepNodes& nodes) {
  return !output.is_graph_output() && std::ranges::all_of(output.uses(), [&](const Use& use) {
    return std::ranges::find(nodes.nodes, use.node) != nodes.nodes.end();
  });
}

size_t find_forms(std::vector<StepNodes>& steps) {
  size_t forms = 0;
  std::unordered_map<size_t, std::vector<const StepNodes*>> known;  // one step of each form
  for (StepNodes& step : steps) {
    step.op = &op_def(step.nodes.front()->op);
    step.reads_symbols =
        std::ranges::any_of(step.nodes, [](const Node* node) { return reads_symbols(*node); });
    std::vector<const StepNodes*>& alike = known[hash_of(step)];
    const auto found = std::ranges::find_if(
        alike, [&](const StepNodes* other) { return same_form(step, *other); });
    if (found != alike.end()) {
      step.form = (*found)->form;
    } else {
      step.form = forms++;
      alike.push_back(&step);
    }
  }
  return forms;
}

}  // namespace ortmodule
