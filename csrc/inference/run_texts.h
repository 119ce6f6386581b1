// The texts of one run, by number: those of the model, and those that its feeds add.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <unordered_map>

#include "base/error.h"
#include "onnx/text_table.h"

namespace ortmodule {

/// For one thread.
class RunTexts {
 public:
  /// `table` must outlive this.
  explicit RunTexts(const TextTable& table) : table_(table) {}

  /// The number of a text, which it gets if it has none.
  int64_t number(std::string_view text) {
    if (const auto known = table_.find(text)) return *known;
    const auto added = added_numbers_.find(text);
    if (added != added_numbers_.end()) return added->second;
    const auto next = static_cast<int64_t>(table_.size() + added_.size());
    added_.emplace_back(text);
    added_numbers_.emplace(added_.back(), next);
    return next;
  }

  /// Throws Error if no text has that number.
  const std::string& text(int64_t number) const {
    const auto known = static_cast<int64_t>(table_.size());
    ORTM_CHECK(number >= 0 && number < known + static_cast<int64_t>(added_.size()),
               "[run] an output of strings must be made of those of the model and its feeds, but "
               "found number ",
               number, ": the model's operators do not fit");
    return number < known ? table_.at(number) : added_.at(static_cast<size_t>(number - known));
  }

 private:
  const TextTable& table_;
  std::deque<std::string> added_;
  std::unordered_map<std::string_view, int64_t> added_numbers_;
};

}  // namespace ortmodule
