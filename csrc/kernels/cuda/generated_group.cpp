#include "kernels/cuda/generated_group.h"

#include <optional>

namespace ortmodule::cuda {
namespace {

/// A group takes about ten kilobytes.
constexpr int64_t kMostCacheBytes = int64_t{64} << 20;

std::atomic<GeneratedCode*> process_code{nullptr};

}  // namespace

// --- one group -----------------------------------------------------------------------------------
const LoadedCode* GeneratedGroup::code(const KernelContext& context) {
  if (context.generated_code == 0 || context.device_index >= kMostDevices) return nullptr;
  Slot& slot = slots_[context.device_index];
  const uint64_t number = slot.number;
  if (number == 0) {
    if (!slot.requested.exchange(true)) owner_.request(shared_from_this(), context.device_index);
    return nullptr;
  }
  return number <= context.generated_code ? slot.loaded.get() : nullptr;
}

void GeneratedGroup::note_launch() const { ++owner_.launches_; }

// --- all groups ----------------------------------------------------------------------------------
GeneratedCode::GeneratedCode(std::unique_ptr<CodeMaker> maker, const std::string& folder)
    : maker_(std::move(maker)) {
  if (!folder.empty()) cache_ = std::make_unique<CodeCache>(folder, kMostCacheBytes);
  thread_ = std::thread([this] { compile_all(); });
}

GeneratedCode::~GeneratedCode() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

std::shared_ptr<GeneratedGroup> GeneratedCode::group(const PointwiseProgram& program) {
  if (pointwise_source_unsupported(program)) return nullptr;
  PointwiseSource source = pointwise_source(program, "pointwise_group");
  const std::lock_guard lock(mutex_);
  std::shared_ptr<GeneratedGroup>& group = groups_[source.text];
  if (!group) group = std::make_shared<GeneratedGroup>(*this, std::move(source));
  return group;
}

uint64_t GeneratedCode::newest(const KernelContext& context) {
  if (has_compiled_ && maker_->may_load(context)) load_compiled(context.device_index);
  return newest_;
}

void GeneratedCode::finish() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return waiting_.empty() && !busy_; });
}

StepCompilerCounts GeneratedCode::counts() {
  const std::lock_guard lock(mutex_);
  StepCompilerCounts counts = counts_;
  counts.launches = launches_;
  return counts;
}

// --- compiling, in the background ----------------------------------------------------------------
void GeneratedCode::request(std::shared_ptr<GeneratedGroup> group, int device) {
  {
    const std::lock_guard lock(mutex_);
    waiting_.push_back({std::move(group), device, {}});
  }
  changed_.notify_all();
}

void GeneratedCode::compile_all() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return ending_ || !waiting_.empty(); });
    if (ending_) return;
    Request request = std::move(waiting_.front());
    waiting_.pop_front();
    busy_ = true;
    lock.unlock();
    const bool compiled = compile(request);
    lock.lock();
    if (compiled) {
      compiled_.push_back(std::move(request));
      has_compiled_ = true;
    }
    busy_ = false;
    changed_.notify_all();
  }
}

// A group that does not compile stays interpreted.
bool GeneratedCode::compile(Request& request) {
  const PointwiseSource& source = request.group->source();
  try {
    const std::string key = maker_->environment(request.device) + source.text;
    std::optional<std::string> kept;
    if (cache_) kept = cache_->find(key);
    request.code = kept ? std::move(*kept) : maker_->compile(source, request.device);
    if (cache_ && !kept) cache_->keep(key, request.code);
    const std::lock_guard lock(mutex_);
    ++(kept ? counts_.from_disk : counts_.compiled);
    return true;
  } catch (const std::exception& error) {
    note_failure(error.what());
    return false;
  }
}

// --- loading, between runs -----------------------------------------------------------------------
void GeneratedCode::load_compiled(int device) {
  const std::lock_guard loading(loading_);
  std::vector<Request> ready;
  {
    const std::lock_guard lock(mutex_);
    for (Request& request : compiled_)
      if (request.device == device) ready.push_back(std::move(request));
    std::erase_if(compiled_, [](const Request& request) { return !request.group; });
    has_compiled_ = !compiled_.empty();
  }
  for (const Request& request : ready) load(request);
}

void GeneratedCode::load(const Request& request) {
  GeneratedGroup::Slot& slot = request.group->slots_[request.device];
  try {
    slot.loaded = maker_->load(request.code, request.group->source(), request.device);
  } catch (const std::exception& error) {
    return note_failure(error.what());
  }
  // A run that began before has a lower number and does not use it; one that begins now gets this
  // number only when the code is there for all of it.
  const uint64_t number = newest_ + 1;
  slot.number = number;
  newest_ = number;
  const std::lock_guard lock(mutex_);
  ++counts_.loaded;
}

void GeneratedCode::note_failure(const std::string& failure) {
  const std::lock_guard lock(mutex_);
  ++counts_.failed;
  if (counts_.failure.empty()) counts_.failure = failure;
}

// --- the process ---------------------------------------------------------------------------------
void enable_generated_code(std::unique_ptr<CodeMaker> maker, const std::string& folder) {
  // Never destroyed: a child after fork() has no thread that could be joined when it ends.
  static GeneratedCode& code = *new GeneratedCode(std::move(maker), folder);
  process_code = &code;
  set_step_compiler(&code);
}

GeneratedCode* generated_code() { return process_code; }

}  // namespace ortmodule::cuda
