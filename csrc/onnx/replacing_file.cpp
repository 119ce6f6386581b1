#include "onnx/replacing_file.h"

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>

#include "base/error.h"

namespace ortmodule {
namespace {

[[noreturn]] void fail(const std::string& path, const std::string& why) {
  throw Error(str("[save] '", path, "' must be writable, but found: ", why));
}

// A name that no other thread or process of this machine writes to.
std::string name_beside(const std::string& path) {
  static std::atomic<uint64_t> count{0};
  return str(path, ".", getpid(), ".", count++, ".tmp");
}

}  // namespace

ReplacingFile::ReplacingFile(const std::string& path) : path_(path) {
  do {
    temporary_ = name_beside(path);
    file_.reset(std::fopen(temporary_.c_str(), "wbxe"));
  } while (!file_ && errno == EEXIST);  // of a process that was killed
  if (!file_) fail(path_, std::strerror(errno));
}

ReplacingFile::~ReplacingFile() {
  std::error_code ignored;
  if (!done_) std::filesystem::remove(temporary_, ignored);
}

void ReplacingFile::write(std::string_view bytes) {
  if (std::fwrite(bytes.data(), 1, bytes.size(), file_.get()) != bytes.size())
    fail(path_, std::strerror(errno));
  size_bytes_ += bytes.size();
}

void ReplacingFile::finish() {
  if (std::fclose(file_.release()) != 0) fail(path_, std::strerror(errno));
}

void ReplacingFile::replace() {
  std::error_code error;
  std::filesystem::rename(temporary_, path_, error);
  if (error) fail(path_, error.message());
  done_ = true;
}

}  // namespace ortmodule
