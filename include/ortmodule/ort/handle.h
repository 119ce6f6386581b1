// Handles of namespace Ort: each class holds a pointer to its plain counterpart (OrtSession ...).
#pragma once

#include <ortmodule/ort/exception.h>

#include <utility>

namespace Ort::detail {

/// Throws if a handle was made of nullptr.
template <class T>
T& checked(T* pointer, const char* what) {
  if (!pointer) refuse(std::string("[") + what + "] the handle must not be empty");
  return *pointer;
}

/// A handle that owns. Move-only; nullptr makes an empty one.
template <class T>
class Base {
 public:
  using contained_type = T;

  constexpr Base() = default;
  constexpr explicit Base(T* pointer) noexcept : p_(pointer) {}
  Base(const Base&) = delete;
  Base& operator=(const Base&) = delete;
  Base(Base&& other) noexcept : p_(other.release()) {}
  Base& operator=(Base&& other) noexcept {
    if (this != &other) {
      delete p_;
      p_ = other.release();
    }
    return *this;
  }
  ~Base() { delete p_; }

  constexpr operator T*() const noexcept { return p_; }
  /// Gives up ownership: whoever gets the pointer puts it into a handle again.
  T* release() {
    T* pointer = p_;
    p_ = nullptr;
    return pointer;
  }

 protected:
  T* p_ = nullptr;
};

/// A handle that does not own: it is valid as long as the owner.
template <class T>
class Unowned {
 public:
  using contained_type = T;

  constexpr Unowned() = default;
  constexpr explicit Unowned(T* pointer) noexcept : p_(pointer) {}
  template <class U>
  constexpr Unowned(const Base<U>& owner) noexcept : p_(static_cast<U*>(owner)) {}

  constexpr operator T*() const noexcept { return p_; }
  T* release() {
    T* pointer = p_;
    p_ = nullptr;
    return pointer;
  }

 protected:
  T* p_ = nullptr;
};

}  // namespace Ort::detail
