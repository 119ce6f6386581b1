#include "onnx/replacing_file.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "base/error.h"

namespace ortmodule {
namespace {

[[noreturn]] void fail(const std::string& path, const std::string& message) {
  throw Error(str("[onnx] ", path, ": ", message));
}

}  // namespace

ReplacingFile::ReplacingFile(const std::string& path)
    : path_(path),
      temporary_(str(path, ".", getpid(), ".tmp")),
      out_(temporary_, std::ios::binary | std::ios::trunc) {
  if (!out_) fail(path_, str("cannot be written: ", std::strerror(errno)));
}

ReplacingFile::~ReplacingFile() {
  std::error_code ignored;
  if (!done_) std::filesystem::remove(temporary_, ignored);
}

void ReplacingFile::finish() {
  out_.close();
  if (!out_) fail(path_, "cannot be written completely");
}

void ReplacingFile::replace() {
  std::error_code error;
  std::filesystem::rename(temporary_, path_, error);
  if (error) fail(path_, str("cannot be replaced: ", error.message()));
  done_ = true;
}

}  // namespace ortmodule
