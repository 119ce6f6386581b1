// All kernels of the program: those of kernels/cpu come from their section, the others from static
// initialisers; read when plans are made.
#include <algorithm>
#include <deque>
#include <mutex>
#include <shared_mutex>
#include <span>
#include <unordered_map>
#include <utility>

#include "kernels/cpu_kernel_entry.h"

namespace ortmodule {

// Bounds of the section, from the linker; weak because a program without CPU kernels has none.
extern "C" {
[[gnu::weak, gnu::visibility("hidden")]] extern const CpuKernelEntry __start_ortm_cpu_kernels[];
[[gnu::weak, gnu::visibility("hidden")]] extern const CpuKernelEntry __stop_ortm_cpu_kernels[];
}

namespace {

struct Entry {
  KernelDef def;
  Isa isa = Isa::Baseline;
  bool on_host = false;  // runs without torch

  bool serves(Device device) const {
    return device == Device::Host ? on_host : def.device == device;
  }
};

struct Entries {
  std::deque<Entry> all;  // a deque, because plans keep pointers to the definitions
  /// Best first; a wider instruction set decides only between copies of equal priority.
  std::unordered_map<std::string_view, std::vector<const Entry*>> of_op;

  void add(Entry entry) {
    const Entry& added = all.emplace_back(std::move(entry));
    std::vector<const Entry*>& same = of_op[added.def.op];
    const auto rank = [](const Entry* e) { return std::pair(e->def.priority, e->isa); };
    const auto worse =
        std::ranges::find_if(same, [&](const Entry* other) { return rank(other) < rank(&added); });
    same.insert(worse, &added);
  }
};

Entries cpu_kernels() {
  Entries found;
  for (const CpuKernelEntry& entry : std::span(__start_ortm_cpu_kernels, __stop_ortm_cpu_kernels))
    if (isa_available(entry.isa)) found.add({entry.make(), entry.isa, true});
  return found;
}

// Extension modules add theirs when they are loaded, while sessions may make plans.
std::shared_mutex& entries_mutex() {
  static std::shared_mutex mutex;
  return mutex;
}

Entries& entries() {
  static Entries known = cpu_kernels();
  return known;
}

std::vector<const Entry*> entries_of(std::string_view op) {
  const std::shared_lock lock(entries_mutex());
  const auto found = entries().of_op.find(op);
  return found == entries().of_op.end() ? std::vector<const Entry*>() : found->second;
}

// The dtype that KernelDef::dtypes speaks of.
DType leading_dtype(const StepFacts& facts) {
  if (!facts.inputs.empty()) return facts.inputs.front().dtype;
  return facts.outputs.empty() ? DType::Undefined : facts.outputs.front().dtype;
}

Reason refusal(const KernelDef& def, const StepFacts& facts) {
  const DType dtype = leading_dtype(facts);
  if (dtype != DType::Undefined && !def.dtypes.contains(dtype))
    return str("it does not take ", name_of(dtype));
  return def.unsupported ? def.unsupported(facts) : Reason();
}

std::string_view device_name(Device device) { return device == Device::CUDA ? "CUDA" : "CPU"; }

}  // namespace

const KernelDef* select_kernel(std::string_view op, Device device, const StepFacts& facts,
                               std::string* why) {
  std::vector<const Entry*> candidates = entries_of(op);
  std::erase_if(candidates, [&](const Entry* entry) { return !entry->serves(device); });
  for (const Entry* entry : candidates)
    if (!refusal(entry->def, facts)) return &entry->def;
  if (!why) return nullptr;
  std::vector<std::string> refusals;
  for (const Entry* entry : candidates) {
    // Copies for several instruction sets refuse alike: one line for all of them.
    std::string line = str("\n  - ", entry->def.name, ": ", *refusal(entry->def, facts));
    if (std::find(refusals.begin(), refusals.end(), line) == refusals.end())
      refusals.push_back(std::move(line));
  }
  *why = str("no kernel for ", op, " on ", device_name(device), ":");
  if (refusals.empty()) *why += " none is registered";
  for (const std::string& line : refusals) *why += line;
  return nullptr;
}

std::vector<const KernelDef*> kernels_of(std::string_view op) {
  std::vector<const KernelDef*> defs;
  for (const Entry* entry : entries_of(op)) defs.push_back(&entry->def);
  return defs;
}

std::vector<const KernelDef*> all_kernels() {
  std::vector<const KernelDef*> defs;
  const std::shared_lock lock(entries_mutex());
  for (const Entry& entry : entries().all) defs.push_back(&entry.def);
  return defs;
}

bool isa_available(Isa isa) {
#if defined(__x86_64__)
  __builtin_cpu_init();  // static initialisers may run before the runtime's own call
  const bool v2 = __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("popcnt");
  const bool v3 = v2 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                  __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
  const bool v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                  __builtin_cpu_supports("avx512vl");
  switch (isa) {
    case Isa::Baseline: return v2;
    case Isa::Avx2: return v3;
    case Isa::Avx512: return v4;
  }
  return false;
#else
  return isa == Isa::Baseline;
#endif
}

KernelRegistrar::KernelRegistrar(KernelDef def) {
  const std::unique_lock lock(entries_mutex());
  entries().add({std::move(def)});
}

}  // namespace ortmodule
