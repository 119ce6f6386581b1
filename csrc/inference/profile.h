// What the runs of a session did and when: a trace in Chrome's format, one event for each step.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "plan/plan.h"

namespace ortmodule {

/// Collects events until it is written. Thread-safe. The names of keys are onnxruntime's, so that
/// programs that read its profiles read these.
class Profile {
 public:
  using Clock = std::chrono::steady_clock;

  /// `provider`: onnxruntime's name of what runs the steps.
  explicit Profile(std::string provider) : provider_(std::move(provider)), start_(Clock::now()) {}

  /// Of the first event, on the clock that Python calls time.monotonic_ns().
  int64_t start_ns() const;
  /// A stage of the session: "model_run", "session_initialization".
  void add_stage(const std::string& name, Clock::time_point begin, Clock::time_point end);
  /// A step of a plan. `live_bytes`: what the run held while it ran.
  void add_step(const PlannedStep& step, Clock::time_point begin, Clock::time_point end,
                int64_t live_bytes);
  /// Writes the events as JSON: times in microseconds since start_ns().
  void write(const std::string& path) const;

 private:
  void add(const char* category, const std::string& name, Clock::time_point begin,
           Clock::time_point end, const std::string& args);

  const std::string provider_;
  const Clock::time_point start_;
  mutable std::mutex mutex_;  // guards the rest
  std::vector<std::string> events_;
  int64_t left_out_ = 0;
};

/// Adds a stage from its construction to its end; nothing without a profile.
class ProfiledStage {
 public:
  ProfiledStage(Profile* profile, const char* name)
      : profile_(profile), name_(name), begin_(Profile::Clock::now()) {}
  ~ProfiledStage() {
    if (profile_) profile_->add_stage(name_, begin_, Profile::Clock::now());
  }
  ProfiledStage(const ProfiledStage&) = delete;
  ProfiledStage& operator=(const ProfiledStage&) = delete;

 private:
  Profile* profile_;
  const char* name_;
  Profile::Clock::time_point begin_;
};

}  // namespace ortmodule
