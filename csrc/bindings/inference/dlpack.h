// Tensors shared with other libraries through DLPack (dmlc.github.io/dlpack), in both directions.
#pragma once

#include <pybind11/pybind11.h>

#include "inference/value.h"

namespace ortmodule::bindings {

/// A capsule that shares the tensor's memory: "dltensor_versioned" for consumers of version 1 on,
/// else "dltensor". Throws BufferError for a read-only tensor in the latter, which cannot say so.
pybind11::capsule to_dlpack(const SharedTensor& tensor, bool versioned);

/// A tensor in the memory of an object with `__dlpack__`, or of a capsule, which is then used up.
/// Throws TypeError for other objects, and Error for memory of devices and for element types that
/// ONNX lacks.
SharedTensor from_dlpack(const pybind11::object& source);

}  // namespace ortmodule::bindings
