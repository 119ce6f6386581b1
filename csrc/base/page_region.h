// Memory for small blocks that stay for long, apart from the C library's heap.
#pragma once

#include <cstddef>
#include <memory_resource>
#include <mutex>

namespace ortmodule {

/// Mapped memory that is filled from front to back. What a session keeps of a model is made while
/// the heap is full of what loading needs for a moment: there, each small block would keep a page
/// resident. A freed block joins its free neighbours, and whole free pages go back to the system.
/// Each call walks the free blocks, of which there are few. Thread-safe.
class PageRegion : public std::pmr::memory_resource {
 public:
  PageRegion() = default;
  ~PageRegion() override;
  PageRegion(const PageRegion&) = delete;
  PageRegion& operator=(const PageRegion&) = delete;

  /// Bytes of address space; pages that were never written take no memory.
  size_t mapped_bytes() const;

 private:
  // A free block, in itself; ordered by address.
  struct Free {
    Free* next;
    size_t bytes;
  };
  // In front of the blocks of a mapping.
  struct Chunk {
    Chunk* next;
    size_t bytes;
  };

  void* do_allocate(size_t bytes, size_t alignment) override;
  void do_deallocate(void* block, size_t bytes, size_t alignment) override;
  bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override {
    return this == &other;
  }

  void* take(size_t bytes, size_t alignment);
  void add_chunk(size_t bytes);
  Free** insert(std::byte* block, size_t bytes);
  bool unmap_if_free(Free** link);
  static void discard_pages(const Free& around, const void* block, size_t bytes);

  mutable std::mutex mutex_;
  Free* free_ = nullptr;
  Chunk* chunks_ = nullptr;
  size_t mapped_bytes_ = 0;
};

}  // namespace ortmodule
