#include "ir/text_cursor.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <limits>

namespace ortmodule {
namespace {

bool is_space(char c) { return std::isspace(static_cast<unsigned char>(c)) != 0; }
bool is_digit(char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; }
bool is_word_start(char c) { return std::isalpha(static_cast<unsigned char>(c)) || c == '_'; }
bool is_word(char c) { return is_word_start(c) || is_digit(c) || c == '.'; }

int hex_digit(char c) {
  if (is_digit(c)) return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

}  // namespace

void TextCursor::skip_blanks() {
  while (at_ < text_.size()) {
    if (is_space(text_[at_])) {
      ++at_;
    } else if (text_.substr(at_, 2) == "//") {
      at_ = std::min(text_.find('\n', at_), text_.size());
    } else {
      return;
    }
  }
}

bool TextCursor::at_end() { return peek() == 0; }

char TextCursor::peek() {
  skip_blanks();
  return at_ < text_.size() ? text_[at_] : '\0';
}

bool TextCursor::eat(std::string_view token) {
  skip_blanks();
  if (text_.substr(at_, token.size()) != token) return false;
  at_ += token.size();
  return true;
}

void TextCursor::expect(std::string_view token) {
  if (!eat(token)) fail(str("expected '", token, "'"));
}

bool TextCursor::at_word() { return is_word_start(peek()); }

bool TextCursor::eat_word(std::string_view keyword) {
  skip_blanks();
  const size_t end = at_ + keyword.size();
  if (text_.substr(at_, keyword.size()) != keyword) return false;
  if (end < text_.size() && is_word(text_[end])) return false;
  at_ = end;
  return true;
}

std::string TextCursor::name(std::string_view what) {
  if (peek() == '"') return quoted();
  if (!at_word()) fail(str("expected ", what));
  const size_t start = at_;
  while (at_ < text_.size() && is_word(text_[at_])) ++at_;
  return std::string(text_.substr(start, at_ - start));
}

std::string TextCursor::quoted() {
  expect("\"");
  const size_t start = at_ - 1;
  std::string result;
  for (;;) {
    if (at_ >= text_.size()) fail_at(start, "a quoted text must end with '\"', but found the end");
    const char c = text_[at_++];
    if (c == '"') return result;
    if (c != '\\') {
      result += c;
      continue;
    }
    const char escape = at_ < text_.size() ? text_[at_++] : '\0';
    if (escape == '"' || escape == '\\') {
      result += escape;
    } else if (escape == 'n') {
      result += '\n';
    } else if (escape == 'x' && at_ + 2 <= text_.size() && hex_digit(text_[at_]) >= 0 &&
               hex_digit(text_[at_ + 1]) >= 0) {
      result += static_cast<char>(hex_digit(text_[at_]) * 16 + hex_digit(text_[at_ + 1]));
      at_ += 2;
    } else {
      fail_at(at_ - 1, R"(an escape must be \" \\ \n or \xNN)");
    }
  }
}

int TextCursor::integer() {
  peek();
  int value = 0;
  const char* begin = text_.data() + at_;
  const auto [end, error] = std::from_chars(begin, text_.data() + text_.size(), value);
  if (error != std::errc() || value < 0) fail("expected a non-negative integer");
  at_ += static_cast<size_t>(end - begin);
  return value;
}

std::string_view TextCursor::raw_until(std::string_view ends) {
  while (at_ < text_.size() && is_space(text_[at_])) ++at_;
  const size_t start = at_;
  int depth = 0;
  for (; at_ < text_.size(); ++at_) {
    const char c = text_[at_];
    if (depth == 0 && ends.find(c) != std::string_view::npos) break;
    if (c == '(') ++depth;
    if (c == ')') --depth;
  }
  size_t end = at_;
  while (end > start && is_space(text_[end - 1])) --end;
  return text_.substr(start, end - start);
}

void TextCursor::enter_graph() {
  constexpr int kMost = 64;  // each takes stack space to parse
  if (++nested_graphs_ > kMost) fail(str("graphs must be nested at most ", kMost, " deep"));
}

std::string TextCursor::found() {
  if (at_end()) return "the end of the text";
  if (peek() == '"') return "a quoted text";
  size_t end = at_ + 1;
  if (is_word(text_[at_]))
    while (end < text_.size() && is_word(text_[end])) ++end;
  return str("'", text_.substr(at_, end - at_), "'");
}

void TextCursor::fail(const std::string& rule) {
  const std::string what = found();
  fail_at(at_, str(rule, ", but found ", what));
}

void TextCursor::fail_at(size_t at, const std::string& message) const {
  const std::string_view before = text_.substr(0, at);
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  const size_t line_start = before.rfind('\n');
  const size_t column = line_start == std::string_view::npos ? at + 1 : at - line_start;
  throw Error(str("[text ", line, ":", column, "] ", message));
}

bool read_number(std::string_view text, double* value) {
  if (text == "nan") {
    *value = std::numeric_limits<double>::quiet_NaN();
    return true;
  }
  const std::string_view magnitude = text.starts_with('-') ? text.substr(1) : text;
  const bool starts = !magnitude.empty() && (is_digit(magnitude[0]) || magnitude[0] == '.');
  const bool floats = magnitude.find_first_of(".eE") != std::string_view::npos;
  if (magnitude != "inf" && !(starts && floats)) return false;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  return error == std::errc() && end == text.data() + text.size();
}

}  // namespace ortmodule
