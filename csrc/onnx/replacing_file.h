// A file that is written beside an existing one and replaces it once it is complete.
#pragma once

#include <cstdio>
#include <memory>
#include <string>
#include <string_view>

namespace ortmodule {

/// Threads and processes may write the same path: each writes a file of its own, and the last one
/// that is complete stays. Errors begin with "[save]".
class ReplacingFile {
 public:
  /// Throws Error if nothing can be written at `path`.
  explicit ReplacingFile(const std::string& path);
  /// Removes what was written if it replaced nothing.
  ~ReplacingFile();
  ReplacingFile(const ReplacingFile&) = delete;
  ReplacingFile& operator=(const ReplacingFile&) = delete;

  /// Throws Error if the bytes cannot be written, as where the disk is full.
  void write(std::string_view bytes);
  size_t size_bytes() const { return size_bytes_; }
  /// Throws Error unless all bytes were written.
  void finish();
  void replace();

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };

  std::string path_;
  std::string temporary_;
  std::unique_ptr<std::FILE, Close> file_;
  size_t size_bytes_ = 0;
  bool done_ = false;
};

}  // namespace ortmodule
