// Type-erased owned memory, and the allocator interface.
#pragma once

#include <cstdint>
#include <utility>

namespace ortmodule {

/// A block of memory with its deleter: c10::DataPtr without torch.
class Buffer {
 public:
  using Deleter = void (*)(void* context);

  Buffer() = default;
  Buffer(void* data, int64_t bytes, void* context, Deleter deleter)
      : data_(data), bytes_(bytes), context_(context), deleter_(deleter) {}
  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    Buffer moved(std::move(other));
    swap(moved);
    return *this;
  }
  ~Buffer() {
    if (deleter_) deleter_(context_);
  }

  void* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  Deleter deleter() const { return deleter_; }
  explicit operator bool() const { return deleter_ != nullptr; }

  /// Gives up ownership: the caller must call deleter()(context).
  void* release_context() {
    deleter_ = nullptr;
    data_ = nullptr;
    return std::exchange(context_, nullptr);
  }

 private:
  void swap(Buffer& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(context_, other.context_);
    std::swap(deleter_, other.deleter_);
  }

  void* data_ = nullptr;
  int64_t bytes_ = 0;
  void* context_ = nullptr;
  Deleter deleter_ = nullptr;
};

/// Allocates the engine's memory; the torch layer wraps torch's allocator.
class Allocator {
 public:
  virtual ~Allocator() = default;
  /// At least `bytes` bytes, 64-byte aligned. Throws the framework's out-of-memory error.
  virtual Buffer allocate(int64_t bytes) = 0;
};

}  // namespace ortmodule
