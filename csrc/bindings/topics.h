// Each bind_<topic>.cpp defines one of these; module.cpp calls them.
#pragma once

#include <pybind11/pybind11.h>

namespace ortmodule::bindings {

void init_build(pybind11::module_& m);
void init_builder(pybind11::module_& m);
void init_graph(pybind11::module_& m);
void init_session(pybind11::module_& m);

}  // namespace ortmodule::bindings
