// A plan as Python values, for tables and pictures.
#pragma once

#include <pybind11/pybind11.h>

#include "plan/plan.h"

namespace ortmodule::bindings {

/// The live range and place of each storage, and the bytes that are allocated at each step.
pybind11::dict plan_timeline(const Plan& plan);

}  // namespace ortmodule::bindings
