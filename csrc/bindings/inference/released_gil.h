// Runs of the engine without Python's global lock.
#pragma once

#include <Python.h>
#include <unistd.h>

namespace ortmodule::bindings {

/// Gives up the lock while it lives. A daemon thread that wants it back while the process ends
/// waits for the end: Python would unwind its stack, which ends the process with an error where
/// that reaches a destructor (Python 3.14 waits, too).
class ReleasedGil {
 public:
  ReleasedGil() : thread_(PyEval_SaveThread()) {}
  ~ReleasedGil() {
    try {
      PyEval_RestoreThread(thread_);
    } catch (...) {
      while (true) pause();
    }
  }
  ReleasedGil(const ReleasedGil&) = delete;
  ReleasedGil& operator=(const ReleasedGil&) = delete;

 private:
  PyThreadState* thread_;
};

}  // namespace ortmodule::bindings
