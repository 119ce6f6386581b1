// Bytes that stay for long and are seldom read, compressed.
#pragma once

#include <cstddef>
#include <memory_resource>
#include <string>
#include <string_view>
#include <vector>

namespace ortmodule {

/// Compressed by zlib's fastest level: texts of graphs take a fifth of their bytes, in a
/// millisecond for 140 KiB. They lie apart from the heap, together with those of all others.
/// Immutable.
class PackedBytes {
 public:
  PackedBytes();
  /// Throws std::bad_alloc.
  explicit PackedBytes(std::string_view bytes);

  /// Throws std::bad_alloc.
  std::string unpacked() const;
  /// Bytes of memory.
  size_t size_bytes() const { return packed_.size(); }

 private:
  size_t unpacked_bytes_ = 0;
  std::pmr::vector<unsigned char> packed_;
};

}  // namespace ortmodule
