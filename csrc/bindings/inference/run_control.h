// What another thread can do to a run.
#pragma once

#include <atomic>

namespace ortmodule::bindings {

struct RunControl {
  std::atomic<bool> terminate{false};
};

}  // namespace ortmodule::bindings
