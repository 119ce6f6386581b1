// Code points of texts in UTF-8.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace ortmodule {

/// The code point at byte `at`, which moves behind it. A byte that is not UTF-8 is a point of its
/// own, one that no text has.
inline uint32_t next_point(std::string_view text, size_t& at) {
  const auto byte = [&](size_t i) { return static_cast<uint32_t>(static_cast<uint8_t>(text[i])); };
  const uint32_t first = byte(at++);
  if (first < 0x80) return first;
  const size_t more = first >= 0xf0 ? 3 : first >= 0xe0 ? 2 : first >= 0xc0 ? 1 : 0;
  constexpr uint32_t kNoText = 0xdc00;  // half of a pair in UTF-16
  if (more == 0 || at + more > text.size()) return kNoText + first;
  uint32_t point = first & (0x3fu >> more);
  for (size_t i = 0; i < more; ++i) {
    if ((byte(at + i) & 0xc0) != 0x80) return kNoText + first;
    point = point << 6 | (byte(at + i) & 0x3f);
  }
  at += more;
  return point;
}

inline int64_t count_points(std::string_view text) {
  int64_t count = 0;
  for (size_t at = 0; at < text.size(); ++count) next_point(text, at);
  return count;
}

inline void append_point(std::string& text, uint32_t point) {
  const auto byte = [&](uint32_t value) { text.push_back(static_cast<char>(value)); };
  if (point < 0x80) return byte(point);
  if (point < 0x800) {
    byte(0xc0 | point >> 6);
  } else if (point < 0x10000) {
    byte(0xe0 | point >> 12);
    byte(0x80 | (point >> 6 & 0x3f));
  } else {
    byte(0xf0 | point >> 18);
    byte(0x80 | (point >> 12 & 0x3f));
    byte(0x80 | (point >> 6 & 0x3f));
  }
  byte(0x80 | (point & 0x3f));
}

/// By the tables of the C library for UTF-8; without them, only those of ASCII change.
uint32_t lower_point(uint32_t point);
uint32_t upper_point(uint32_t point);
enum class PointClass : uint8_t { Letter, Lower, Upper };
bool is_of_class(uint32_t point, PointClass which);

/// Every code point by itself.
std::string lower_text(std::string_view text);
std::string upper_text(std::string_view text);

}  // namespace ortmodule
