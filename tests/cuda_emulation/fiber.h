// A function with a stack of its own, which can pause and be resumed.
#pragma once

#include <exception>
#include <functional>
#include <memory>

namespace ortmodule::cuda::emulation {

/// Runs one function after another on its stack. Not movable: contexts point into it.
class Fiber {
 public:
  Fiber();
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  /// Begins `body`, which must outlive the run; returns when it ends or pauses.
  void start(const std::function<void()>& body);
  /// Goes on after pause().
  void resume();
  /// From inside the body: returns to whoever started or resumed it.
  void pause();
  bool finished() const { return finished_; }
  /// Rethrows what the body threw.
  void rethrow();

 private:
  struct Context;
  static void enter();
  void switch_in();

  std::unique_ptr<Context> context_;
  const std::function<void()>* body_ = nullptr;
  std::exception_ptr failure_;
  bool finished_ = true;
};

}  // namespace ortmodule::cuda::emulation
