#include "bindings/host_recorder.h"

#include <cstdlib>
#include <cstring>
#include <deque>
#include <utility>

#include "base/error.h"

namespace ortmodule::bindings {
namespace {

thread_local HostRecorder* recording = nullptr;

constexpr size_t kAlignment = 64;

}  // namespace

struct HostPool::Block {
  void* data = nullptr;
  int64_t bytes = 0;
  bool taken = false;
  std::shared_ptr<HostPool> pool;  // while the block is in use
};

HostPool::~HostPool() {
  for (const auto& block : blocks_) std::free(block->data);
}

Buffer HostPool::allocate(int64_t bytes) {
  Block* best = nullptr;
  for (const auto& block : blocks_)
    if (!block->taken && block->bytes >= bytes && (!best || block->bytes < best->bytes))
      best = block.get();
  if (!best) {
    const size_t rounded = (static_cast<size_t>(bytes) + kAlignment - 1) / kAlignment * kAlignment;
    best = blocks_.emplace_back(std::make_unique<Block>()).get();
    best->data = std::aligned_alloc(kAlignment, std::max(rounded, kAlignment));
    best->bytes = bytes;
    ORTM_CHECK(best->data, "[ORTMODULE_CUDA_EMULATION] ", bytes, " bytes must be free");
  }
  best->taken = true;
  best->pool = shared_from_this();
  return Buffer(best->data, bytes, best, give_back);
}

void HostPool::give_back(void* block) {
  auto& given = *static_cast<Block*>(block);
  given.taken = false;
  const std::shared_ptr<HostPool> last = std::move(given.pool);
}

/// The calls of one recording, in order.
class HostRecorder::Calls : public RecordedSteps {
 public:
  void add(void (*run)(const KernelArgs&), const KernelArgs& args, HostPool& pool) {
    Call& call = calls_.emplace_back(
        Call{run, &args.facts, args.workspace, args.prepared, args.context, {}, {}, {}});
    call.context.log = nullptr;
    call.context.meter = nullptr;
    call.in.assign(args.in.begin(), args.in.end());
    call.out.assign(args.out.begin(), args.out.end());
    for (Buffer& result : args.results) {
      if (result) {
        Buffer kept = pool.allocate(result.bytes());
        std::memcpy(kept.data(), result.data(), static_cast<size_t>(result.bytes()));
        result = std::move(kept);
      }
      call.results.push_back(result.data());
    }
  }

  void draw_into(uint64_t* key, std::function<uint64_t()> draw) {
    *key = draw();
    draws_.emplace_back(key, std::move(draw));
  }

  void replay() override {
    for (const auto& [key, draw] : draws_) *key = draw();
    for (Call& call : calls_) {
      std::vector<Buffer> results(call.results.size());
      call.run(
          {*call.facts, call.in, call.out, call.workspace, call.prepared, call.context, results});
      for (size_t i = 0; i < results.size(); ++i)
        if (results[i])
          std::memcpy(call.results[i], results[i].data(), static_cast<size_t>(results[i].bytes()));
    }
  }

 private:
  struct Call {
    void (*run)(const KernelArgs&);
    const StepFacts* facts;
    void* workspace;
    const void* prepared;
    KernelContext context;
    std::vector<TensorView> in, out;
    std::vector<void*> results;
  };
  std::deque<Call> calls_;
  std::vector<std::pair<uint64_t*, std::function<uint64_t()>>> draws_;
};

HostRecorder::HostRecorder() : pool_(std::make_shared<HostPool>()) {}
HostRecorder::~HostRecorder() = default;

HostRecorder* HostRecorder::current() { return recording; }

std::unique_ptr<RecordedSteps> HostRecorder::record(const std::function<void()>& launch) {
  struct Scope {
    explicit Scope(HostRecorder* recorder) { recording = recorder; }
    ~Scope() { recording = nullptr; }
  };
  calls_ = std::make_unique<Calls>();
  {
    const Scope scope(this);
    launch();
  }
  return std::move(calls_);
}

void HostRecorder::draw_into(uint64_t* key, std::function<uint64_t()> draw) {
  calls_->draw_into(key, std::move(draw));
}

void HostRecorder::ran(void (*run)(const KernelArgs&), const KernelArgs& args) {
  calls_->add(run, args, *pool_);
}

}  // namespace ortmodule::bindings
