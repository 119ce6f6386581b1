#include <utility>

#include "inference/api/session_impl.h"

namespace ortmodule::inference {
inline namespace v1 {
namespace {

[[noreturn]] void refuse(const std::string& message) {
  throw Error(ErrorCode::InvalidArgument, "[SessionOptions] " + message);
}

}  // namespace

OnnxSubstitutes SessionOptions::Impl::substitutes() const {
  OnnxSubstitutes given;
  for (const auto& [name, value] : initializers) {
    // The copy of the value keeps the memory.
    const SharedBytes elements(std::make_shared<const Value>(value),
                               {static_cast<const char*>(value.data()), value.byte_count()});
    given.initializers.emplace(name,
                               substitute(static_cast<int>(value.type()), value.sizes(), elements));
  }
  return given;
}

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

SessionOptions& SessionOptions::set_memory_limit(int64_t bytes) {
  if (bytes < 0) refuse(str("a memory limit must not be negative, but found ", bytes));
  impl_->options.memory.limit_bytes = bytes;
  return *this;
}

SessionOptions& SessionOptions::set_keep_block(bool keep) {
  impl_->options.memory.keep_block = keep;
  return *this;
}

SessionOptions& SessionOptions::set_one_block(bool one) {
  impl_->options.memory.one_block = one;
  return *this;
}

SessionOptions& SessionOptions::set_memory_reuse(bool reuse) {
  impl_->options.memory.reuse = reuse;
  return *this;
}

SessionOptions& SessionOptions::set_half_weights(bool half) {
  impl_->options.half_weights = half;
  return *this;
}

SessionOptions& SessionOptions::add_initializer(const std::string& name, Value tensor) {
  if (!tensor.is_tensor()) refuse("initializer '" + name + "' must be a tensor");
  impl_->initializers[name] = std::move(tensor);
  return *this;
}

SessionOptions& SessionOptions::set_optimized_model_path(const std::string& path) {
  impl_->optimized_model_path = path;
  return *this;
}

RunOptions::RunOptions() : impl_(std::make_shared<Impl>()) {}
void RunOptions::terminate() { impl_->terminate = true; }
void RunOptions::clear_terminate() { impl_->terminate = false; }

}  // namespace v1
}  // namespace ortmodule::inference
