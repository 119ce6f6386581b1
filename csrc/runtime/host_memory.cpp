#include "runtime/host_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <map>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/page_region.h"
#include "runtime/idle_clock.h"

namespace ortmodule {
namespace {

constexpr int64_t kHugePageBytes = 2 << 20;
constexpr int64_t kSmallBytes = 32 << 10;  // from the heap: a mapping takes microseconds
constexpr size_t kAlignmentBytes = 64;

int64_t page_bytes() {
  static const int64_t bytes = sysconf(_SC_PAGESIZE);
  return bytes;
}

int64_t in_pages(int64_t bytes) {
  return (std::max<int64_t>(bytes, 1) + page_bytes() - 1) / page_bytes() * page_bytes();
}

/// Null if the system has no memory; errno says why.
void* map(int64_t bytes, HostMemory::Pages pages) {
  void* data = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) return nullptr;
#ifdef __linux__
  // Large blocks are written as a whole: fewer page faults. Only advice, so errors do not matter.
  if (pages == HostMemory::Pages::Huge && bytes >= kHugePageBytes)
    madvise(data, static_cast<size_t>(bytes), MADV_HUGEPAGE);
#endif
  return data;
}

struct Mapping {
  void* data = nullptr;
  int64_t bytes = 0;
};

/// Makes it larger, somewhere else if need be; its pages stay. Unmaps it if the system cannot.
void grow(Mapping& mapping, int64_t bytes) {
  void* data = MAP_FAILED;
#ifdef __linux__
  data = mremap(mapping.data, static_cast<size_t>(mapping.bytes), static_cast<size_t>(bytes),
                MREMAP_MAYMOVE);
#endif
  if (data == MAP_FAILED) munmap(mapping.data, static_cast<size_t>(mapping.bytes));
  mapping = {data == MAP_FAILED ? nullptr : data, bytes};
}

void unmap(const std::vector<Mapping>& mappings) {
  for (const Mapping& mapping : mappings) munmap(mapping.data, static_cast<size_t>(mapping.bytes));
}

/// The most of a number in the last few ticks.
class RecentPeak {
 public:
  void note(int64_t number) { peaks_[0] = std::max(peaks_[0], number); }
  /// Begins a new tick with that number.
  void tick(int64_t number) {
    std::rotate(peaks_.rbegin(), peaks_.rbegin() + 1, peaks_.rend());
    peaks_[0] = number;
  }
  void forget(int64_t number) { peaks_.fill(number); }
  int64_t most() const { return *std::max_element(peaks_.begin(), peaks_.end()); }

 private:
  std::array<int64_t, 3> peaks_{};
};

}  // namespace

// Shared by the allocator and its blocks, which may outlive it.
class HostMemory::Blocks : public IdleKeeper, public std::enable_shared_from_this<Blocks> {
 public:
  Blocks(Keep keep, Pages pages) : pages_(pages), keeps_(keep == Keep::WhileUsed) {}
  ~Blocks() override {
    for (const auto& [bytes, data] : kept_) munmap(data, static_cast<size_t>(bytes));
  }

  Buffer allocate(int64_t bytes, bool any_larger) {
    return bytes < kSmallBytes ? allocate_small(bytes) : allocate_mapped(bytes, any_larger);
  }

  void return_kept() {
    std::vector<Mapping> gone;
    {
      const std::lock_guard lock(mutex_);
      recent_.forget(asked_bytes_);
      evict(0, gone);
    }
    unmap(gone);
  }

  void limit_kept(int64_t bytes) {
    const std::lock_guard lock(mutex_);
    limit_ = bytes;
  }

  void keep_nothing() {
    {
      const std::lock_guard lock(mutex_);
      keeps_ = false;
    }
    return_kept();
  }

  bool tick() override {
    std::vector<Mapping> gone;
    bool left = false;
    {
      const std::lock_guard lock(mutex_);
      recent_.tick(asked_bytes_);
      evict(may_keep(), gone);
      left = watched_ = !kept_.empty();
    }
    unmap(gone);
    return left;
  }

  int64_t held_bytes() const { return locked(held_bytes_); }
  int64_t peak_bytes() const { return locked(peak_bytes_); }
  int64_t kept_bytes() const { return locked(kept_bytes_); }
  int64_t mapped_bytes() const {
    const std::lock_guard lock(mutex_);
    return held_mapped_bytes_ + kept_bytes_;
  }
  void reset_peak() {
    const std::lock_guard lock(mutex_);
    peak_bytes_ = held_bytes_;
  }

 private:
  struct Block {
    std::shared_ptr<Blocks> owner;
    int64_t bytes = 0;
    Mapping mapping = {};
  };

  // Of a mapped block; its memory is the owner's.
  struct Forget {
    void operator()(Block* block) const {
      const std::shared_ptr<Blocks> owner = std::move(block->owner);
      block->~Block();
      owner->descriptions_.deallocate(block, sizeof(Block), alignof(Block));
    }
  };
  using Described = std::unique_ptr<Block, Forget>;
  Described described(int64_t bytes) {
    void* memory = descriptions_.allocate(sizeof(Block), alignof(Block));
    return Described(new (memory) Block{shared_from_this(), bytes});
  }

  // The block's description is in front of its data.
  Buffer allocate_small(int64_t bytes) {
    static_assert(sizeof(Block) <= kAlignmentBytes);
    const size_t data_bytes = static_cast<size_t>(std::max<int64_t>(bytes, 1));
    const size_t rounded = (data_bytes + kAlignmentBytes - 1) / kAlignmentBytes * kAlignmentBytes;
    void* memory = std::aligned_alloc(kAlignmentBytes, kAlignmentBytes + rounded);
    ORTM_CHECK(memory, "[memory] the system must have ", bytes, " bytes, but found none");
    auto* block = new (memory) Block{shared_from_this(), bytes};
    {
      const std::lock_guard lock(mutex_);
      note_held(bytes);
    }
    return {static_cast<char*>(memory) + kAlignmentBytes, bytes, block, &free_small};
  }

  static void free_small(void* context) {
    auto* block = static_cast<Block*>(context);
    {
      const std::lock_guard lock(block->owner->mutex_);
      block->owner->held_bytes_ -= block->bytes;
    }
    block->~Block();
    std::free(context);
  }

  Buffer allocate_mapped(int64_t bytes, bool any_larger) {
    const int64_t wanted = in_pages(bytes);
    Described block = described(bytes);
    std::vector<Mapping> gone;
    {
      const std::lock_guard lock(mutex_);
      note_held(bytes);
      asked_bytes_ += wanted;
      recent_.note(asked_bytes_);
      if (const auto known = find_kept(wanted, any_larger); known != kept_.end()) {
        block->mapping = {known->second, known->first};
        kept_bytes_ -= known->first;
        kept_.erase(known);
      }
      held_mapped_bytes_ += std::max(block->mapping.bytes, wanted);
      if (!block->mapping.data)
        evict(may_keep(), gone);
      else if (block->mapping.bytes < wanted)  // the others of this run grow next
        evict(limit_ - held_mapped_bytes_, gone);
    }
    // Returned before the new block is mapped, so that the two never add up.
    unmap(gone);
    if (block->mapping.data && block->mapping.bytes < wanted) grow(block->mapping, wanted);
    if (!block->mapping.data) block->mapping = {map(wanted, pages_), wanted};
    if (!block->mapping.data) {
      return_kept();
      block->mapping.data = map(wanted, pages_);
    }
    if (!block->mapping.data) {
      const std::string why = std::strerror(errno);
      forget(*block);
      throw Error(str("[memory] the system must have ", bytes, " bytes, but found: ", why));
    }
    void* data = block->mapping.data;
    return {data, bytes, block.release(), &free_mapped};
  }

  using Kept = std::multimap<int64_t, void*>;  // free blocks by size

  /// A kept block that serves `wanted` bytes: as it is, or grown where sizes grow from run to run.
  Kept::iterator find_kept(int64_t wanted, bool any_larger) {
    const auto larger = kept_.lower_bound(wanted);
    if (larger != kept_.end() && (any_larger || larger->first <= wanted + wanted / 8))
      return larger;
    if (larger == kept_.begin()) return kept_.end();
    const auto smaller = std::prev(larger);
    const int64_t least = any_larger ? wanted / 2 : wanted - wanted / 8;
    return smaller->first >= least ? smaller : kept_.end();
  }

  static void free_mapped(void* context) {
    const Described block(static_cast<Block*>(context));
    block->owner->free(*block);
  }

  void free(const Block& block) {
    bool kept = false, must_watch = false;
    {
      const std::lock_guard lock(mutex_);
      subtract(block);
      kept = keeps_ && kept_bytes_ + block.mapping.bytes <= may_keep();
      if (kept) {
        kept_.emplace(block.mapping.bytes, block.mapping.data);
        kept_bytes_ += block.mapping.bytes;
        must_watch = !watched_ || !idle_clock_runs();
        watched_ = true;
      }
    }
    if (!kept) unmap({block.mapping});
    if (must_watch && !tick_until_idle(weak_from_this())) return_kept();
  }

  void forget(const Block& block) {
    const std::lock_guard lock(mutex_);
    subtract(block);
  }

  void subtract(const Block& block) {
    held_bytes_ -= block.bytes;
    asked_bytes_ -= in_pages(block.bytes);
    held_mapped_bytes_ -= block.mapping.bytes;
  }

  void note_held(int64_t bytes) {
    held_bytes_ += bytes;
    peak_bytes_ = std::max(peak_bytes_, held_bytes_);
  }

  int64_t may_keep() const { return std::min(recent_.most(), limit_) - held_mapped_bytes_; }

  /// Moves the largest kept blocks to `gone`, until no more than `bytes` are kept: of those that a
  /// larger block replaces, the largest is of the least use.
  void evict(int64_t bytes, std::vector<Mapping>& gone) {
    while (!kept_.empty() && kept_bytes_ > bytes) {
      const auto largest = std::prev(kept_.end());
      gone.push_back({largest->second, largest->first});
      kept_bytes_ -= largest->first;
      kept_.erase(largest);
    }
  }

  int64_t locked(const int64_t& number) const {
    const std::lock_guard lock(mutex_);
    return number;
  }

  PageRegion descriptions_;  // of mapped blocks, of which those of weights stay
  mutable std::mutex mutex_;
  const Pages pages_;
  bool keeps_;
  bool watched_ = false;  // the clock calls tick()
  Kept kept_;
  int64_t limit_ = std::numeric_limits<int64_t>::max();
  int64_t kept_bytes_ = 0;
  int64_t held_bytes_ = 0;         // as asked for
  int64_t asked_bytes_ = 0;        // of mapped blocks, in whole pages
  int64_t held_mapped_bytes_ = 0;  // at least as many: a kept block may be larger than asked for
  int64_t peak_bytes_ = 0;
  RecentPeak recent_;  // of asked_bytes_
};

HostMemory::HostMemory(Keep keep, Pages pages) : blocks_(std::make_shared<Blocks>(keep, pages)) {}
HostMemory::~HostMemory() { blocks_->keep_nothing(); }

Buffer HostMemory::allocate(int64_t bytes) { return blocks_->allocate(bytes, false); }
Buffer HostMemory::allocate_block(int64_t bytes) { return blocks_->allocate(bytes, true); }

void HostMemory::discard(const void* part, size_t bytes) {
  const auto page = static_cast<uintptr_t>(page_bytes());
  const uintptr_t first = reinterpret_cast<uintptr_t>(part), last = first + bytes;
  const uintptr_t begin = (first + page - 1) / page * page, end = last / page * page;
  if (end > begin) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

void HostMemory::make_resident(const Buffer& block) {
#ifdef __linux__
  constexpr int kPopulateWrite = 23;  // MADV_POPULATE_WRITE, which older headers and systems lack
  if (block.bytes() < kSmallBytes) return;
  madvise(block.data(), static_cast<size_t>(in_pages(block.bytes())), kPopulateWrite);
#else
  (void)block;
#endif
}

void HostMemory::use_huge_pages(const Buffer& block) {
#ifdef __linux__
  constexpr int kCollapse = 25;  // MADV_COLLAPSE, which older headers lack
  if (block.bytes() < kHugePageBytes) return;
  const auto bytes = static_cast<size_t>(in_pages(block.bytes()));
  madvise(block.data(), bytes, MADV_HUGEPAGE);
  madvise(block.data(), bytes, kCollapse);
#else
  (void)block;
#endif
}

void HostMemory::return_kept() { blocks_->return_kept(); }
void HostMemory::limit_kept(int64_t bytes) { blocks_->limit_kept(bytes); }
int64_t HostMemory::held_bytes() const { return blocks_->held_bytes(); }
int64_t HostMemory::peak_bytes() const { return blocks_->peak_bytes(); }
void HostMemory::reset_peak() { blocks_->reset_peak(); }
int64_t HostMemory::kept_bytes() const { return blocks_->kept_bytes(); }
int64_t HostMemory::mapped_bytes() const { return blocks_->mapped_bytes(); }

}  // namespace ortmodule
