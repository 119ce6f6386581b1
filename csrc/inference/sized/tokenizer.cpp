// Tokenizer: each text in parts, which lie between separators, match an expression, or are single
// characters. Rows are as long as the longest one.
#include <memory>

#include "inference/sized/sized_op.h"
#include "inference/sized/text_pattern.h"

namespace ortmodule {
namespace {

using Tokens = std::vector<std::string_view>;

class TokenReader {
 public:
  explicit TokenReader(const SizedCall& call) : least_(call.attrs().integer("mincharnum")) {
    const std::string token = call.attrs().string("tokenexp", "");
    by_character_ = token == ".";
    if (call.attrs().has("separators")) {
      const std::vector<std::string> separators = call.text_attr("separators");
      by_character_ = separators.size() == 1 && separators[0].empty();
      for (const std::string& separator : separators) separators_.emplace_back(separator);
    } else {
      token_ = std::make_unique<TextPattern>(token);
    }
  }

  Tokens read(std::string_view text) {
    if (by_character_) return characters(text);
    return token_ ? matches(text) : parts(text);
  }

 private:
  bool is_long(std::string_view token) const { return count_points(token) >= least_; }

  static Tokens characters(std::string_view text) {
    Tokens tokens;
    for (size_t at = 0; at < text.size();) {
      const size_t begin = at;
      next_point(text, at);
      tokens.push_back(text.substr(begin, at - begin));
    }
    return tokens;
  }

  Tokens matches(std::string_view text) {
    Tokens tokens;
    for (size_t at = 0; at < text.size();) {
      const auto match = token_->find(text, at);
      if (!match) break;
      at = match->end;
      if (match->end == match->begin)
        if (at < text.size()) next_point(text, at);
      const std::string_view token = text.substr(match->begin, match->end - match->begin);
      if (!token.empty() && is_long(token)) tokens.push_back(token);
      if (match->end == text.size()) break;
    }
    return tokens;
  }

  // One separator after the other: each cuts the parts that the ones before it left. Where it
  // matches nothing, the character behind is lost, as in onnxruntime.
  Tokens parts(std::string_view text) {
    Tokens tokens{text};
    for (TextPattern& separator : separators_) {
      Tokens next;
      for (const std::string_view part : tokens) cut(part, separator, next);
      tokens.swap(next);
    }
    std::erase_if(tokens, [&](std::string_view token) { return token.empty() || !is_long(token); });
    return tokens;
  }

  static void cut(std::string_view part, TextPattern& separator, Tokens& to) {
    for (size_t at = 0; at <= part.size();) {
      const auto match = separator.find(part, at);
      to.push_back(part.substr(at, match ? match->begin - at : std::string_view::npos));
      if (!match) return;
      at = match->end;
      if (match->begin < match->end) continue;
      if (at == part.size()) return;
      next_point(part, at);
    }
  }

  int64_t least_;
  bool by_character_ = false;
  std::vector<TextPattern> separators_;
  std::unique_ptr<TextPattern> token_;
};

void run_tokenizer(const SizedCall& call) {
  Sizes sizes = call.operand(0).sizes;
  const int64_t count = element_count(sizes);
  if (count == 0) {
    call.texts_result(sizes);
    return;
  }
  TokenReader reader(call);
  std::vector<Tokens> rows;
  size_t longest = 0;
  for (int64_t k = 0; k < count; ++k) {
    rows.push_back(reader.read(call.text(0, k)));
    longest = std::max(longest, rows.back().size());
  }
  const bool marks = call.attrs().flag("mark") && longest > 0;
  sizes.push_back(static_cast<int64_t>(longest + (marks ? 2 : 0)));
  RunTexts& texts = call.texts();
  const int64_t pad = texts.number(call.attrs().string("pad_value"));
  const int64_t begin = marks ? texts.number("\x02") : 0, end = marks ? texts.number("\x03") : 0;
  int64_t* to = call.texts_result(sizes);
  for (const Tokens& row : rows) {
    int64_t* const row_end = to + sizes.back();
    if (marks) *to++ = begin;
    for (const std::string_view token : row) *to++ = texts.number(token);
    if (marks) *to++ = end;
    to = std::fill_n(to, row_end - to, pad);
  }
}

const SizedRegistrar kTokenizer({"Tokenizer", run_tokenizer, nullptr});

}  // namespace
}  // namespace ortmodule
