// Errors of the engine as Python exceptions, whatever bytes their messages hold.
#pragma once

#include <pybind11/pybind11.h>

#include <cstring>
#include <exception>

namespace ortmodule::bindings {

/// Sets Python's error. Bytes that are no UTF-8, as of a path, are written as \xNN.
inline void set_python_error(pybind11::handle type, const char* message) {
  namespace py = pybind11;
  const auto text = py::reinterpret_steal<py::object>(PyUnicode_DecodeUTF8(
      message, static_cast<Py_ssize_t>(std::strlen(message)), "backslashreplace"));
  if (text) PyErr_SetObject(type.ptr(), text.ptr());  // else decoding has set an error
}

/// Translates E for the functions of all modules, or, if `local`, for those of `m` alone.
template <class E>
void register_error(pybind11::module_& m, const char* name, pybind11::handle base, bool local) {
  namespace py = pybind11;
  static py::handle type;
  type = py::exception<E>(m, name, base).release();  // lives as long as the process
  const auto translate = [](std::exception_ptr error) {
    try {
      if (error) std::rethrow_exception(error);
    } catch (const E& thrown) {
      set_python_error(type, thrown.what());
    }
  };
  if (local)
    py::register_local_exception_translator(translate);
  else
    py::register_exception_translator(translate);
}

}  // namespace ortmodule::bindings
