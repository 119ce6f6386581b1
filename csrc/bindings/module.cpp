// The Python module: one line per topic.
#include "bindings/topics.h"

PYBIND11_MODULE(_C, m) {
  using namespace ortmodule::bindings;
  m.doc() = "The C++ engine of ortmodule_py.";
  init_build(m);
}
