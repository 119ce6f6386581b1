// Each bind_<topic>.cpp defines one of these; module.cpp calls them.
#pragma once

#include <pybind11/pybind11.h>

namespace ortmodule::bindings {

void init_budget(pybind11::module_& m);
void init_build(pybind11::module_& m);
void init_builder(pybind11::module_& m);
void init_costs(pybind11::module_& m);
void init_graph(pybind11::module_& m);
void init_onnx(pybind11::module_& m);
void init_ops(pybind11::module_& m);
void init_options(pybind11::module_& m);
void init_optim(pybind11::module_& m);
void init_run_device(pybind11::module_& m);
void init_session(pybind11::module_& m);

class CompiledPiece;

/// Stashes, rows, layers and the choice of the memory optimizer; None before the first forward.
/// Here and below: for the first shapes, or with `last` for those of the last forward.
pybind11::object memory_facts(CompiledPiece& piece, bool last);
/// The live range of each storage, with or without the memory optimizer.
pybind11::object timeline(CompiledPiece& piece, bool optimized, bool last);
/// Peak and time if exactly row `row` of memory_facts() were applied.
pybind11::object row_figures(CompiledPiece& piece, size_t row, bool last);
pybind11::object decision_figures(CompiledPiece& piece,
                                  const std::vector<std::pair<size_t, int>>& decisions);

}  // namespace ortmodule::bindings
