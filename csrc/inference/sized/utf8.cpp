#include "inference/sized/utf8.h"

#include <clocale>
#include <cwctype>

namespace ortmodule {
namespace {

// Of no language, and of the process: it is never freed.
locale_t utf8_locale() {
  static const locale_t kLocale = newlocale(LC_CTYPE_MASK, "C.UTF-8", nullptr);
  return kLocale;
}

template <class Change>
std::string changed_text(std::string_view text, const Change& change) {
  std::string result;
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    const uint32_t point = next_point(text, at), other = change(point);
    if (other == point)
      result.append(text.substr(begin, at - begin));  // also what is not UTF-8
    else
      append_point(result, other);
  }
  return result;
}

}  // namespace

uint32_t lower_point(uint32_t point) {
  if (point < 0x80) return point >= 'A' && point <= 'Z' ? point + 32 : point;
  return utf8_locale() ? static_cast<uint32_t>(towlower_l(point, utf8_locale())) : point;
}

uint32_t upper_point(uint32_t point) {
  if (point < 0x80) return point >= 'a' && point <= 'z' ? point - 32 : point;
  return utf8_locale() ? static_cast<uint32_t>(towupper_l(point, utf8_locale())) : point;
}

bool is_of_class(uint32_t point, PointClass which) {
  const bool lower = upper_point(point) != point, upper = lower_point(point) != point;
  switch (which) {
    case PointClass::Lower: return lower;
    case PointClass::Upper: return upper;
    case PointClass::Letter: break;
  }
  if (point < 0x80 || !utf8_locale()) return lower || upper;
  return iswalpha_l(point, utf8_locale()) != 0;
}

std::string lower_text(std::string_view text) { return changed_text(text, lower_point); }
std::string upper_text(std::string_view text) { return changed_text(text, upper_point); }

}  // namespace ortmodule
