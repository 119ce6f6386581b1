// Options of sessions and runs.
#pragma once

#include <ortmodule/ort/memory.h>
#include <ortmodule/ort/value.h>

#include <array>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

struct OrtSessionOptions {
  ortmodule::inference::SessionOptions options;
  bool names_threads = false;  // otherwise the environment does
  std::map<std::string, std::string> config;
  std::vector<std::string> providers;  // that were asked for beside the CPU's
  std::string profile_prefix;          // of the file with the trace
  std::string logid;
  int log_severity_level = -1;  // -1: the environment's
};

struct OrtRunOptions {
  ortmodule::inference::RunOptions options;
  std::string tag;
  std::map<std::string, std::string> config;
  int log_severity_level = -1;
  int log_verbosity_level = 0;
};

/// Options of a provider as text.
struct OrtCUDAProviderOptionsV2 {
  std::map<std::string, std::string> values;
};
struct OrtTensorRTProviderOptionsV2 {
  std::map<std::string, std::string> values;
};

namespace Ort {
namespace detail {

/// Providers that onnxruntime's builds may have. A session of this library runs on the CPU whatever
/// they are, and says so once.
inline bool is_provider(std::string_view name) {
  constexpr std::array<std::string_view, 17> kNames = {
      "CPU",  "CUDA", "Tensorrt", "NvTensorRtRtx", "ROCM",   "MIGraphX", "OpenVINO", "DML", "QNN",
      "SNPE", "Dnnl", "XNNPACK",  "CoreML",        "WebGPU", "AZURE",    "VitisAI",  "CANN"};
  constexpr std::string_view kEnding = "ExecutionProvider";
  if (name.size() > kEnding.size() && name.substr(name.size() - kEnding.size()) == kEnding)
    name.remove_suffix(kEnding.size());
  for (std::string_view known : kNames)
    if (name == known) return true;
  return name == "Qnn" || name == "Xnnpack" || name == "TensorRT" || name == "VSINPU" ||
         name == "NNAPI" || name == "Nnapi" || name == "WEBNN" || name == "JS";
}

/// A number of bytes as text. Throws for another text.
inline int64_t byte_limit(const std::string& text) {
  const bool digits = !text.empty() && text.size() <= 18 &&
                      text.find_first_not_of("0123456789") == std::string::npos;
  if (!digits)
    refuse("[SessionOptions] session.memory_limit must be a number of bytes, but found '" + text +
           "'");
  return std::stoll(text);
}

template <class Holder>
class ConstSessionOptionsImpl : public Holder {
 public:
  using Holder::Holder;

  bool HasConfigEntry(const char* key) const { return options().config.count(key) != 0; }
  /// Throws if there is no such entry.
  std::string GetConfigEntry(const char* key) const {
    const auto found = options().config.find(key);
    if (found == options().config.end())
      refuse(std::string("[SessionOptions] there is no entry '") + key + "'", ORT_FAIL);
    return found->second;
  }
  std::string GetConfigEntryOrDefault(const char* key, const std::string& other) const {
    return HasConfigEntry(key) ? GetConfigEntry(key) : other;
  }

 protected:
  auto& options() const { return checked(this->p_, "SessionOptions"); }
};

template <class Holder>
class SessionOptionsImpl : public ConstSessionOptionsImpl<Holder> {
 public:
  using ConstSessionOptionsImpl<Holder>::ConstSessionOptionsImpl;
  using Self = SessionOptionsImpl;

  /// Threads of the session; 0: one for each core.
  Self& SetIntraOpNumThreads(int threads) {
    return set([&](OrtSessionOptions& o) {
      o.options.set_threads(threads);
      o.names_threads = true;
    });
  }
  /// Fixes the size that the model names `name`.
  Self& AddFreeDimensionOverrideByName(const char* name, int64_t value) {
    return set([&](OrtSessionOptions& o) { o.options.set_fixed_size(name, value); });
  }
  Self& SetGraphOptimizationLevel(GraphOptimizationLevel level) {
    return set([&](OrtSessionOptions& o) {
      o.options.set_optimization_level(
          static_cast<ortmodule::inference::OptimizationLevel>(static_cast<int>(level)));
    });
  }
  /// Traces the steps of all runs; EndProfilingAllocated() writes the file.
  Self& EnableProfiling(const ORTCHAR_T* prefix) {
    return set([&](OrtSessionOptions& o) {
      o.profile_prefix = prefix;
      o.options.set_profiling(true);
    });
  }
  Self& DisableProfiling() {
    return set([](OrtSessionOptions& o) { o.options.set_profiling(false); });
  }
  /// Kept as text, to be read again. "session.memory_limit" (bytes) limits the memory of the
  /// session.
  Self& AddConfigEntry(const char* key, const char* value) {
    return set([&](OrtSessionOptions& o) {
      if (std::string_view(key) == "session.memory_limit")
        o.options.set_memory_limit(byte_limit(value));
      o.config[key] = value;
    });
  }
  /// Where the optimized model is written as an ONNX file.
  Self& SetOptimizedModelFilePath(const ORTCHAR_T* path) {
    return set([&](OrtSessionOptions& o) { o.options.set_optimized_model_path(path); });
  }
  /// A tensor in place of the model's initializer of that name; its memory is shared.
  Self& AddInitializer(const char* name, const OrtValue* value) {
    return set([&](OrtSessionOptions& o) {
      o.options.add_initializer(name, checked(value, "AddInitializer").value);
    });
  }
  /// The same for several of them; only the content of the values is kept.
  template <class Values>
  Self& AddExternalInitializers(const std::vector<std::string>& names, const Values& values) {
    if (names.size() != values.size())
      refuse("[SessionOptions] there must be a value for each name, but found " +
             std::to_string(names.size()) + " and " + std::to_string(values.size()));
    for (size_t i = 0; i < names.size(); ++i) AddInitializer(names[i].c_str(), values[i]);
    return *this;
  }
  Self& SetLogId(const char* logid) {
    return set([&](OrtSessionOptions& o) { o.logid = logid; });
  }
  /// The least severity of messages that the session passes on.
  Self& SetLogSeverityLevel(int level) {
    return set([&](OrtSessionOptions& o) { o.log_severity_level = level; });
  }

  /// The block of a run stays while runs follow each other; disabled, it is returned after each.
  Self& EnableCpuMemArena() {
    return set([](OrtSessionOptions& o) { o.options.set_keep_block(true); });
  }
  Self& DisableCpuMemArena() {
    return set([](OrtSessionOptions& o) { o.options.set_keep_block(false); });
  }
  /// The temporaries of a run share one block; disabled, each has memory of its own.
  Self& EnableMemPattern() {
    return set([](OrtSessionOptions& o) { o.options.set_one_block(true); });
  }
  Self& DisableMemPattern() {
    return set([](OrtSessionOptions& o) { o.options.set_one_block(false); });
  }
  /// Accepted: nodes run one after the other, each on all threads of the session, which are its
  /// own and sleep while they wait.
  Self& SetInterOpNumThreads(int) {
    return set([](OrtSessionOptions&) {});
  }
  Self& SetExecutionMode(ExecutionMode) {
    return set([](OrtSessionOptions&) {});
  }
  Self& DisablePerSessionThreads() {
    return set([](OrtSessionOptions& o) { o.names_threads = false; });
  }
  /// Accepted: results never depend on the number of threads.
  Self& SetDeterministicCompute(bool) {
    return set([](OrtSessionOptions&) {});
  }

  /// Each asks for a provider. A session that cannot have it runs on the CPU, with one warning.
  Self& AppendExecutionProvider(const std::string& name,
                                const std::unordered_map<std::string, std::string>& = {}) {
    if (!is_provider(name))
      refuse("[providers] a provider must be one of onnxruntime's, but found '" + name + "'");
    return ask(name);
  }
  Self& AppendExecutionProvider_CUDA(const OrtCUDAProviderOptions&) { return ask("CUDA"); }
  Self& AppendExecutionProvider_CUDA_V2(const OrtCUDAProviderOptionsV2&) { return ask("CUDA"); }
  Self& AppendExecutionProvider_ROCM(const OrtROCMProviderOptions&) { return ask("ROCM"); }
  Self& AppendExecutionProvider_TensorRT(const OrtTensorRTProviderOptions&) {
    return ask("Tensorrt");
  }
  Self& AppendExecutionProvider_TensorRT_V2(const OrtTensorRTProviderOptionsV2&) {
    return ask("Tensorrt");
  }
  Self& AppendExecutionProvider_MIGraphX(const OrtMIGraphXProviderOptions&) {
    return ask("MIGraphX");
  }
  Self& AppendExecutionProvider_OpenVINO(const OrtOpenVINOProviderOptions&) {
    return ask("OpenVINO");
  }
  Self& AppendExecutionProvider_VitisAI(const std::unordered_map<std::string, std::string>& = {}) {
    return ask("VitisAI");
  }
  Self& AppendExecutionProvider_OpenVINO_V2(
      const std::unordered_map<std::string, std::string>& = {}) {
    return ask("OpenVINO");
  }

 private:
  template <class Change>
  Self& set(const Change& change) {
    translated([&] { change(this->options()); });
    return *this;
  }
  Self& ask(std::string name) {
    return set([&](OrtSessionOptions& o) {
      constexpr std::string_view kEnding = "ExecutionProvider";
      if (name.size() <= kEnding.size() || name.substr(name.size() - kEnding.size()) != kEnding)
        name += kEnding;
      if (name != "CPUExecutionProvider") o.providers.push_back(name);
    });
  }
};

}  // namespace detail

using ConstSessionOptions =
    detail::ConstSessionOptionsImpl<detail::Unowned<const OrtSessionOptions>>;
using UnownedSessionOptions = detail::SessionOptionsImpl<detail::Unowned<OrtSessionOptions>>;

/// Options of a session; made of nullptr, the defaults.
class SessionOptions : public detail::SessionOptionsImpl<detail::Base<OrtSessionOptions>> {
 public:
  SessionOptions() { p_ = new OrtSessionOptions; }
  explicit SessionOptions(std::nullptr_t) {}
  explicit SessionOptions(OrtSessionOptions* options) { p_ = options; }
  SessionOptions Clone() const { return SessionOptions(new OrtSessionOptions(options())); }
  ConstSessionOptions GetConst() const { return ConstSessionOptions(p_); }
  UnownedSessionOptions GetUnowned() const { return UnownedSessionOptions(p_); }
};

/// Options of one run; made of nullptr, the defaults.
class RunOptions : public detail::Base<OrtRunOptions> {
 public:
  RunOptions() { p_ = new OrtRunOptions; }
  explicit RunOptions(std::nullptr_t) {}

  RunOptions& SetRunLogVerbosityLevel(int level) {
    options().log_verbosity_level = level;
    return *this;
  }
  int GetRunLogVerbosityLevel() const { return options().log_verbosity_level; }
  RunOptions& SetRunLogSeverityLevel(int level) {
    options().log_severity_level = level;
    return *this;
  }
  int GetRunLogSeverityLevel() const { return options().log_severity_level; }
  RunOptions& SetRunTag(const char* tag) {
    options().tag = tag;
    return *this;
  }
  /// Ends runs that have these options, before their next step; from any thread.
  RunOptions& SetTerminate() {
    options().options.terminate();
    return *this;
  }
  RunOptions& UnsetTerminate() {
    options().options.clear_terminate();
    return *this;
  }
  const char* GetRunTag() const { return options().tag.c_str(); }
  /// Kept as text, to be read again.
  RunOptions& AddConfigEntry(const char* key, const char* value) {
    options().config[key] = value;
    return *this;
  }
  const char* GetConfigEntry(const char* key) const {
    const auto found = options().config.find(key);
    return found == options().config.end() ? nullptr : found->second.c_str();
  }

 private:
  OrtRunOptions& options() const { return detail::checked(p_, "RunOptions"); }
};

}  // namespace Ort
