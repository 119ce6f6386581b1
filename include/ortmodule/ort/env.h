// The environment: where messages of sessions go.
#pragma once

#include <ortmodule/ort/async_runs.h>
#include <ortmodule/ort/handle.h>
#include <ortmodule/ort/memory.h>

#include <cstdio>
#include <string>

/// Threads of an environment. Each session of this library has threads of its own, so these are
/// the defaults of sessions that name no number.
struct OrtThreadingOptions {
  int intra_op_threads = 0;
  int inter_op_threads = 0;
  int spin_control = 1;
  bool denormals_as_zero = false;
};

struct OrtEnv {
  OrtLoggingLevel level = ORT_LOGGING_LEVEL_WARNING;
  std::string name;
  OrtLoggingFunction function = nullptr;
  void* param = nullptr;
  int threads = 0;  // of its sessions; 0: one for each core

  OrtEnv(OrtLoggingLevel least, std::string id, OrtLoggingFunction to, void* with, int count)
      : level(least), name(std::move(id)), function(to), param(with), threads(count) {}
  OrtEnv(const OrtEnv&) = delete;
  OrtEnv& operator=(const OrtEnv&) = delete;
  /// Asynchronous runs have ended then.
  ~OrtEnv() { Ort::detail::AsyncRuns::wait(); }

  /// Passes a message on if the level asks for it; without a function of the program's, to the
  /// error stream.
  void log(OrtLoggingLevel severity, const std::string& message) const {
    if (severity < level) return;
    if (function)
      function(param, severity, "ortmodule", name.c_str(), "", message.c_str());
    else
      std::fprintf(stderr, "[%c:ortmodule:%s] %s\n", "VIWEF"[severity], name.c_str(),
                   message.c_str());
  }
};

namespace Ort {

/// Threads that sessions of an environment may use.
class ThreadingOptions : public detail::Base<OrtThreadingOptions> {
 public:
  ThreadingOptions() { p_ = new OrtThreadingOptions; }
  ThreadingOptions& SetGlobalIntraOpNumThreads(int threads) {
    p_->intra_op_threads = threads;
    return *this;
  }
  /// Accepted: nodes run one after the other.
  ThreadingOptions& SetGlobalInterOpNumThreads(int threads) {
    p_->inter_op_threads = threads;
    return *this;
  }
  /// Accepted: waiting threads sleep.
  ThreadingOptions& SetGlobalSpinControl(int allow) {
    p_->spin_control = allow;
    return *this;
  }
  /// Accepted: subnormal numbers are computed as such.
  ThreadingOptions& SetGlobalDenormalAsZero() {
    p_->denormals_as_zero = true;
    return *this;
  }
};

/// Where messages go, and the default number of threads. It must outlive the sessions made with it,
/// and its end waits for asynchronous runs.
class Env : public detail::Base<OrtEnv> {
 public:
  explicit Env(std::nullptr_t) {}
  explicit Env(OrtLoggingLevel level = ORT_LOGGING_LEVEL_WARNING, const char* logid = "") {
    p_ = new OrtEnv{level, logid, nullptr, nullptr, 0};
  }
  Env(OrtLoggingLevel level, const char* logid, OrtLoggingFunction function, void* param) {
    p_ = new OrtEnv{level, logid, function, param, 0};
  }
  Env(const OrtThreadingOptions* threads, OrtLoggingLevel level = ORT_LOGGING_LEVEL_WARNING,
      const char* logid = "") {
    p_ = new OrtEnv{level, logid, nullptr, nullptr,
                    detail::checked(threads, "Env").intra_op_threads};
  }
  Env(const OrtThreadingOptions* threads, OrtLoggingFunction function, void* param,
      OrtLoggingLevel level = ORT_LOGGING_LEVEL_WARNING, const char* logid = "") {
    p_ =
        new OrtEnv{level, logid, function, param, detail::checked(threads, "Env").intra_op_threads};
  }
  explicit Env(OrtEnv* env) { p_ = env; }

  /// This library sends nothing anywhere.
  Env& EnableTelemetryEvents() { return *this; }
  Env& DisableTelemetryEvents() { return *this; }
  /// Accepted: the sessions of this library have one allocator.
  Env& CreateAndRegisterAllocator(const OrtMemoryInfo* info, const OrtArenaCfg*) {
    const OrtMemoryInfo& place = detail::checked(info, "Env");
    if (!ConstMemoryInfo::on_host(place))
      detail::refuse("[Env] memory must be that of the host, but found '" + place.name + "'");
    return *this;
  }
  Env& UpdateEnvWithCustomLogLevel(OrtLoggingLevel level) {
    detail::checked(p_, "Env").level = level;
    return *this;
  }
};

}  // namespace Ort
