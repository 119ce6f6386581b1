// The Python module: one line per topic.
#include "bindings/cpu_memory_stats.h"
#include "bindings/topics.h"

PYBIND11_MODULE(_C, m) {
  using namespace ortmodule::bindings;
  m.doc() = "The C++ engine of ortmodule_py.";
  init_build(m);
  init_graph(m);
  init_builder(m);
  init_budget(m);
  init_costs(m);
  init_onnx(m);
  init_ops(m);
  init_optim(m);
  init_options(m);
  init_run_device(m);
  init_session(m);
  ortmodule::init_cpu_memory_stats(m);
}
