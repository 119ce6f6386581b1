#include "runtime/host_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>

#include "base/error.h"

namespace ortmodule {
namespace {

constexpr int64_t kHugePageBytes = 2 << 20;

int64_t page_bytes() {
  static const int64_t bytes = sysconf(_SC_PAGESIZE);
  return bytes;
}

int64_t in_pages(int64_t bytes) {
  return (std::max<int64_t>(bytes, 1) + page_bytes() - 1) / page_bytes() * page_bytes();
}

void* map(int64_t bytes) {
  void* data = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ORTM_CHECK(data != MAP_FAILED, "[memory] the system must have ", bytes,
             " bytes, but found: ", std::strerror(errno));
#ifdef __linux__
  // Large blocks are written as a whole: fewer page faults. Only advice, so errors do not matter.
  if (bytes >= kHugePageBytes) madvise(data, static_cast<size_t>(bytes), MADV_HUGEPAGE);
#endif
  return data;
}

}  // namespace

// Shared by the allocator and its blocks, which may outlive it.
class HostMemory::Blocks : public std::enable_shared_from_this<Blocks> {
 public:
  explicit Blocks(int64_t kept_limit) : kept_limit_(kept_limit) {}
  ~Blocks() { unmap_kept(); }

  Buffer allocate(int64_t bytes) {
    const int64_t mapped = in_pages(bytes);
    auto block = std::make_unique<Block>(Block{shared_from_this(), nullptr, mapped, bytes});
    {
      const std::lock_guard lock(mutex_);
      auto known = kept_.find(mapped);
      if (known != kept_.end()) {
        block->data = known->second;
        kept_bytes_ -= mapped;
        kept_.erase(known);
      } else {
        unmap_kept();  // of other sizes: nobody may need them again
        block->data = map(mapped);
        mapped_bytes_ += mapped;
      }
      held_bytes_ += bytes;
      peak_bytes_ = std::max(peak_bytes_, held_bytes_);
    }
    void* data = block->data;
    return {data, bytes, block.release(), &free_block};
  }

  void keep(int64_t limit) {
    const std::lock_guard lock(mutex_);
    unmap_kept();
    kept_limit_ = limit;
  }

  int64_t held_bytes() const { return locked(held_bytes_); }
  int64_t peak_bytes() const { return locked(peak_bytes_); }
  int64_t mapped_bytes() const { return locked(mapped_bytes_); }
  void reset_peak() {
    const std::lock_guard lock(mutex_);
    peak_bytes_ = held_bytes_;
  }

 private:
  struct Block {
    std::shared_ptr<Blocks> owner;
    void* data;
    int64_t mapped;
    int64_t bytes;
  };

  static void free_block(void* context) {
    const std::unique_ptr<Block> block(static_cast<Block*>(context));
    block->owner->free(*block);
  }

  void free(const Block& block) {
    const std::lock_guard lock(mutex_);
    held_bytes_ -= block.bytes;
    if (kept_bytes_ + block.mapped <= kept_limit_) {
      kept_.emplace(block.mapped, block.data);
      kept_bytes_ += block.mapped;
    } else {
      unmap(block.data, block.mapped);
    }
  }

  void unmap(void* data, int64_t bytes) {
    munmap(data, static_cast<size_t>(bytes));
    mapped_bytes_ -= bytes;
  }

  void unmap_kept() {
    for (const auto& [bytes, data] : kept_) unmap(data, bytes);
    kept_.clear();
    kept_bytes_ = 0;
  }

  int64_t locked(const int64_t& number) const {
    const std::lock_guard lock(mutex_);
    return number;
  }

  mutable std::mutex mutex_;
  std::multimap<int64_t, void*> kept_;  // free blocks by size
  int64_t kept_limit_;
  int64_t kept_bytes_ = 0;
  int64_t held_bytes_ = 0;
  int64_t peak_bytes_ = 0;
  int64_t mapped_bytes_ = 0;
};

HostMemory::HostMemory(int64_t kept_bytes) : blocks_(std::make_shared<Blocks>(kept_bytes)) {}
HostMemory::~HostMemory() { blocks_->keep(0); }

Buffer HostMemory::allocate(int64_t bytes) { return blocks_->allocate(bytes); }
void HostMemory::keep(int64_t kept_bytes) { blocks_->keep(kept_bytes); }
int64_t HostMemory::held_bytes() const { return blocks_->held_bytes(); }
int64_t HostMemory::peak_bytes() const { return blocks_->peak_bytes(); }
void HostMemory::reset_peak() { blocks_->reset_peak(); }
int64_t HostMemory::mapped_bytes() const { return blocks_->mapped_bytes(); }

}  // namespace ortmodule
