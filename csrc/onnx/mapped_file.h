// A file as read-only memory: its pages are read when they are used, and the system may drop them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "onnx/shared_bytes.h"

namespace ortmodule {

/// The file must not become shorter while it is read; is_unchanged() tells before.
class MappedFile {
 public:
  /// Which file it is, and when it was last written.
  struct Identity {
    uint64_t device = 0, inode = 0;
    int64_t bytes = 0, written_ns = 0;
    friend bool operator==(const Identity&, const Identity&) = default;
  };

  /// Maps a regular file. If that fails, returns null and says why.
  static std::shared_ptr<const MappedFile> open(const std::string& path, Reason& why_not);
  /// That of the file at `path` now; nothing if there is none.
  static std::optional<Identity> identity_at(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::string_view bytes() const { return {static_cast<const char*>(address_), bytes_}; }
  bool contains(const void* address) const;
  const std::string& path() const { return path_; }
  const Identity& identity() const { return identity_; }
  /// Whether nobody has written to the mapped file since it was opened. Another file at its path
  /// does not matter.
  bool is_unchanged() const;
  /// Copies `part` without mapping its pages. Throws Error.
  void read(std::string_view part, void* to) const;
  /// Takes the pages of `part` out of the resident set until they are used again; they stay in the
  /// system's cache of files.
  void forget(std::string_view part) const;

 private:
  MappedFile(std::string path, int descriptor, const Identity& identity, void* address);

  const std::string path_;
  const int descriptor_;
  const Identity identity_;
  void* address_;
  size_t bytes_;
};

/// Takes mapped bytes out of the process's resident set; they are read from the file again when
/// they are used. Does nothing to other bytes.
void drop_pages(const SharedBytes& bytes, size_t offset_bytes, size_t size_bytes);

using MappedFiles = std::vector<std::shared_ptr<const MappedFile>>;

}  // namespace ortmodule
