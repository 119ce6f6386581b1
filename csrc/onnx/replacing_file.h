// A file that is written beside an existing one and replaces it once it is complete.
#pragma once

#include <fstream>
#include <string>
#include <string_view>

namespace ortmodule {

class ReplacingFile {
 public:
  /// Throws Error if nothing can be written at `path`.
  explicit ReplacingFile(const std::string& path);
  /// Removes what was written if it replaced nothing.
  ~ReplacingFile();
  ReplacingFile(const ReplacingFile&) = delete;
  ReplacingFile& operator=(const ReplacingFile&) = delete;

  void write(std::string_view bytes) {
    out_.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    size_bytes_ += bytes.size();
  }
  size_t size_bytes() const { return size_bytes_; }
  /// Throws Error unless all bytes were written.
  void finish();
  void replace();

 private:
  std::string path_;
  std::string temporary_;
  std::ofstream out_;
  size_t size_bytes_ = 0;
  bool done_ = false;
};

}  // namespace ortmodule
