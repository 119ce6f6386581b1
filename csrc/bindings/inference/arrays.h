// numpy arrays as tensors of sessions and back, without copies.
#pragma once

#include <pybind11/numpy.h>

#include <memory>
#include <vector>

#include "inference/value.h"

namespace ortmodule::bindings {

/// ONNX's number of a numpy type; 0 if ONNX has no tensors of it.
int element_type_of(const pybind11::dtype& dtype);
/// The numpy type of an element type, from ml_dtypes where numpy has none. Throws Error.
pybind11::dtype numpy_dtype(int element_type);

/// Keeps a Python object until no tensor needs it. May be released by any thread.
std::shared_ptr<void> keep(pybind11::object object);

/// What is fed for an array-like object, in the memory of the array. `held` keeps that memory: the
/// array, or a copy of it where the bytes are not those of native elements.
HostTensorView view_of(pybind11::handle value, std::vector<pybind11::object>& held);

/// The tensor in the array's memory, which it keeps; in that of a copy where view_of makes one.
/// Throws Error if ONNX lacks the type.
SharedTensor shared_tensor(const pybind11::array& array);

/// An array in the tensor's memory, which it keeps; a copy of a tensor on a device.
pybind11::array to_array(const SharedTensor& tensor);
/// An array, a list of arrays for a sequence, None for an empty optional.
pybind11::object to_arrays(const SharedValue& value);

}  // namespace ortmodule::bindings
