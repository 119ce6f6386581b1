#include "runtime/idle_pages.h"

#ifdef __linux__
#include <link.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <memory>
#endif

namespace ortmodule {

#ifdef __linux__
namespace {

// Replaces an address by the begin of the segment of code that contains it.
int find_segment(dl_phdr_info* object, size_t, void* data) {
  auto* address = static_cast<uintptr_t*>(data);
  for (int i = 0; i < object->dlpi_phnum; ++i) {
    const ElfW(Phdr)& segment = object->dlpi_phdr[i];
    const uintptr_t begin = object->dlpi_addr + segment.p_vaddr;
    const uintptr_t end = begin + segment.p_memsz;
    const bool is_code = segment.p_type == PT_LOAD && (segment.p_flags & PF_X) != 0;
    if (!is_code || *address < begin || *address >= end) continue;
    *address = begin;
    return 1;
  }
  return 0;
}

// The end of the mapping that begins there, if all its pages are those of its file; else 0.
uintptr_t end_of_unwritten(uintptr_t begin) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> maps(std::fopen("/proc/self/smaps", "re"),
                                                             &std::fclose);
  if (!maps) return 0;
  uintptr_t end = 0;
  char line[512];
  while (std::fgets(line, sizeof line, maps.get())) {
    uintptr_t from = 0, to = 0;
    unsigned long inode = 0;
    if (std::sscanf(line, "%" SCNxPTR "-%" SCNxPTR " %*s %*x %*s %lu", &from, &to, &inode) == 3) {
      if (end != 0) return 0;
      if (from == begin && inode != 0) end = to;
    }
    unsigned long kib = 0;
    if (end != 0 && std::sscanf(line, "Anonymous: %lu", &kib) == 1) return kib == 0 ? end : 0;
  }
  return 0;
}

}  // namespace

void forget_code_pages() {
  auto code = reinterpret_cast<uintptr_t>(&forget_code_pages);
  if (dl_iterate_phdr(&find_segment, &code) == 0) return;
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t begin = code / page * page;
  const uintptr_t end = end_of_unwritten(begin);
  if (end > begin) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

void return_unused_stack() {
  constexpr uintptr_t kBelowFrame = 64 << 10;
  pthread_attr_t attributes;
  if (pthread_getattr_np(pthread_self(), &attributes) != 0) return;
  void* lowest = nullptr;
  size_t bytes = 0;
  pthread_attr_getstack(&attributes, &lowest, &bytes);
  pthread_attr_destroy(&attributes);
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(lowest) + page - 1) / page * page;
  const uintptr_t end = (reinterpret_cast<uintptr_t>(&page) - kBelowFrame) / page * page;
  if (end > begin) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

#else

void forget_code_pages() {}
void return_unused_stack() {}

#endif

}  // namespace ortmodule
