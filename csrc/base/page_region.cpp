#include "base/page_region.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <new>

namespace ortmodule {
namespace {

constexpr size_t kUnit = 16;  // of addresses and sizes, so that a free block has room for itself
constexpr size_t kChunkBytes = 256 << 10;

size_t rounded(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

size_t page_bytes() {
  static const auto bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

}  // namespace

PageRegion::~PageRegion() {
  while (chunks_) {
    Chunk* next = chunks_->next;
    munmap(chunks_, chunks_->bytes);
    chunks_ = next;
  }
}

size_t PageRegion::mapped_bytes() const {
  const std::lock_guard lock(mutex_);
  return mapped_bytes_;
}

void* PageRegion::do_allocate(size_t bytes, size_t alignment) {
  const size_t wanted = rounded(std::max<size_t>(bytes, 1), kUnit);
  const std::lock_guard lock(mutex_);
  if (void* block = take(wanted, std::max(alignment, kUnit))) return block;
  add_chunk(wanted + alignment);
  return take(wanted, std::max(alignment, kUnit));
}

// From the front of the first free block with room for it.
void* PageRegion::take(size_t bytes, size_t alignment) {
  for (Free** link = &free_; *link; link = &(*link)->next) {
    Free* const block = *link;
    const auto address = reinterpret_cast<uintptr_t>(block);
    const size_t gap = rounded(address, alignment) - address;
    if (block->bytes < gap + bytes) continue;
    const size_t behind = block->bytes - gap - bytes;
    std::byte* const taken = reinterpret_cast<std::byte*>(block) + gap;
    Free* next = block->next;
    if (behind > 0) next = new (taken + bytes) Free{next, behind};
    *link = gap > 0 ? new (block) Free{next, gap} : next;
    return taken;
  }
  return nullptr;
}

void PageRegion::add_chunk(size_t bytes) {
  const size_t mapped = std::max(kChunkBytes, rounded(sizeof(Chunk) + bytes, page_bytes()));
  void* const memory =
      mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
#ifdef __linux__
  madvise(memory, mapped, MADV_NOHUGEPAGE);  // only pages that are used are to be resident
#endif
  chunks_ = new (memory) Chunk{chunks_, mapped};
  mapped_bytes_ += mapped;
  insert(static_cast<std::byte*>(memory) + sizeof(Chunk), mapped - sizeof(Chunk));
}

void PageRegion::do_deallocate(void* block, size_t bytes, size_t /*alignment*/) {
  const size_t freed = rounded(std::max<size_t>(bytes, 1), kUnit);
  const std::lock_guard lock(mutex_);
  Free** const link = insert(static_cast<std::byte*>(block), freed);
  if (!unmap_if_free(link)) discard_pages(**link, block, freed);
}

// Where the block is linked, together with its free neighbours. Chunks begin with their
// description, so blocks of two of them are never neighbours.
PageRegion::Free** PageRegion::insert(std::byte* block, size_t bytes) {
  Free** before = nullptr;
  Free** link = &free_;
  for (; *link && reinterpret_cast<std::byte*>(*link) < block; link = &(*link)->next) before = link;
  Free* next = *link;
  if (next && reinterpret_cast<std::byte*>(next) == block + bytes) {
    bytes += next->bytes;
    next = next->next;
  }
  if (before && reinterpret_cast<std::byte*>(*before) + (*before)->bytes == block) {
    (*before)->bytes += bytes;
    (*before)->next = next;
    return before;
  }
  *link = new (block) Free{next, bytes};
  return link;
}

// Gives back the pages of `block` that are whole in the free block around it.
void PageRegion::discard_pages(const Free& around, const void* block, size_t bytes) {
  const auto first = reinterpret_cast<uintptr_t>(&around), at = reinterpret_cast<uintptr_t>(block);
  const uintptr_t begin = std::max(rounded(first + sizeof(Free), page_bytes()),
                                   at / page_bytes() * page_bytes()),
                  end = std::min((first + around.bytes) / page_bytes() * page_bytes(),
                                 rounded(at + bytes, page_bytes()));
  if (end > begin) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

// Unmaps the chunk of a free block if nothing else is in it. The last chunk stays, so that blocks
// that come and go one by one map nothing.
bool PageRegion::unmap_if_free(Free** link) {
  Free* const block = *link;
  auto* const chunk = reinterpret_cast<Chunk*>(reinterpret_cast<std::byte*>(block) - sizeof(Chunk));
  Chunk** at = &chunks_;
  while (*at && *at != chunk) at = &(*at)->next;
  const bool is_last = *at == chunks_ && !chunks_->next;
  if (!*at || is_last || chunk->bytes != sizeof(Chunk) + block->bytes) return false;
  *link = block->next;
  *at = chunk->next;
  mapped_bytes_ -= chunk->bytes;
  munmap(chunk, chunk->bytes);
  return true;
}

}  // namespace ortmodule
