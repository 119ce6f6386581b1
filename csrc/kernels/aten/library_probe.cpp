#include "kernels/aten/library_probe.h"

#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/record_function.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "ir/text.h"
#include "kernels/aten/allocation_counter.h"
#include "kernels/aten/aten_views.h"

namespace ortmodule {
namespace {

/// As the engine runs its steps: no autograd, no autocast. A profiler's own callbacks would look
/// for its state where the counter is.
struct Guards {
  at::DisableRecordFunctionGuard no_profiler;
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  c10::impl::ExcludeDispatchKeyGuard no_autocast{c10::autocast_dispatch_keyset};
};

void add_number(std::string& key, int64_t number) {
  key.append(reinterpret_cast<const char*>(&number), sizeof number);
}

void add_operand(std::string& key, const OperandFacts& operand) {
  add_number(key, static_cast<int64_t>(operand.dtype));
  add_number(key, static_cast<int64_t>(operand.layout.sizes.size()));
  for (int64_t size : operand.layout.sizes) add_number(key, size);
  for (int64_t stride : operand.layout.strides) add_number(key, stride);
}

/// Numbers as they are in memory: each step of a plan has one, and text takes longer than the rest.
std::string signature(const StepFacts& facts, bool allocates_outputs) {
  const NodeFacts& node = facts.node();
  std::string key = node.op;
  key += allocates_outputs ? '+' : '-';
  const at::Device device = engine_device();
  add_number(key, static_cast<int64_t>(device.type()));
  add_number(key, device.index());
  add_number(key, at::get_num_threads());
  for (const auto& [name, attr] : node.attrs.entries()) {
    key += name;
    key += '=';
    if (const auto* number = std::get_if<DimExpr>(&attr); number && number->is_constant()) {
      add_number(key, number->value());
    } else {
      key += attr_text(attr);
      key += ';';
    }
  }
  for (const OperandFacts& operand : facts.inputs) add_operand(key, operand);
  for (size_t i = 0; i < facts.outputs.size(); ++i) {
    add_operand(key, facts.outputs[i]);
    key += node.output_used[i] ? '+' : '-';
  }
  return key;
}

TensorView view_of(const OperandFacts& operand, void* data) {
  return {data, operand.dtype, static_cast<int>(operand.layout.sizes.size()),
          operand.layout.sizes.data(), operand.layout.strides.data()};
}

at::Tensor zeros_of(const OperandFacts& operand) {
  return at::empty_strided(operand.layout.sizes, operand.layout.strides,
                           engine_options(operand.dtype))
      .zero_();
}

/// Operands of zeros, and outputs unless the kernel gives them itself.
struct ZeroOperands {
  std::vector<at::Tensor> owned;
  std::vector<TensorView> in, out;

  ZeroOperands(const StepFacts& facts, bool allocates_outputs) {
    for (const OperandFacts& operand : facts.inputs)
      in.push_back(view_of(operand, memory(operand)));
    for (const OperandFacts& operand : facts.outputs)
      out.push_back(view_of(operand, allocates_outputs ? nullptr : memory(operand)));
  }

 private:
  void* memory(const OperandFacts& operand) {
    if (operand.dtype == DType::Undefined) return nullptr;
    return owned.emplace_back(zeros_of(operand)).mutable_data_ptr();
  }
};

size_t call_once(const StepFacts& facts, void (*run)(const KernelArgs&),
                 const std::shared_ptr<const void>& prepared, bool allocates_outputs) {
  const Guards guards;
  const ZeroOperands operands(facts, allocates_outputs);
  KernelContext context;
  std::vector<Buffer> results(operands.out.size());
  std::shared_ptr<AllocationCounter> counter;
  // On CUDA the first call may try algorithms, which takes more than the later ones will.
  for (int calls = engine_device().is_cuda() ? 2 : 1; calls > 0; --calls) {
    for (Buffer& result : results) result = Buffer();
    counter = std::make_shared<AllocationCounter>();
    const c10::DebugInfoGuard counting(c10::DebugInfoKind::PROFILER_STATE, counter);
    run({facts, operands.in, operands.out, nullptr, prepared.get(), context, results});
  }
  return static_cast<size_t>(counter->peak_beyond(results));
}

/// Nothing where zeros are no operands of this operator, or the device is not there.
std::optional<size_t> try_call(const StepFacts& facts, void (*run)(const KernelArgs&),
                               const std::shared_ptr<const void>& prepared,
                               bool allocates_outputs) {
  try {
    return call_once(facts, run, prepared, allocates_outputs);
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

/// What is known of signatures, in this process; all is forgotten where sizes never repeat.
struct KnownBytes {
  std::mutex mutex;
  std::unordered_map<std::string, std::optional<size_t>> by_signature;

  std::optional<size_t>& operator[](std::string signature) {
    constexpr size_t kMost = 1 << 16;
    if (by_signature.size() >= kMost) by_signature.clear();
    return by_signature[std::move(signature)];
  }
};

KnownBytes& known_bytes() {
  static KnownBytes known;
  return known;
}

size_t noted(const std::string& signature) {
  KnownBytes& known = known_bytes();
  const std::lock_guard lock(known.mutex);
  const auto found = known.by_signature.find(signature);
  return found == known.by_signature.end() ? 0 : found->second.value_or(0);
}

}  // namespace

std::optional<size_t> probed_library_bytes(const StepFacts& facts, void (*run)(const KernelArgs&),
                                           const std::shared_ptr<const void>& prepared,
                                           bool allocates_outputs) {
  KnownBytes& known = known_bytes();
  const std::string key = signature(facts, allocates_outputs);
  {
    const std::lock_guard lock(known.mutex);
    if (const auto found = known.by_signature.find(key); found != known.by_signature.end())
      return found->second;
  }
  const std::optional<size_t> bytes = try_call(facts, run, prepared, allocates_outputs);
  const std::lock_guard lock(known.mutex);
  return known[key] = bytes;
}

size_t bytes_taken_by(const std::function<void()>& call) {
  const Guards guards;
  const auto counter = std::make_shared<AllocationCounter>();
  const c10::DebugInfoGuard counting(c10::DebugInfoKind::PROFILER_STATE, counter);
  call();
  return static_cast<size_t>(counter->peak_beyond({}));
}

size_t noted_library_bytes(const StepFacts& facts) { return noted(signature(facts, true)); }

void note_library_bytes(const StepFacts& facts, bool allocates_outputs, size_t bytes) {
  KnownBytes& known = known_bytes();
  const std::lock_guard lock(known.mutex);
  std::optional<size_t>& most = known[signature(facts, allocates_outputs)];
  most = std::max(most.value_or(0), bytes);
}

}  // namespace ortmodule
