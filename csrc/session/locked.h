// Access to an object that a mutex guards.
#pragma once

#include <mutex>

namespace ortmodule {

/// Holds the mutex as long as it lives, which as a temporary is to the end of the expression. No
/// expression may hold two of one mutex.
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
