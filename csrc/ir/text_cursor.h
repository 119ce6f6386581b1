// Characters, words and positions of a text being read: what text_parse.cpp stands on.
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
  /// The next character behind blanks and comments, or 0 at the end.
  char peek();
  /// Consumes `token` if it comes next.
  bool eat(std::string_view token);
  void expect(std::string_view token);
  bool at_word();
  /// Consumes the word `keyword` if it comes next as a whole and unquoted.
  bool eat_word(std::string_view keyword);
  /// A plain or quoted name.
  std::string name(std::string_view what);
  /// A text in quotes.
  std::string quoted();
  /// A non-negative integer.
  int integer();
  /// Everything up to one of `ends` outside parentheses, trimmed; `ends` stays.
  std::string_view raw_until(std::string_view ends);

  /// Between a graph's braces within a graph; fails where they are deeper than any graph needs.
  void enter_graph();
  void leave_graph() { --nested_graphs_; }

  /// Fails with line and column of the next character, or of position `at`.
  [[noreturn]] void fail(const std::string& rule);
  [[noreturn]] void fail_at(size_t at, const std::string& message) const;
  /// What stands at the cursor, for messages.
  std::string found();

 private:
  void skip_blanks();

  std::string_view text_;
  size_t at_ = 0;
  int nested_graphs_ = 0;
};

/// True if the text is written as a floating-point number; sets `value`.
bool read_number(std::string_view text, double* value);

}  // namespace ortmodule
