// A file as read-only memory: its pages are read when they are used, and the system may drop them.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "base/error.h"
#include "onnx/shared_bytes.h"

namespace ortmodule {

/// The file must not become shorter while it is mapped.
class MappedFile {
 public:
  /// Maps a regular file. If that fails, returns null and says why.
  static std::shared_ptr<const MappedFile> open(const std::string& path, Reason& why_not);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::string_view bytes() const { return {static_cast<const char*>(address_), bytes_}; }

 private:
  MappedFile(void* address, size_t bytes) : address_(address), bytes_(bytes) {}

  void* address_;
  size_t bytes_;
};

/// Takes mapped bytes out of the process's resident set; they are read from the file again when
/// they are used. Does nothing to other bytes.
void drop_pages(const SharedBytes& bytes, size_t offset_bytes, size_t size_bytes);

}  // namespace ortmodule
