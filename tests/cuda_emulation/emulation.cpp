#include "emulation.h"

#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "fiber.h"
#include "kernels/cuda_emulation.h"

namespace ortmodule::cuda::emulation {
namespace {

constexpr size_t kMaxThreads = 1024;
constexpr size_t kMaxSharedBytes = 48 * 1024;

struct Thread {
  Dim3 index;
  int warp = 0, lane = 0;
  Fiber* fiber = nullptr;
  bool done = false;
  bool at_barrier = false;
};

// One exchange among lanes of a warp at a time. What they gave stays readable until all of them
// have come to the next one, so two buffers are enough.
struct Warp {
  const char* what = nullptr;  // the exchange in progress
  uint32_t arrived = 0;        // lanes that wait in it
  uint32_t lanes = 0;          // lanes that exist
  uint32_t generation = 0;     // exchanges completed
  int now = 0;                 // buffer being filled
  std::array<uint64_t, kWarpSize> given[2] = {};
};

std::string show(Dim3 d) { return str("(", d.x, ", ", d.y, ", ", d.z, ")"); }

size_t count_of(Dim3 d) { return size_t{d.x} * d.y * d.z; }

class Block {
 public:
  void launch(const char* kernel, Dim3 grid, Dim3 block, size_t shared_bytes,
              const std::function<void()>& body) {
    kernel_ = kernel;
    check_launch(grid, block, shared_bytes);
    at_.grid_dim = grid;
    at_.block_dim = block;
    body_ = &body;
    threads_.assign(count_of(block), {});
    for (unsigned z = 0; z < grid.z; ++z)
      for (unsigned y = 0; y < grid.y; ++y)
        for (unsigned x = 0; x < grid.x; ++x) run_block({x, y, z}, shared_bytes);
  }

  const Position& position() const { return at_; }
  int lane() const { return threads_[current_].lane; }
  void* shared() const { return shared_.get(); }

  void block_barrier() {
    threads_[current_].at_barrier = true;
    ++waiting_at_barrier_;
    progress_ = true;
    pause();
  }

  const std::array<uint64_t, kWarpSize>& exchange(const char* what, uint32_t mask, uint64_t given) {
    const Thread& thread = threads_[current_];
    Warp& warp = warps_[static_cast<size_t>(thread.warp)];
    require(mask == warp.lanes, what, " must name the lanes that the warp has (of a block of ",
            threads_.size(), " threads), but found mask ", mask);
    if (warp.arrived == 0) warp.what = what;
    require(std::strcmp(warp.what, what) == 0, "lanes of warp ", thread.warp,
            " must meet in one function, but found ", what, " and ", warp.what);
    const int buffer = warp.now;
    const uint32_t generation = warp.generation;
    warp.given[buffer][static_cast<size_t>(thread.lane)] = given;
    warp.arrived |= 1u << thread.lane;
    progress_ = true;
    if (warp.arrived == warp.lanes) {
      warp.arrived = 0;
      warp.now ^= 1;
      ++warp.generation;
    }
    while (warp.generation == generation) pause();
    return warp.given[buffer];
  }

  template <class... Args>
  void require(bool condition, const Args&... message) const {
    if (condition) return;
    throw Error(str("[", kernel_, "] ", message..., " (block ", show(at_.block), ", thread ",
                    show(at_.thread), ")"));
  }

 private:
  void check_launch(Dim3 grid, Dim3 block, size_t shared_bytes) const {
    const bool fits = count_of(block) >= 1 && count_of(block) <= kMaxThreads && block.z <= 64 &&
                      grid.x >= 1 && grid.x <= 0x7fffffffu && grid.y >= 1 && grid.y <= 65535 &&
                      grid.z >= 1 && grid.z <= 65535 && shared_bytes <= kMaxSharedBytes;
    if (!fits)
      throw Error(str("[", kernel_, "] a launch must keep to the limits of a GPU, but found grid ",
                      show(grid), ", block ", show(block), " and ", shared_bytes,
                      " bytes of shared memory"));
  }

  void begin_block(Dim3 block, size_t shared_bytes) {
    at_.block = block;
    shared_.reset(new (std::align_val_t{64}) std::byte[shared_bytes]);
    std::memset(shared_.get(), 0xff, shared_bytes);  // NaN as any float type
    warps_.assign((threads_.size() + kWarpSize - 1) / kWarpSize, {});
    waiting_at_barrier_ = 0;
    for (size_t i = 0; i < threads_.size(); ++i) {
      const unsigned linear = static_cast<unsigned>(i);
      const Dim3 d = at_.block_dim;
      threads_[i] = {};
      threads_[i].index = {linear % d.x, linear / d.x % d.y, linear / (d.x * d.y)};
      threads_[i].warp = static_cast<int>(i) / kWarpSize;
      threads_[i].lane = static_cast<int>(i) % kWarpSize;
      warps_[i / kWarpSize].lanes |= 1u << threads_[i].lane;
    }
  }

  void run_block(Dim3 block, size_t shared_bytes) {
    begin_block(block, shared_bytes);
    size_t done = 0;
    try {
      while (done < threads_.size()) {
        progress_ = false;
        for (size_t i = 0; i < threads_.size(); ++i)
          if (!threads_[i].done && !threads_[i].at_barrier && step(i)) ++done;
        if (waiting_at_barrier_ == threads_.size()) release_barrier();
        if (!progress_) report_deadlock(done);
      }
    } catch (...) {
      abandon();
      throw;
    }
  }

  // Runs a thread until it ends (true) or waits.
  bool step(size_t i) {
    Thread& thread = threads_[i];
    current_ = i;
    at_.thread = thread.index;
    if (!thread.fiber) {
      thread.fiber = take_fiber();
      progress_ = true;
      thread.fiber->start(*body_);
    } else {
      thread.fiber->resume();
    }
    if (!thread.fiber->finished()) return false;
    progress_ = true;
    thread.done = true;
    Fiber* fiber = std::exchange(thread.fiber, nullptr);
    free_fibers_.push_back(fiber);
    fiber->rethrow();
    return true;
  }

  void release_barrier() {
    for (Thread& thread : threads_) thread.at_barrier = false;
    waiting_at_barrier_ = 0;
    progress_ = true;
  }

  void pause() { threads_[current_].fiber->pause(); }

  [[noreturn]] void report_deadlock(size_t done) const {
    std::string where;
    for (size_t w = 0; w < warps_.size() && where.empty(); ++w)
      if (warps_[w].arrived)
        where = str("; warp ", w, " waits in ", warps_[w].what, " for lanes that do not come");
    throw Error(str("[", kernel_, "] every thread of a block must reach the same barrier, but of ",
                    threads_.size(), " threads ", done, " have ended and ", waiting_at_barrier_,
                    " wait at __syncthreads", where, " (block ", show(at_.block), ")"));
  }

  // After an error the paused fibers are never resumed: their stacks go, without unwinding. Kernels
  // own nothing that would need it.
  void abandon() {
    for (Thread& thread : threads_)
      if (Fiber* fiber = std::exchange(thread.fiber, nullptr))
        std::erase_if(fibers_, [&](const auto& owned) { return owned.get() == fiber; });
  }

  Fiber* take_fiber() {
    if (free_fibers_.empty()) {
      fibers_.push_back(std::make_unique<Fiber>());
      return fibers_.back().get();
    }
    Fiber* fiber = free_fibers_.back();
    free_fibers_.pop_back();
    return fiber;
  }

  struct AlignedDelete {
    void operator()(std::byte* memory) const { ::operator delete[](memory, std::align_val_t{64}); }
  };

  const char* kernel_ = "";
  const std::function<void()>* body_ = nullptr;
  Position at_;
  std::vector<Thread> threads_;
  std::vector<Warp> warps_;
  std::unique_ptr<std::byte[], AlignedDelete> shared_;
  size_t current_ = 0;
  size_t waiting_at_barrier_ = 0;
  bool progress_ = false;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Fiber*> free_fibers_;
};

Block& block() {
  static Block the_block;
  return the_block;
}

const LinkedEmulation linked;

}  // namespace

const Position& position() { return block().position(); }
int lane() { return block().lane(); }
void* dynamic_shared() { return block().shared(); }
void block_barrier() { block().block_barrier(); }

const std::array<uint64_t, kWarpSize>& warp_exchange(const char* what, uint32_t mask,
                                                     uint64_t given) {
  return block().exchange(what, mask, given);
}

void require_lane(const char* what, uint32_t mask, int lane) {
  block().require(lane >= 0 && lane < kWarpSize && (mask >> lane & 1u) != 0, what,
                  " must read from a lane that the warp has, but found lane ", lane);
}

void launch(const char* kernel, Dim3 grid, Dim3 block_dim, size_t shared_bytes,
            const std::function<void()>& thread) {
  static std::mutex one_at_a_time;
  const std::scoped_lock lock(one_at_a_time);
  block().launch(kernel, grid, block_dim, shared_bytes, thread);
}

}  // namespace ortmodule::cuda::emulation
