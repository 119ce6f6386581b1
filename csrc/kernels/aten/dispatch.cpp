// ATen nodes through torch's dispatcher: the arguments are rebuilt from the node's attributes, the
// results are taken over. What the operator allocates inside is its own affair, so
// a plan that holds such a node is labelled inexact.
//
// Fused attention on CUDA returns the state of its generator for backward: as uint64, which the
// graph has no type for, so that its bits pass as int64; or on the host, unless a CUDA graph is
// captured, where it stays.
#include <ATen/ScalarOps.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/autograd.h>

#include <charconv>
#include <cstdlib>
#include <set>

#include "kernels/aten/aten_views.h"
#include "kernels/aten/attention_strides.h"
#include "kernels/aten/library_probe.h"
#include "kernels/aten/nondeterministic_operators.h"

namespace ortmodule {
namespace {

struct PreparedCall {
  explicit PreparedCall(c10::OperatorHandle found) : handle(std::move(found)) {}
  c10::OperatorHandle handle;
  // Per schema argument: a finished value, or operands to fill in.
  struct Argument {
    c10::IValue value;
    std::vector<int> operands;  // -1: None
    enum class Kind : uint8_t {
      Fixed,
      Tensor,
      TensorList,
      OptionalTensorList,
      EngineDevice,
      GeneratorState
    } kind = Kind::Fixed;
  };
  std::vector<Argument> arguments;
  bool is_flash_attention = false;
  bool is_foreign = false;
  /// The results whose gradients are given, and the operands whose gradients are computed.
  struct Gradient {
    std::vector<int64_t> arrived, wanted;
  };
  std::vector<Gradient> orders;
};

std::vector<int64_t> numbers_of(const Attrs& attrs, const std::string& name) {
  std::vector<int64_t> numbers;
  for (const DimExpr& number : attrs.dims(name)) numbers.push_back(number.value());
  return numbers;
}

std::optional<c10::OperatorHandle> find_operator(const std::string& target) {
  const size_t dot = target.find('.');
  const size_t last = target.rfind('.');
  if (dot == std::string::npos || dot == last) return std::nullopt;
  const std::string overload = target.substr(last + 1);
  return c10::Dispatcher::singleton().findSchema(
      {target.substr(0, dot) + "::" + target.substr(dot + 1, last - dot - 1),
       overload == "default" ? std::string() : overload});
}

std::vector<int> parse_operands(std::string_view text) {
  std::vector<int> operands;
  while (!text.empty()) {
    int index = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), index);
    ORTM_ASSERT(error == std::errc(), "operand list '", text, "'");
    operands.push_back(index);
    text.remove_prefix(static_cast<size_t>(end - text.data()));
    if (!text.empty()) text.remove_prefix(1);
  }
  return operands;
}

c10::IValue parse_opaque(const std::string& text) {
  if (text.starts_with("complex ")) {
    const char* real = text.c_str() + 8;
    char* imaginary = nullptr;
    const double first = std::strtod(real, &imaginary);
    return c10::complex<double>(first, std::strtod(imaginary, nullptr));
  }
  if (text.starts_with("torch.")) {
    // Layouts and memory formats; sparse layouts do not reach an ATen node.
    if (text == "torch.strided") return c10::IValue(static_cast<int64_t>(c10::kStrided));
    if (text == "torch.contiguous_format")
      return c10::IValue(static_cast<int64_t>(at::MemoryFormat::Contiguous));
    if (text == "torch.preserve_format")
      return c10::IValue(static_cast<int64_t>(at::MemoryFormat::Preserve));
    if (text == "torch.channels_last")
      return c10::IValue(static_cast<int64_t>(at::MemoryFormat::ChannelsLast));
    if (text == "torch.channels_last_3d")
      return c10::IValue(static_cast<int64_t>(at::MemoryFormat::ChannelsLast3d));
    throw Error(str("[aten] an argument must be a dense layout, but found ", text));
  }
  throw Error(
      str("[aten] an argument must be a layout, a memory format or a complex number, but found ",
          text));
}

PreparedCall::Argument from_text(const std::string& text, const c10::TypePtr& type) {
  PreparedCall::Argument argument;
  using Kind = PreparedCall::Argument::Kind;
  if (text.starts_with("tensor:")) {
    argument.kind = Kind::Tensor;
    argument.operands = parse_operands(std::string_view(text).substr(7));
  } else if (text.starts_with("tensors:")) {
    const bool optional = type->str().find('?') != std::string::npos ||
                          type->str().find("Optional") != std::string::npos;
    argument.kind = optional ? Kind::OptionalTensorList : Kind::TensorList;
    argument.operands = parse_operands(std::string_view(text).substr(8));
  } else if (text.starts_with("str:")) {
    argument.value = text.substr(4);
  } else if (text.starts_with("opaque:")) {
    argument.value = parse_opaque(text.substr(7));
  } else if (text.starts_with("flags:")) {
    c10::List<bool> flags;
    for (char c : text.substr(6)) flags.push_back(c == '1');
    argument.value = flags;
  } else if (text == "none") {
    // A missing tensor is None only where the schema says so; elsewhere it is an undefined one, as
    // Python's binding makes it.
    if (type->kind() == c10::TypeKind::TensorType) argument.value = at::Tensor();
  } else {
    argument.value = text == "true";
  }
  return argument;
}

bool wants_float(const c10::TypePtr& type) {
  const std::string name = type->str();
  return name.find("float") != std::string::npos;
}

PreparedCall::Argument to_argument(const Attr& attr, const c10::TypePtr& type) {
  PreparedCall::Argument argument;
  if (const auto* dim = std::get_if<DimExpr>(&attr)) {
    argument.value = wants_float(type) ? c10::IValue(static_cast<double>(dim->value()))
                                       : c10::IValue(dim->value());
  } else if (const auto* dims = std::get_if<Dims>(&attr)) {
    const bool tensors = type->str().find("Tensor") != std::string::npos;
    if (dims->empty() && tensors) return from_text("tensors:", type);
    if (wants_float(type)) {
      c10::List<double> values;
      for (const DimExpr& d : *dims) values.push_back(static_cast<double>(d.value()));
      argument.value = values;
    } else {
      c10::List<int64_t> values;
      for (const DimExpr& d : *dims) values.push_back(d.value());
      argument.value = values;
    }
  } else if (const auto* number = std::get_if<double>(&attr)) {
    argument.value = *number;
  } else if (const auto* numbers = std::get_if<std::vector<double>>(&attr)) {
    argument.value = c10::List<double>(at::ArrayRef<double>(*numbers));
  } else if (const auto* dtype = std::get_if<DType>(&attr)) {
    argument.value = static_cast<int64_t>(aten_type(*dtype));
  } else {
    return from_text(std::get<std::string>(attr), type);
  }
  return argument;
}

/// A number where the schema has a tensor (`z * 2j`), as Python's binding passes it.
void wrap_number(PreparedCall::Argument& argument, const c10::TypePtr& type) {
  if (argument.kind != PreparedCall::Argument::Kind::Fixed || !argument.value.isScalar()) return;
  if (!type->isSubtypeOf(*c10::OptionalType::ofTensor())) return;
  at::Tensor number = c10::scalar_to_tensor(argument.value.toScalar());
  number.unsafeGetTensorImpl()->set_wrapped_number(true);
  argument.value = number;
}

bool names_device(const c10::TypePtr& type) {
  return type->str().find("Device") != std::string::npos;
}

bool is_generator_state(const std::string& argument) {
  return argument == "philox_seed" || argument == "philox_offset" || argument == "rng_state" ||
         argument == "unused";
}

Reason unknown_operator(const StepFacts& facts) {
  const std::string target = facts.node().attrs.string("operator", "");
  if (find_operator(target)) return {};
  return str("the dispatcher knows no operator ", target);
}

/// What others registered may do more than compute results, so that it is not called to measure it.
bool is_of_torch(const StepFacts& facts) {
  const std::string name = facts.node().attrs.string("operator", "");
  return name.starts_with("aten.") || name.starts_with("prims.");
}

std::shared_ptr<const void> prepare_call(const StepFacts& facts) {
  using Kind = PreparedCall::Argument::Kind;
  const Attrs& attrs = facts.node().attrs;
  auto call = std::make_shared<PreparedCall>(*find_operator(attrs.string("operator")));
  call->is_foreign = !is_of_torch(facts);
  for (int64_t order = 1; order <= attrs.integer("order", 0); ++order)
    call->orders.push_back(
        {numbers_of(attrs, str("arrived_", order)), numbers_of(attrs, str("wanted_", order))});
  call->is_flash_attention = attrs.string("operator").find("flash_attention") != std::string::npos;
  for (const c10::Argument& argument : call->handle.schema().arguments()) {
    const Attr* attr = attrs.find("arg_" + argument.name());
    ORTM_ASSERT(attr, attrs.string("operator"), " lacks argument ", argument.name());
    // Whatever device the program names or leaves open: all of a piece runs on one.
    call->arguments.push_back(names_device(argument.type())
                                  ? PreparedCall::Argument{{}, {}, Kind::EngineDevice}
                                  : to_argument(*attr, argument.type()));
    PreparedCall::Argument& prepared = call->arguments.back();
    wrap_number(prepared, argument.type());
    if (prepared.kind == Kind::Tensor && is_generator_state(argument.name()))
      prepared.kind = Kind::GeneratorState;
  }
  return call;
}

/// An operator that others registered may keep its operand, or share memory with it behind torch's
/// back (numpy): it gets what lives as long as it likes.
at::Tensor operand_for(const PreparedCall& call, const KernelArgs& args, int index) {
  const at::Tensor borrowed = operand(args, static_cast<size_t>(index));
  return call.is_foreign ? with_own_memory(borrowed) : borrowed;
}

at::Tensor generator_state(const PreparedCall& call, const PreparedCall::Argument& argument,
                           const KernelArgs& args) {
  const at::Tensor state = as_number_anywhere(args.in[static_cast<size_t>(argument.operands[0])]);
  const bool unsigned_state = call.is_flash_attention && state.is_cuda();
  return unsigned_state ? state.view(at::kUInt64) : state;
}

/// The tensor of operand `index`.
using OperandOf = c10::function_ref<at::Tensor(int)>;

void push(torch::jit::Stack& stack, const PreparedCall& call,
          const PreparedCall::Argument& argument, const KernelArgs& args,
          const OperandOf& operand_of) {
  using Kind = PreparedCall::Argument::Kind;
  switch (argument.kind) {
    case Kind::Fixed: stack.push_back(argument.value); return;
    case Kind::EngineDevice: stack.emplace_back(engine_device()); return;
    case Kind::Tensor: stack.emplace_back(operand_of(argument.operands[0])); return;
    case Kind::GeneratorState: stack.emplace_back(generator_state(call, argument, args)); return;
    case Kind::TensorList: {
      c10::List<at::Tensor> list;
      for (int index : argument.operands)
        list.push_back(index < 0 ? at::Tensor() : operand_of(index));
      stack.emplace_back(std::move(list));
      return;
    }
    case Kind::OptionalTensorList: {
      c10::List<std::optional<at::Tensor>> list;
      for (int index : argument.operands)
        list.push_back(index < 0 ? std::optional<at::Tensor>() : operand_of(index));
      stack.emplace_back(std::move(list));
      return;
    }
  }
}

void flatten(const c10::IValue& value, std::vector<at::Tensor>& tensors) {
  if (value.isTensor()) {
    tensors.push_back(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) tensors.push_back(tensor);
  } else {
    tensors.emplace_back();  // a number: its slot is never read
  }
}

/// What stands for a functional form that torch does not differentiate: it has no gradient of
/// `copy`, and of `slice_scatter` for real numbers only.
std::optional<at::Tensor> differentiable_form(const PreparedCall& call,
                                              const torch::jit::Stack& stack) {
  const std::string& name = call.handle.schema().name();
  if (name == "aten::copy") {
    const at::Tensor& self = stack[0].toTensor();
    return stack[1].toTensor().to(self.scalar_type()).expand(self.sizes()).clone();
  }
  if (name != "aten::slice_scatter" || !stack[0].toTensor().is_complex()) return std::nullopt;
  at::Tensor whole = stack[0].toTensor().clone();
  whole
      .slice(stack[2].toInt(), stack[3].toOptional<int64_t>(), stack[4].toOptional<int64_t>(),
             stack[5].toInt())
      .copy_(stack[1].toTensor());
  return whole;
}

std::vector<at::Tensor> results_of(const PreparedCall& call, const KernelArgs& args,
                                   const OperandOf& operand_of) {
  torch::jit::Stack stack;
  stack.reserve(call.arguments.size());
  for (const PreparedCall::Argument& argument : call.arguments)
    push(stack, call, argument, args, operand_of);
  if (at::GradMode::is_enabled())
    if (const auto form = differentiable_form(call, stack)) return {*form};
  call.handle.callBoxed(&stack);
  std::vector<at::Tensor> results;
  for (const c10::IValue& value : stack) flatten(value, results);
  return results;
}

void call_operator(const KernelArgs& args) {
  const auto& call = *static_cast<const PreparedCall*>(args.prepared);
  const auto operand_at = [&](int index) { return operand_for(call, args, index); };
  std::vector<at::Tensor> results = results_of(call, args, operand_at);
  for (size_t i = 0; i < args.out.size() && i < results.size(); ++i) {
    if (args.out[i].dtype == DType::Undefined || !results[i].defined()) continue;
    // Views such as `_conj` only set a bit, which the memory of a value cannot hold.
    if (results[i].is_conj()) results[i] = results[i].resolve_conj();
    if (results[i].is_neg()) results[i] = results[i].resolve_neg();
    if (results[i].scalar_type() == at::kUInt64) results[i] = results[i].view(at::kLong);
    if (call.is_foreign && !is_of_torchs_allocator(results[i])) results[i] = results[i].clone();
    args.results[i] = give(results[i], args.out[i]);
  }
}

/// Autograd as outside of the engine, whose steps run below it.
struct Recording {
  static c10::impl::LocalDispatchKeySet keys() {
    c10::impl::LocalDispatchKeySet keys = c10::impl::tls_local_dispatch_key_set();
    keys.excluded_ = keys.excluded_ - c10::autograd_dispatch_keyset_with_ADInplaceOrView;
    return keys;
  }
  c10::impl::ForceDispatchKeyGuard above{keys()};
  at::AutoGradMode enabled{true};
};

/// The operator again, with torch's own gradient, the gradient of that and so on.
void call_gradient(const KernelArgs& args) {
  const auto& call = *static_cast<const PreparedCall*>(args.prepared);
  size_t next = args.in.size();  // the first gradient of a result
  for (const PreparedCall::Gradient& order : call.orders) next -= order.arrived.size();
  std::vector<at::Tensor> operands(args.in.size());
  for (size_t i = 0; i < operands.size(); ++i)
    operands[i] = i < next ? operand_for(call, args, static_cast<int>(i)) : operand(args, i);
  for (const PreparedCall::Gradient& order : call.orders)
    for (const int64_t index : order.wanted) {
      at::Tensor& leaf = operands[static_cast<size_t>(index)];
      if (!leaf.requires_grad()) leaf = leaf.detach().requires_grad_();
    }
  const Recording recording;
  std::vector<at::Tensor> values =
      results_of(call, args, [&](int index) { return operands[static_cast<size_t>(index)]; });
  for (size_t n = 0; n < call.orders.size(); ++n) {
    const PreparedCall::Gradient& order = call.orders[n];
    torch::autograd::variable_list reached, arrived, wanted;
    for (const int64_t index : order.arrived) {
      const at::Tensor& value = values.at(static_cast<size_t>(index));
      const at::Tensor& gradient = operands[next++];
      if (!value.requires_grad()) continue;
      reached.push_back(value);
      arrived.push_back(gradient);
    }
    for (const int64_t index : order.wanted) wanted.push_back(operands[static_cast<size_t>(index)]);
    const bool is_last = n + 1 == call.orders.size();
    // The program differentiates the first gradient, for which torch may take another formula: that
    // of a determinant holds for singular matrices, too.
    const bool differentiable = !is_last || n == 0;
    torch::autograd::variable_list found(wanted.size());
    if (!reached.empty())
      found = torch::autograd::grad(reached, wanted, arrived, !is_last, differentiable, true);
    for (size_t k = 0; k < wanted.size(); ++k)
      if (!found[k].defined()) found[k] = at::zeros_like(wanted[k]);
    values = std::move(found);
  }
  for (size_t k = 0; k < values.size(); ++k) {
    const at::Tensor result = values[k].detach().resolve_conj().resolve_neg();
    values[k].reset();  // or give() would copy
    args.results[k] = give(result, args.out[k]);
  }
}

/// What an operator demands of its operands: torch's composite callers make those of group norms
/// contiguous, and the innermost dimension of those of attention, which the graph does not keep.
LayoutRule demanded_layout(const StepFacts& facts) {
  const std::string name = facts.node().attrs.string("operator", "");
  if (name.starts_with("aten.native_group_norm")) return LayoutRule::Contiguous;
  if (name.starts_with("aten._scaled_dot_product_")) return LayoutRule::InnerContiguous;
  return LayoutRule::Any;
}

/// Attention that drops nothing: it neither draws nor reads the state of a generator.
bool drops_nothing(const Attrs& attrs) {
  const Attr* ratio = attrs.find("arg_dropout_p");
  const auto* number = ratio ? std::get_if<double>(ratio) : nullptr;
  return number && *number == 0.0;
}

/// Operands that hold the state of a generator.
std::set<int> generator_operands(const Attrs& attrs) {
  std::set<int> operands;
  for (const auto& [name, attr] : attrs.entries()) {
    const auto* text = std::get_if<std::string>(&attr);
    if (text && text->starts_with("tensor:") && name.starts_with("arg_") &&
        is_generator_state(name.substr(4)))
      operands.insert(parse_operands(std::string_view(*text).substr(7)).front());
  }
  return operands;
}

/// What an operator allocates inside follows from its operands' layouts, unless it draws numbers or
/// reads indices, which zeros are no example of.
size_t operator_library_bytes(const StepFacts& facts) {
  const Attrs& attrs = facts.node().attrs;
  const bool plain = drops_nothing(attrs);
  if ((attrs.has("random") && !plain) || !is_of_torch(facts)) return noted_library_bytes(facts);
  const std::set<int> unread = plain ? generator_operands(attrs) : std::set<int>();
  for (size_t i = 0; i < facts.inputs.size(); ++i) {
    const DType dtype = facts.inputs[i].dtype;
    if (dtype != DType::Undefined && !kAllFloats.contains(dtype) && dtype != DType::Bool &&
        !unread.contains(static_cast<int>(i)))
      return noted_library_bytes(facts);
  }
  return probed_bytes<call_operator, prepare_call, true>(facts);
}

/// Torch's operators on images give channels-last results for channels-last operands. Where one
/// does not, its result is copied.
std::vector<Sizes> operator_strides(const StepFacts& facts) {
  if (std::optional<std::vector<Sizes>> strides = attention_strides(facts)) return *strides;
  std::vector<Sizes> strides;
  for (const OperandFacts& output : facts.outputs) {
    strides.push_back(output.layout.strides);
    for (const OperandFacts& x : facts.inputs) {
      if (x.layout.sizes.size() != output.layout.sizes.size() || is_contiguous(x.layout) ||
          !is_channels_last(x.layout))
        continue;
      strides.back() = strides_like(output.layout.sizes, x.layout);
      break;
    }
  }
  return strides;
}

template <LayoutRule rule>
Reason other_dispatcher(const StepFacts& facts) {
  if (demanded_layout(facts) != rule) return "the operator demands operands of another layout";
  return unknown_operator(facts);
}

/// Host-compiled kernels run torch's operators on the CPU, where they always give the same bits.
template <LayoutRule rule>
Reason repeatable(const StepFacts& facts) {
  if (!engine_device().is_cuda() || !varies_on_cuda(facts.node()))
    return "the operator gives the same bits in every run";
  return other_dispatcher<rule>(facts);
}

template <LayoutRule rule>
KernelDef dispatcher(std::string_view name) {
  return {.op = "ATen",
          .name = name,
          .dtypes = kEveryType,
          .run = call_operator,
          .unsupported = other_dispatcher<rule>,
          .library_bytes = operator_library_bytes,
          .output_strides = rule == LayoutRule::Contiguous ? nullptr : operator_strides,
          .prepare = prepare_call,
          .layout = rule,
          .allocates_outputs = true,
          .inexact = true};
}

template <LayoutRule rule>
KernelDef nondeterministic(std::string_view name) {
  KernelDef def = dispatcher<rule>(name);
  def.device = Device::CUDA;
  def.unsupported = repeatable<rule>;
  def.deterministic = false;
  return def;
}

REGISTER_ATEN_KERNEL((dispatcher<LayoutRule::Any>("dispatcher")));
REGISTER_ATEN_KERNEL((dispatcher<LayoutRule::InnerContiguous>("dispatcher_attention")));
REGISTER_ATEN_KERNEL((dispatcher<LayoutRule::Contiguous>("dispatcher_contiguous")));
REGISTER_KERNEL((nondeterministic<LayoutRule::Any>("dispatcher_nondeterministic")));
REGISTER_KERNEL((nondeterministic<LayoutRule::InnerContiguous>("dispatcher_varying_attention")));

REGISTER_ATEN_KERNEL({.op = "ATenGrad",
                      .name = "dispatcher_gradient",
                      .dtypes = kEveryType,
                      .run = call_gradient,
                      .unsupported = unknown_operator,
                      .library_bytes = noted_library_bytes,
                      .prepare = prepare_call,
                      .layout = LayoutRule::Contiguous,
                      .allocates_outputs = true,
                      .inexact = true});

}  // namespace
}  // namespace ortmodule
