#include "runtime/idle_pages.h"

#ifdef __linux__
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>
#endif

namespace ortmodule {

#ifdef __linux__
namespace {

struct Pages {
  uintptr_t begin = 0, end = 0;  // whole pages
};

// Code behind the call that forgets it is read again: there is no list that is destroyed.
struct Search {
  uintptr_t address = 0;
  std::array<Pages, 4> found = {};  // empty ones behind
};

// Finds the segments of the library that contains an address that are read only, code among them.
int find_segments(dl_phdr_info* object, size_t, void* data) {
  auto* search = static_cast<Search*>(data);
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  std::array<Pages, 4> found = {};
  size_t count = 0;
  bool is_it = false;
  for (int i = 0; i < object->dlpi_phnum; ++i) {
    const ElfW(Phdr)& segment = object->dlpi_phdr[i];
    if (segment.p_type != PT_LOAD || (segment.p_flags & PF_W) != 0) continue;
    const uintptr_t begin = object->dlpi_addr + segment.p_vaddr, end = begin + segment.p_filesz;
    is_it = is_it || (search->address >= begin && search->address < end);
    if (const Pages pages{(begin + page - 1) / page * page, end / page * page};
        pages.end > pages.begin && count < found.size())
      found[count++] = pages;
  }
  if (!is_it) return 0;
  search->found = found;
  return 1;
}

// Whether all resident pages are those of the file. Linux' pagemap has 64 bits for each page.
bool are_unwritten(Pages pages) {
  constexpr uint64_t kPresent = uint64_t{1} << 63, kSwapped = uint64_t{1} << 62,
                     kOfFile = uint64_t{1} << 61;
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const int map = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
  if (map < 0) return false;
  std::vector<uint64_t> entries((pages.end - pages.begin) / page);
  const size_t bytes = entries.size() * sizeof(uint64_t);
  const auto at = static_cast<off_t>(pages.begin / page * sizeof(uint64_t));
  const bool known = pread(map, entries.data(), bytes, at) == static_cast<ssize_t>(bytes);
  close(map);
  return known && std::none_of(entries.begin(), entries.end(), [](uint64_t entry) {
           return (entry & kSwapped) != 0 || ((entry & kPresent) != 0 && (entry & kOfFile) == 0);
         });
}

}  // namespace

void forget_code_pages() {
  Search search{reinterpret_cast<uintptr_t>(&forget_code_pages)};
  dl_iterate_phdr(&find_segments, &search);
  for (Pages& pages : search.found)
    if (pages.end > pages.begin && !are_unwritten(pages)) pages = {};
  for (const Pages& pages : search.found)
    if (pages.end > pages.begin)
      madvise(reinterpret_cast<void*>(pages.begin), pages.end - pages.begin, MADV_DONTNEED);
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
