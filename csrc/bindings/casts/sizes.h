// How C++ values become Python's: pybind11's casts, and those of types of ours that are containers.
#pragma once

#include <pybind11/stl.h>
#include <pybind11/stl/filesystem.h>

#include "base/sizes.h"

namespace pybind11::detail {

/// A list of integers.
template <>
struct type_caster<ortmodule::Sizes> : list_caster<ortmodule::Sizes, int64_t> {};

}  // namespace pybind11::detail
