#include "bindings/emulated_memory.h"

#include <sys/mman.h>

#include <map>
#include <mutex>
#include <new>

namespace ortmodule::bindings {
namespace {

struct Blocks {
  std::mutex mutex;
  std::map<void*, size_t> bytes;  // by block
  int scopes = 0;

  void protect(int how) {
    for (const auto& [data, size] : bytes) mprotect(data, size, how);
  }
  void add(void* data, size_t size) {
    const std::lock_guard lock(mutex);
    bytes.emplace(data, size);
    if (scopes == 0) mprotect(data, size, PROT_NONE);
  }
  void remove(void* data) {
    const std::lock_guard lock(mutex);
    const auto found = bytes.find(data);
    munmap(data, found->second);
    bytes.erase(found);
  }
};

// Never destroyed: buffers may go after static objects.
Blocks& blocks() {
  static Blocks& blocks = *new Blocks;
  return blocks;
}

}  // namespace

Buffer EmulatedMemory::allocate(int64_t bytes) {
  constexpr size_t kPageBytes = 4096;
  const size_t mapped = (static_cast<size_t>(bytes) + kPageBytes) / kPageBytes * kPageBytes;
  void* data = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) throw std::bad_alloc();
  blocks().add(data, mapped);
  return {data, bytes, data, [](void* held) { blocks().remove(held); }};
}

EmulatedMemoryScope::EmulatedMemoryScope() {
  const std::lock_guard lock(blocks().mutex);
  if (blocks().scopes++ == 0) blocks().protect(PROT_READ | PROT_WRITE);
}

EmulatedMemoryScope::~EmulatedMemoryScope() {
  const std::lock_guard lock(blocks().mutex);
  if (--blocks().scopes == 0) blocks().protect(PROT_NONE);
}

}  // namespace ortmodule::bindings
