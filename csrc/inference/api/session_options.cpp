#include <utility>

#include "inference/api/session_impl.h"

namespace ortmodule::inference {
inline namespace v1 {
namespace {

[[noreturn]] void refuse(const std::string& message) {
  throw Error(ErrorCode::InvalidArgument, "[SessionOptions] " + message);
}

}  // namespace

SessionOptions::SessionOptions() : impl_(std::make_unique<Impl>()) {}
SessionOptions::SessionOptions(const SessionOptions& other)
    : impl_(std::make_unique<Impl>(*other.impl_)) {}
SessionOptions::~SessionOptions() = default;

SessionOptions& SessionOptions::operator=(const SessionOptions& other) {
  *impl_ = *other.impl_;
  return *this;
}

SessionOptions& SessionOptions::set_threads(int64_t threads) {
  if (threads < 0) refuse(str("threads must not be negative, but found ", threads));
  impl_->options.threads = threads;
  return *this;
}

SessionOptions& SessionOptions::set_fixed_size(const std::string& name, int64_t value) {
  if (value < 0) refuse(str("size '", name, "' must not be negative, but found ", value));
  impl_->options.fixed_sizes[name] = value;
  return *this;
}

SessionOptions& SessionOptions::set_seed(uint64_t seed) {
  impl_->options.seed = seed;
  return *this;
}

SessionOptions& SessionOptions::set_optimization_level(OptimizationLevel level) {
  impl_->options.optimization_level = static_cast<int64_t>(level);
  return *this;
}

SessionOptions& SessionOptions::set_profiling(bool on) {
  impl_->options.profiling = on;
  return *this;
}

RunOptions::RunOptions() : impl_(std::make_shared<Impl>()) {}
void RunOptions::terminate() { impl_->terminate = true; }
void RunOptions::clear_terminate() { impl_->terminate = false; }

}  // namespace v1
}  // namespace ortmodule::inference
