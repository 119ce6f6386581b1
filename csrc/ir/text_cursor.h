// The lexer of text_parse.cpp.
#pragma once

#include <string>
#include <string_view>

#include "base/error.h"

namespace ortmodule {

class TextCursor {
 public:
  explicit TextCursor(std::string_view text) : text_(text) {}

  size_t position() const { return at_; }
  void set_position(size_t at) { at_ = at; }
  bool at_end();
  /// The next character after blanks and comments, or 0 at the end.
  char peek();
  /// Consumes `token` if it is next.
  bool eat(std::string_view token);
  void expect(std::string_view token);
  bool at_word();
  /// Consumes `keyword` if it is next, as a whole unquoted word.
  bool eat_word(std::string_view keyword);
  /// A plain or quoted name.
  std::string name(std::string_view what);
  /// A quoted string.
  std::string quoted();
  /// A non-negative integer.
  int integer();
  /// The trimmed text up to one of the characters `ends` outside parentheses, which is not
  /// consumed.
  std::string_view raw_until(std::string_view ends);

  /// Around a nested graph; fails beyond a depth that no real graph needs.
  void enter_graph();
  void leave_graph() { --nested_graphs_; }

  /// Throws Error with line and column of the next character, or of position `at`.
  [[noreturn]] void fail(const std::string& rule);
  [[noreturn]] void fail_at(size_t at, const std::string& message) const;
  /// A description of the next token, for messages.
  std::string found();

 private:
  void skip_blanks();

  std::string_view text_;
  size_t at_ = 0;
  int nested_graphs_ = 0;
};

/// Whether the text is a floating-point number; if so, sets `value`.
bool read_number(std::string_view text, double* value);

}  // namespace ortmodule
