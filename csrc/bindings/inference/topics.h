// The parts of the Python module of inference sessions.
#pragma once

#include <pybind11/pybind11.h>

namespace ortmodule::bindings {

void bind_values(pybind11::module_& m);
/// After the class of sessions.
void bind_io_binding(pybind11::module_& m);
/// Models as files, and their quantization.
void bind_quantization(pybind11::module_& m);

}  // namespace ortmodule::bindings
