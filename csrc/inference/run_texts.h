// The texts of one run, by number: those of the model, and those that its feeds add.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

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
    if (table_.size() > 0)
      if (const auto known = table_.find(text)) return *known;
    if (added_.size() * 2 >= places_.size()) grow();
    const size_t hash = std::hash<std::string_view>()(text);
    size_t place = hash & (places_.size() - 1);
    for (; places_[place] >= 0; place = (place + 1) & (places_.size() - 1)) {
      const auto i = static_cast<size_t>(places_[place]);
      if (hashes_[i] == hash && added_[i] == text) return number_of(i);
    }
    places_[place] = static_cast<int64_t>(added_.size());
    hashes_.push_back(hash);
    added_.emplace_back(text);
    return number_of(added_.size() - 1);
  }

  size_t size() const { return table_.size() + added_.size(); }
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
  int64_t number_of(size_t added) const { return static_cast<int64_t>(table_.size() + added); }
  /// Twice as many places, at least half of which stay free.
  void grow() {
    places_.assign(std::max<size_t>(64, 2 * places_.size()), -1);
    for (size_t i = 0; i < hashes_.size(); ++i) {
      size_t place = hashes_[i] & (places_.size() - 1);
      while (places_[place] >= 0) place = (place + 1) & (places_.size() - 1);
      places_[place] = static_cast<int64_t>(i);
    }
  }

  const TextTable& table_;
  std::deque<std::string> added_;
  std::vector<size_t> hashes_;  // of the added ones
  std::vector<int64_t>
      places_;  // by hash: one of the added, or -1. A map of nodes takes twice as long
};

}  // namespace ortmodule
