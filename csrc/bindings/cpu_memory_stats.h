#pragma once

#include <pybind11/pybind11.h>

namespace ortmodule {

// Adds the submodule `cpu_memory`: a counting wrapper around torch's CPU allocator.
// It does nothing until its `install()` is called from Python.
void init_cpu_memory_stats(pybind11::module_& m);

}  // namespace ortmodule
