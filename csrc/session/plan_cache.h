// A cache of plans by shapes, which evicts the least recently used one.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <utility>

namespace ortmodule {

/// How many plans of that size fit in `bytes`, but at least `fewest` and at most 1,024.
inline size_t plans_within(int64_t bytes, int64_t plan_bytes, size_t fewest) {
  constexpr size_t kMost = 1024;
  return std::clamp(static_cast<size_t>(bytes / std::max<int64_t>(plan_bytes, 1)), fewest, kMost);
}

/// Holds at most as many entries as the last add() allowed. Not thread-safe.
template <class Key, class Entry>
class PlanCache {
 public:
  /// The entry of `key`, now the most recently used one; null if there is none.
  std::shared_ptr<Entry> find(const Key& key) {
    const auto found = places_.find(key);
    if (found == places_.end()) return nullptr;
    recent_.splice(recent_.begin(), recent_, found->second);
    return recent_.front().second;
  }

  /// The most recently used entry, if `is_key` is true for its key; else null.
  template <class Predicate>
  std::shared_ptr<Entry> latest(const Predicate& is_key) const {
    if (recent_.empty() || !is_key(*recent_.front().first)) return nullptr;
    return recent_.front().second;
  }

  /// Adds an entry under a new key, and evicts the least recently used ones beyond `capacity`.
  void add(Key key, std::shared_ptr<Entry> entry, size_t capacity) {
    const auto place = places_.emplace(std::move(key), recent_.end()).first;
    recent_.emplace_front(&place->first, std::move(entry));
    place->second = recent_.begin();
    while (places_.size() > std::max<size_t>(capacity, 1)) erase(Key(*recent_.back().first));
  }

  /// Evicts the least recently used entries until the others fit in `bytes`, and returns what these
  /// take. `bytes_of(entry)` is the size of one.
  template <class BytesOf>
  int64_t shrink(int64_t bytes, const BytesOf& bytes_of) {
    int64_t kept = 0;
    auto entry = recent_.begin();
    for (; entry != recent_.end() && kept + bytes_of(*entry->second) <= bytes; ++entry)
      kept += bytes_of(*entry->second);
    while (entry != recent_.end()) {
      places_.erase(places_.find(*entry->first));
      entry = recent_.erase(entry);
    }
    return kept;
  }

  void erase(const Key& key) {
    const auto found = places_.find(key);
    if (found == places_.end()) return;
    recent_.erase(found->second);
    places_.erase(found);
  }

  void clear() {
    recent_.clear();
    places_.clear();
  }

  size_t size() const { return places_.size(); }

 private:
  using Recent = std::list<std::pair<const Key*, std::shared_ptr<Entry>>>;  // most recent first

  Recent recent_;
  std::map<Key, typename Recent::iterator> places_;
};

}  // namespace ortmodule
