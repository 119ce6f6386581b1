// Bytes with a shared owner, so that tensors of a mapped file are not copied.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace ortmodule {

/// Read-only bytes, kept alive by their owner: a string, or a mapped file.
class SharedBytes {
 public:
  SharedBytes() = default;
  SharedBytes(std::string bytes) {  // NOLINT: constants are built as strings
    auto owned = std::make_shared<const std::string>(std::move(bytes));
    view_ = *owned;
    owner_ = std::move(owned);
  }
  /// Part of what `owner` keeps alive. `mapped`: read-only pages of a file, which the system reads
  /// again when they are dropped (drop_pages() in onnx/mapped_file.h).
  SharedBytes(std::shared_ptr<const void> owner, std::string_view view, bool mapped = false)
      : owner_(std::move(owner)), view_(view), mapped_(mapped) {}
  /// Bytes that the caller keeps alive.
  static SharedBytes borrowed(const void* data, size_t size) {
    return {nullptr, std::string_view(static_cast<const char*>(data), size)};
  }

  const char* data() const { return view_.data(); }
  size_t size() const { return view_.size(); }
  std::string_view view() const { return view_; }
  const std::shared_ptr<const void>& owner() const { return owner_; }
  bool mapped() const { return mapped_; }

 private:
  std::shared_ptr<const void> owner_;
  std::string_view view_;
  bool mapped_ = false;
};

}  // namespace ortmodule
