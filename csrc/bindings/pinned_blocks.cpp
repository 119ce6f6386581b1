#include "bindings/pinned_blocks.h"

#include <algorithm>
#include <list>
#include <mutex>
#include <utility>

namespace ortmodule::bindings {

struct PinnedBlocks::Block {
  Buffer memory;
  void* stream = nullptr;        // of the runs that have used it
  std::shared_ptr<State> owner;  // while it is in use
};

struct PinnedBlocks::State {
  std::mutex mutex;
  std::list<Block> used, kept;
  bool closed = false;  // the piece is gone: nothing is kept
};

PinnedBlocks::PinnedBlocks(const DeviceRuntime& runtime)
    : runtime_(runtime), state_(std::make_shared<State>()) {}

PinnedBlocks::~PinnedBlocks() {
  std::list<Block> kept;
  const std::lock_guard lock(state_->mutex);
  state_->closed = true;
  kept.swap(state_->kept);
}

Buffer PinnedBlocks::allocate(int64_t bytes) {
  KernelContext context;
  runtime_.fill(context);
  std::list<Block> block, too_small;
  {
    const std::lock_guard lock(state_->mutex);
    std::list<Block>& kept = state_->kept;
    const auto of_stream = [&](const Block& known) { return known.stream == context.stream; };
    const auto found = std::ranges::find_if(kept, [&](const Block& known) {
      return of_stream(known) && known.memory.bytes() >= bytes;
    });
    if (found != kept.end()) {
      block.splice(block.begin(), kept, found);
    } else {
      // A larger block is about to take the place of one of these.
      const auto smaller = std::ranges::find_if(kept, of_stream);
      if (smaller != kept.end()) too_small.splice(too_small.begin(), kept, smaller);
    }
  }
  too_small.clear();
  if (block.empty()) block.push_back({runtime_.allocate_pinned(bytes), context.stream, nullptr});
  Block& taken = block.front();
  taken.owner = state_;
  const std::lock_guard lock(state_->mutex);
  state_->used.splice(state_->used.begin(), block);
  return {taken.memory.data(), bytes, &taken, &give_back};
}

void PinnedBlocks::give_back(void* context) {
  const std::shared_ptr<State> state = std::exchange(static_cast<Block*>(context)->owner, nullptr);
  std::list<Block> freed;
  const std::lock_guard lock(state->mutex);
  const auto found =
      std::ranges::find_if(state->used, [&](const Block& block) { return &block == context; });
  std::list<Block>& to = state->closed ? freed : state->kept;
  to.splice(to.begin(), state->used, found);
}

int64_t PinnedBlocks::bytes() const {
  int64_t sum = 0;
  const std::lock_guard lock(state_->mutex);
  for (const std::list<Block>* blocks : {&state_->used, &state_->kept})
    for (const Block& block : *blocks) sum += block.memory.bytes();
  return sum;
}

}  // namespace ortmodule::bindings
