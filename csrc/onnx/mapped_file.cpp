#include "onnx/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

namespace ortmodule {
namespace {

// O_NONBLOCK: a pipe that nobody writes to is refused instead of waited for.
int open_to_read(const std::string& path) {
  return ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
}

MappedFile::Identity identity_of(const struct stat& facts) {
#ifdef __APPLE__
  const struct timespec& written = facts.st_mtimespec;
#else
  const struct timespec& written = facts.st_mtim;
#endif
  return {static_cast<uint64_t>(facts.st_dev), static_cast<uint64_t>(facts.st_ino),
          static_cast<int64_t>(facts.st_size),
          static_cast<int64_t>(written.tv_sec) * 1'000'000'000 + written.tv_nsec};
}

}  // namespace

std::shared_ptr<const MappedFile> MappedFile::open(const std::string& path, Reason& why_not) {
  const int descriptor = open_to_read(path);
  struct stat facts {};
  if (descriptor < 0 || fstat(descriptor, &facts) != 0) {
    why_not = str("cannot be read: ", std::strerror(errno));
  } else if (!S_ISREG(facts.st_mode)) {
    why_not = "must be a regular file";
  } else {
    void* address = nullptr;
    if (facts.st_size > 0)  // an empty mapping is an error
      address =
          mmap(nullptr, static_cast<size_t>(facts.st_size), PROT_READ, MAP_PRIVATE, descriptor, 0);
    if (address != MAP_FAILED)
      return std::shared_ptr<const MappedFile>(
          new MappedFile(path, descriptor, identity_of(facts), address));
    why_not = str("cannot be mapped: ", std::strerror(errno));
  }
  if (descriptor >= 0) ::close(descriptor);
  return nullptr;
}

std::optional<MappedFile::Identity> MappedFile::identity_at(const std::string& path) {
  struct stat facts {};
  if (stat(path.c_str(), &facts) != 0) return std::nullopt;
  return identity_of(facts);
}

MappedFile::MappedFile(std::string path, int descriptor, const Identity& identity, void* address)
    : path_(std::move(path)),
      descriptor_(descriptor),
      identity_(identity),
      address_(address),
      bytes_(static_cast<size_t>(identity.bytes)) {}

MappedFile::~MappedFile() {
  if (address_) munmap(address_, bytes_);
  ::close(descriptor_);
}

bool MappedFile::contains(const void* address) const {
  const auto* first = static_cast<const char*>(address_);
  const auto* at = static_cast<const char*>(address);
  return first && at >= first && at < first + bytes_;
}

bool MappedFile::is_unchanged() const {
  struct stat facts {};
  return fstat(descriptor_, &facts) == 0 && identity_of(facts) == identity_;
}

void MappedFile::read(std::string_view part, void* to) const {
  const auto first = static_cast<off_t>(part.data() - static_cast<const char*>(address_));
  for (size_t done = 0; done < part.size();) {
    const ssize_t count = pread(descriptor_, static_cast<char*>(to) + done, part.size() - done,
                                first + static_cast<off_t>(done));
    if (count < 0 && errno == EINTR) continue;
    ORTM_CHECK(count >= 0, "[file] ", path_,
               " must be readable, but found: ", std::strerror(errno));
    ORTM_CHECK(count > 0, "[file] ", path_, " must stay as it is while sessions use it, but was ",
               "shortened: make a new session, and replace files by renaming others");
    done += static_cast<size_t>(count);
  }
}

void MappedFile::forget(std::string_view part) const {
#ifdef __linux__
  if (part.empty() || !contains(part.data())) return;
  // Whole pages: of a private mapping that is never written to, nothing gets lost.
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<uintptr_t>(part.data()) / page * page;
  const auto end = reinterpret_cast<uintptr_t>(part.data()) + part.size();
  madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
#else
  (void)part;
#endif
}

void drop_pages(const SharedBytes& bytes, size_t offset_bytes, size_t size_bytes) {
  if (!bytes.mapped() || size_bytes == 0) return;
  static const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto first = reinterpret_cast<uintptr_t>(bytes.data() + offset_bytes);
  const uintptr_t start = first / page * page;
  // NOLINTNEXTLINE: an address that was aligned by hand
  madvise(reinterpret_cast<void*>(start), first + size_bytes - start, MADV_DONTNEED);
}

}  // namespace ortmodule
