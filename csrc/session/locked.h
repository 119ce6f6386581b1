// Access to an object that a mutex guards.
#pragma once

#include <mutex>

namespace ortmodule {

/// Holds the mutex for its lifetime: as a temporary, to the end of the expression. An expression
/// must not contain two of the same mutex, which would deadlock.
template <class T>
class Locked {
 public:
  Locked(std::mutex& mutex, T& guarded) : lock_(mutex), guarded_(guarded) {}
  T* operator->() const { return &guarded_; }

 private:
  std::unique_lock<std::mutex> lock_;
  T& guarded_;
};

}  // namespace ortmodule
