// Numbers and texts as one string of bytes, in few of them: for what is kept in memory and seldom
// read. What a writer has written a reader reads in the same order.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <memory_resource>
#include <string>
#include <string_view>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/page_region.h"

namespace ortmodule {

class ByteWriter {
 public:
  /// 7 bits a byte.
  void number(uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_ += static_cast<char>(value | 0x80);
    bytes_ += static_cast<char>(value);
  }
  /// Of either sign.
  void integer(int64_t value) {
    const auto bits = static_cast<uint64_t>(value);
    number(bits << 1 ^ (value < 0 ? ~uint64_t{0} : 0));
  }
  /// A bool, an enumerator, an index: what fits in a byte.
  template <class T>
  void byte(T value) {
    bytes_ += static_cast<char>(value);
  }
  void real(double value) {
    char raw[sizeof value];
    std::memcpy(raw, &value, sizeof value);
    bytes_.append(raw, sizeof raw);
  }
  /// Equal texts are written once, and then their place among the texts. Names of neighbours begin
  /// alike, so a new text is 0, how much of the last new one it begins with, and the rest.
  void text(std::string_view content) {
    if (const auto known = texts_.find(content); known != texts_.end())
      return number(known->second);
    const auto added = texts_.emplace(content, texts_.size() + 1).first;
    const size_t most = std::min(last_.size(), content.size());
    const auto end = std::mismatch(content.begin(), content.begin() + most, last_.begin()).first;
    const auto shared = static_cast<size_t>(end - content.begin());
    number(0);
    number(shared);
    number(content.size() - shared);
    bytes_.append(content.substr(shared));
    last_ = added->first;
  }

  /// What was written, as long as this exists.
  std::string_view bytes() const { return bytes_; }
  /// For what is needed while this exists.
  std::pmr::memory_resource& memory() { return memory_; }

 private:
  struct TextHash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };

  // Not from the heap of the thread that packs, of which the C library would keep the end.
  PageRegion pages_;
  std::pmr::monotonic_buffer_resource memory_{&pages_};
  std::pmr::string bytes_{&pages_};
  std::pmr::unordered_map<std::pmr::string, uint64_t, TextHash, std::equal_to<>> texts_{&memory_};
  std::string_view last_;  // a key of texts_
};

/// Texts live as long as the reader, and `bytes` must.
class ByteReader {
 public:
  explicit ByteReader(std::string_view bytes) : bytes_(bytes) {}

  bool at_end() const { return at_ == bytes_.size(); }
  uint64_t number() {
    uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      const auto next = static_cast<uint8_t>(bytes_[at_++]);
      value |= uint64_t{next & 0x7FU} << shift;
      if (next < 0x80) return value;
    }
  }
  int64_t integer() {
    const uint64_t bits = number();
    return static_cast<int64_t>(bits >> 1 ^ (~(bits & 1) + 1));
  }
  template <class T>
  T byte() {
    return static_cast<T>(static_cast<uint8_t>(bytes_[at_++]));
  }
  double real() {
    double value = 0;
    std::memcpy(&value, bytes_.data() + at_, sizeof value);
    at_ += sizeof value;
    return value;
  }
  std::string_view text() {
    const uint64_t known = number();
    if (known > 0) return texts_[known - 1];
    const uint64_t shared = number(), size = number();
    std::string& made = texts_.emplace_back();
    if (shared > 0) made.assign(texts_[texts_.size() - 2], 0, shared);
    made.append(bytes_, at_, size);
    at_ += size;
    return made;
  }

 private:
  std::string_view bytes_;
  size_t at_ = 0;
  std::deque<std::string> texts_;  // whose elements stay where they are
};

}  // namespace ortmodule
