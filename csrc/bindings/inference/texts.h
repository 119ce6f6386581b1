// Texts of numpy arrays as numbers for the engine, and its numbers as texts and maps of Python.
#pragma once

#include <pybind11/numpy.h>

#include <vector>

#include "inference/host_tensor.h"
#include "inference/run_texts.h"

namespace ortmodule::bindings {

/// Whether the elements are texts: of type str, bytes or object.
bool has_texts(const pybind11::array& array);
/// The numbers of texts, in an array that `held` keeps. Objects are turned into str, as onnxruntime
/// does.
HostTensorView text_numbers(const pybind11::array& array, RunTexts& texts,
                            std::vector<pybind11::object>& held);
/// An output of texts as an array of str objects, one of maps as a list of dicts.
pybind11::object to_texts_or_maps(const HostResult& result, const RunTexts& texts);

}  // namespace ortmodule::bindings
