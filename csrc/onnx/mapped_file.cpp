#include "onnx/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

namespace ortmodule {
namespace {

class Descriptor {
 public:
  // O_NONBLOCK: a pipe that nobody writes to is refused instead of waited for.
  explicit Descriptor(const std::string& path)
      : number_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {}
  ~Descriptor() {
    if (number_ >= 0) ::close(number_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int number() const { return number_; }

 private:
  int number_;
};

}  // namespace

std::shared_ptr<const MappedFile> MappedFile::open(const std::string& path, Reason& why_not) {
  const Descriptor file(path);
  struct stat facts {};
  if (file.number() < 0 || fstat(file.number(), &facts) != 0) {
    why_not = str("cannot be read: ", std::strerror(errno));
    return nullptr;
  }
  if (!S_ISREG(facts.st_mode)) {
    why_not = "must be a regular file";
    return nullptr;
  }
  const auto bytes = static_cast<size_t>(facts.st_size);
  void* address = nullptr;
  if (bytes > 0) {  // an empty mapping is an error
    address = mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, file.number(), 0);
    if (address == MAP_FAILED) {
      why_not = str("cannot be mapped: ", std::strerror(errno));
      return nullptr;
    }
  }
  return std::shared_ptr<const MappedFile>(new MappedFile(address, bytes));
}

MappedFile::~MappedFile() {
  if (address_) munmap(address_, bytes_);
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
