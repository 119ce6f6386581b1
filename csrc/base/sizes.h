// The integers of a shape.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <iterator>
#include <stdexcept>
#include <utility>
#include <vector>

namespace ortmodule {

/// Sizes, strides or places by dimension: a vector of integers of which the first six need no
/// memory of their own, since a plan has thousands of them. Members are those of std::vector.
class Sizes {
 public:
  using value_type = int64_t;
  using size_type = size_t;
  using difference_type = std::ptrdiff_t;
  using reference = int64_t&;
  using const_reference = const int64_t&;
  using iterator = int64_t*;
  using const_iterator = const int64_t*;
  using reverse_iterator = std::reverse_iterator<iterator>;
  using const_reverse_iterator = std::reverse_iterator<const_iterator>;

  Sizes() noexcept {}
  explicit Sizes(size_t count, int64_t value = 0) { resize(count, value); }
  Sizes(std::initializer_list<int64_t> values) : Sizes(values.begin(), values.end()) {}
  Sizes(const std::vector<int64_t>& values) : Sizes(values.begin(), values.end()) {}  // NOLINT
  template <std::input_iterator Iterator>
  Sizes(Iterator first, Iterator last) {
    assign(first, last);
  }
  Sizes(const Sizes& other) : Sizes(other.begin(), other.end()) {}
  Sizes(Sizes&& other) noexcept { take(other); }
  Sizes& operator=(const Sizes& other) {
    if (this != &other) assign(other.begin(), other.end());
    return *this;
  }
  Sizes& operator=(Sizes&& other) noexcept {
    if (this != &other) {
      release();
      take(other);
    }
    return *this;
  }
  ~Sizes() { release(); }

  std::vector<int64_t> vector() const { return {begin(), end()}; }

  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  size_t capacity() const { return capacity_; }
  /// Bytes of memory besides the object itself.
  size_t heap_bytes() const { return is_inline() ? 0 : capacity_ * sizeof(int64_t); }
  int64_t* data() { return is_inline() ? inline_ : heap_; }
  const int64_t* data() const { return is_inline() ? inline_ : heap_; }
  iterator begin() { return data(); }
  iterator end() { return data() + size_; }
  const_iterator begin() const { return data(); }
  const_iterator end() const { return data() + size_; }
  const_iterator cbegin() const { return begin(); }
  const_iterator cend() const { return end(); }
  reverse_iterator rbegin() { return reverse_iterator(end()); }
  reverse_iterator rend() { return reverse_iterator(begin()); }
  const_reverse_iterator rbegin() const { return const_reverse_iterator(end()); }
  const_reverse_iterator rend() const { return const_reverse_iterator(begin()); }
  int64_t& operator[](size_t i) { return data()[i]; }
  const int64_t& operator[](size_t i) const { return data()[i]; }
  int64_t& at(size_t i) { return data()[checked(i)]; }
  const int64_t& at(size_t i) const { return data()[checked(i)]; }
  int64_t& front() { return *begin(); }
  const int64_t& front() const { return *begin(); }
  int64_t& back() { return data()[size_ - 1]; }
  const int64_t& back() const { return data()[size_ - 1]; }

  void reserve(size_t count) {
    if (count > capacity_) grow(count);
  }
  void clear() { size_ = 0; }
  void resize(size_t count, int64_t value = 0) {
    reserve(count);
    if (count > size_) std::fill(data() + size_, data() + count, value);
    size_ = static_cast<uint32_t>(count);
  }
  void push_back(int64_t value) {
    if (size_ == capacity_) grow(2 * size_t{capacity_});
    data()[size_++] = value;
  }
  int64_t& emplace_back(int64_t value = 0) {
    push_back(value);
    return back();
  }
  void pop_back() { --size_; }
  void assign(size_t count, int64_t value) {
    clear();
    resize(count, value);
  }
  template <std::input_iterator Iterator>
  void assign(Iterator first, Iterator last) {
    clear();
    if constexpr (std::forward_iterator<Iterator>)
      reserve(static_cast<size_t>(std::distance(first, last)));
    for (; first != last; ++first) push_back(static_cast<int64_t>(*first));
  }
  iterator insert(const_iterator place, int64_t value) { return insert(place, 1, value); }
  iterator insert(const_iterator place, size_t count, int64_t value) {
    iterator to = make_room(place, count);
    std::fill(to, to + count, value);
    return to;
  }
  /// The values are of another object.
  template <std::forward_iterator Iterator>
  iterator insert(const_iterator place, Iterator first, Iterator last) {
    iterator to = make_room(place, static_cast<size_t>(std::distance(first, last)));
    std::copy(first, last, to);
    return to;
  }
  iterator erase(const_iterator place) { return erase(place, place + 1); }
  iterator erase(const_iterator first, const_iterator last) {
    iterator to = begin() + (first - begin());
    std::copy(last, cend(), to);
    size_ -= static_cast<uint32_t>(last - first);
    return to;
  }
  void swap(Sizes& other) noexcept { std::swap(*this, other); }

  friend bool operator==(const Sizes& a, const Sizes& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end());
  }
  friend bool operator<(const Sizes& a, const Sizes& b) {
    return std::lexicographical_compare(a.begin(), a.end(), b.begin(), b.end());
  }

 private:
  static constexpr uint32_t kInline = 6;

  bool is_inline() const { return capacity_ == kInline; }
  size_t checked(size_t i) const {
    if (i >= size_) throw std::out_of_range("no such dimension");
    return i;
  }
  void grow(size_t count) {
    auto* larger = new int64_t[count];
    std::copy(begin(), end(), larger);
    release();
    heap_ = larger;
    capacity_ = static_cast<uint32_t>(count);
  }
  void release() noexcept {
    if (!is_inline()) delete[] heap_;
  }
  /// Leaves `other` empty.
  void take(Sizes& other) noexcept {
    size_ = other.size_;
    capacity_ = other.capacity_;
    std::memcpy(inline_, other.inline_, sizeof inline_);  // or the address in its place
    other.size_ = 0;
    other.capacity_ = kInline;
  }
  iterator make_room(const_iterator place, size_t count) {
    const std::ptrdiff_t at = place - begin();
    const size_t before = size_;
    resize(size_ + count);
    std::copy_backward(begin() + at, begin() + static_cast<std::ptrdiff_t>(before), end());
    return begin() + at;
  }

  uint32_t size_ = 0, capacity_ = kInline;
  union {
    int64_t inline_[kInline] = {};
    int64_t* heap_;
  };
};

}  // namespace ortmodule
