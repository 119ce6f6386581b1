// Positions in the tables of a plan as types of their own: an id of one table cannot index another.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <ostream>
#include <ranges>
#include <utility>
#include <vector>

namespace ortmodule {

/// The position of an entry in an IdVector, or none.
template <class Tag>
class Id {
 public:
  constexpr Id() = default;  // none
  constexpr explicit Id(size_t index) : index_(static_cast<int32_t>(index)) {}

  /// Whether this is the id of an entry.
  constexpr explicit operator bool() const { return index_ >= 0; }
  /// Only for an id of an entry.
  constexpr size_t index() const { return static_cast<size_t>(index_); }

  friend constexpr auto operator<=>(Id a, Id b) = default;
  /// The position; -1 for none.
  friend std::ostream& operator<<(std::ostream& out, Id id) { return out << id.index_; }

 private:
  int32_t index_ = -1;
};

/// A vector that only ids of its own kind index.
template <class IdType, class T>
class IdVector {
 public:
  IdVector() = default;
  IdVector(std::initializer_list<T> entries) : entries_(entries) {}
  IdVector(size_t size, const T& value) : entries_(size, value) {}

  T& operator[](IdType id) { return entries_[id.index()]; }
  const T& operator[](IdType id) const { return entries_[id.index()]; }

  /// Appends an entry; returns its id.
  IdType add(T entry) {
    entries_.push_back(std::move(entry));
    return IdType(size() - 1);
  }

  size_t size() const { return entries_.size(); }
  bool empty() const { return entries_.empty(); }
  T& back() { return entries_.back(); }
  auto begin() { return entries_.begin(); }
  auto end() { return entries_.end(); }
  auto begin() const { return entries_.begin(); }
  auto end() const { return entries_.end(); }

  void clear() { entries_.clear(); }
  void reserve(size_t size) { entries_.reserve(size); }
  void resize(size_t size, const T& value) { entries_.resize(size, value); }
  void resize(size_t size) { entries_.resize(size); }
  void assign(size_t size, const T& value) { entries_.assign(size, value); }

  /// The ids of all entries, in order.
  auto ids() const {
    return std::views::iota(size_t{0}, size()) |
           std::views::transform([](size_t index) { return IdType(index); });
  }

 private:
  std::vector<T> entries_;
};

}  // namespace ortmodule

template <class Tag>
struct std::hash<ortmodule::Id<Tag>> {
  size_t operator()(ortmodule::Id<Tag> id) const noexcept { return id.index(); }
};
