// A list whose first few entries need no memory of their own.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <type_traits>
#include <utility>

namespace ortmodule {

/// The operands or nodes of a step: a vector of small values of which the first `kInline` lie in
/// the object, since a plan has thousands of such lists. Members are those of std::vector.
template <class T, size_t kInline>
class ShortList {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  using value_type = T;
  using iterator = T*;
  using const_iterator = const T*;

  ShortList() = default;
  ShortList(std::initializer_list<T> entries) { assign(entries.begin(), entries.end()); }
  ShortList(const ShortList& other) { assign(other.begin(), other.end()); }
  ShortList(ShortList&& other) noexcept { take(other); }
  ShortList& operator=(const ShortList& other) {
    if (this != &other) assign(other.begin(), other.end());
    return *this;
  }
  ShortList& operator=(ShortList&& other) noexcept {
    if (this != &other) {
      delete[] heap_;
      take(other);
    }
    return *this;
  }
  ~ShortList() { delete[] heap_; }

  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  T* data() { return heap_ ? heap_ : inline_; }
  const T* data() const { return heap_ ? heap_ : inline_; }
  iterator begin() { return data(); }
  iterator end() { return data() + size_; }
  const_iterator begin() const { return data(); }
  const_iterator end() const { return data() + size_; }
  T& operator[](size_t i) { return data()[i]; }
  const T& operator[](size_t i) const { return data()[i]; }
  T& front() { return *data(); }
  const T& front() const { return *data(); }
  T& back() { return data()[size_ - 1]; }
  const T& back() const { return data()[size_ - 1]; }

  void push_back(T entry) {
    if (size_ == capacity_) reserve(2 * size_t{capacity_});
    data()[size_++] = entry;
  }
  template <class Iterator>
  void assign(Iterator first, Iterator last) {
    const auto count = static_cast<size_t>(last - first);
    size_ = 0;
    reserve(count);
    std::copy(first, last, data());
    size_ = static_cast<uint32_t>(count);
  }

 private:
  void reserve(size_t count) {
    if (count <= capacity_) return;
    T* const larger = new T[count];
    std::copy(begin(), end(), larger);
    delete[] heap_;
    heap_ = larger;
    capacity_ = static_cast<uint32_t>(count);
  }
  /// Of a list that holds no memory.
  void take(ShortList& other) {
    heap_ = std::exchange(other.heap_, nullptr);
    size_ = std::exchange(other.size_, 0);
    capacity_ = std::exchange(other.capacity_, static_cast<uint32_t>(kInline));
    if (!heap_) std::copy(other.inline_, other.inline_ + size_, inline_);
  }

  T* heap_ = nullptr;
  uint32_t size_ = 0;
  uint32_t capacity_ = kInline;
  T inline_[kInline] = {};
};

}  // namespace ortmodule
