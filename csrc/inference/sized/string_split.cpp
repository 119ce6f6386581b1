// StringSplit: each text in parts between delimiters, with how many there are. Without a delimiter
// parts lie between blanks; other white space is part of them, as in onnxruntime.
#include "inference/sized/sized_op.h"

namespace ortmodule {
namespace {

using TextParts = std::vector<std::string_view>;
constexpr std::string_view kWhite = " ";

TextParts split_white(std::string_view text, int64_t most) {
  TextParts parts;
  const auto skip = [&] {
    text.remove_prefix(std::min(text.find_first_not_of(kWhite), text.size()));
  };
  for (skip(); !text.empty(); skip()) {
    if (static_cast<int64_t>(parts.size()) == most) {
      parts.push_back(text.substr(0, text.find_last_not_of(kWhite) + 1));
      break;
    }
    const size_t end = std::min(text.find_first_of(kWhite), text.size());
    parts.push_back(text.substr(0, end));
    text.remove_prefix(end);
  }
  return parts;
}

TextParts split_at(std::string_view text, std::string_view delimiter, int64_t most) {
  TextParts parts;
  while (!text.empty() || !parts.empty()) {
    const size_t end =
        static_cast<int64_t>(parts.size()) == most ? std::string_view::npos : text.find(delimiter);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) break;
    text.remove_prefix(end + delimiter.size());
  }
  return parts;
}

void run_string_split(const SizedCall& call) {
  Sizes sizes = call.operand(0).sizes;
  const std::string delimiter = call.attrs().string("delimiter");
  const int64_t most = call.attrs().integer("maxsplit");
  std::vector<TextParts> rows;
  size_t longest = 0;
  for (int64_t k = 0; k < element_count(sizes); ++k) {
    const std::string& text = call.text(0, k);
    rows.push_back(delimiter.empty() ? split_white(text, most) : split_at(text, delimiter, most));
    longest = std::max(longest, rows.back().size());
  }
  Sizes of_parts = sizes;
  of_parts.push_back(static_cast<int64_t>(longest));
  const int64_t empty = call.texts().number("");
  int64_t* to = call.texts_result(of_parts);
  for (const TextParts& row : rows) {
    for (const std::string_view part : row) *to++ = call.texts().number(part);
    to = std::fill_n(to, longest - row.size(), empty);
  }
  auto* counts = call.result<int64_t>(DType::Int64, sizes);
  for (const TextParts& row : rows) *counts++ = static_cast<int64_t>(row.size());
}

const SizedRegistrar kStringSplit({"StringSplit", run_string_split, nullptr});

}  // namespace
}  // namespace ortmodule
