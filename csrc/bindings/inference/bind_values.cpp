// Values of inference sessions, as Python sees them (the native part of OrtValue).
#include <pybind11/pybind11.h>

#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "bindings/casts/sizes.h"
#include "bindings/inference/arrays.h"
#include "bindings/inference/dlpack.h"
#include "bindings/inference/topics.h"

namespace py = pybind11;

namespace ortmodule::bindings {
namespace {

SharedValue from_numpy(const py::array& array) { return shared_tensor(array); }

SharedValue from_numpy_as(const py::array& array, int element_type) {
  SharedTensor tensor = shared_tensor(array);
  const int64_t bytes = tensor.byte_count();
  ORTM_CHECK(tensor_bytes(element_type, tensor.sizes) == bytes,
             "[OrtValue] elements of the array must have the size of those of the ONNX type, but ",
             "found ", bytes, " bytes for ", tensor_bytes(element_type, tensor.sizes));
  tensor.element_type = element_type;
  return tensor;
}

SharedValue from_pointer(uintptr_t address, int element_type, const Sizes& sizes, int device) {
  const int64_t bytes = tensor_bytes(element_type, sizes);
  ORTM_CHECK(address != 0 || bytes == 0,
             "[bind] the buffer must have an address, but found 0 (None binds without a buffer)");
  SharedTensor tensor;
  tensor.element_type = element_type;
  tensor.sizes = sizes;
  tensor.data = reinterpret_cast<void*>(address);  // NOLINT: the caller's address
  tensor.device = device;
  return tensor;
}

py::capsule dlpack(const SharedValue& value, const py::object& max_version,
                   const py::object& copy) {
  const bool versioned =
      !max_version.is_none() && py::cast<int>(py::cast<py::tuple>(max_version)[0]) >= 1;
  const SharedTensor& tensor = value.tensor();
  if (!copy.is_none() && py::cast<bool>(copy)) return to_dlpack(copy_of(tensor), versioned);
  return to_dlpack(tensor, versioned);
}

SharedValue sequence_of(const std::vector<SharedValue>& values) {
  SharedValue sequence;
  sequence.is_sequence = true;
  for (const SharedValue& value : values) sequence.tensors.push_back(value.tensor());
  return sequence;
}

}  // namespace

void bind_values(py::module_& m) {
  m.def("element_type", &element_type_of, py::arg("dtype"),
        "ONNX's number of a numpy type, 0 if there is none.");
  py::class_<SharedValue>(m, "Value", "A tensor or a sequence of tensors, without copies.")
      .def_static("from_numpy", &from_numpy, py::arg("array"))
      .def_static("from_numpy_as", &from_numpy_as, py::arg("array"), py::arg("element_type"))
      .def_static("from_pointer", &from_pointer, py::arg("address"), py::arg("element_type"),
                  py::arg("sizes"), py::arg("device") = kOnHost)
      .def_static(
          "from_dlpack", [](const py::object& source) { return SharedValue(from_dlpack(source)); },
          py::arg("source"))
      .def_static(
          "zeros",
          [](int element_type, const Sizes& sizes, int device) {
            return SharedValue(new_tensor(element_type, sizes, device));
          },
          py::arg("element_type"), py::arg("sizes"), py::arg("device") = kOnHost)
      .def_static("sequence", &sequence_of, py::arg("values"))
      .def("is_tensor", &SharedValue::is_tensor)
      .def("is_tensor_sequence", [](const SharedValue& value) { return value.is_sequence; })
      .def("has_value", &SharedValue::has_value)
      .def("data_type", &SharedValue::type_text)
      .def("shape", [](const SharedValue& value) { return value.tensor().sizes; })
      .def("element_type", [](const SharedValue& value) { return value.tensor().element_type; })
      .def("tensor_size_in_bytes",
           [](const SharedValue& value) { return value.tensor().byte_count(); })
      .def(
          "data_ptr",
          [](const SharedValue& value) { return reinterpret_cast<uintptr_t>(value.tensor().data); })
      .def_property_readonly("device",
                             [](const SharedValue& value) {
                               return value.tensors.empty() ? kOnHost : value.tensors[0].device;
                             })
      .def("device_name",
           [](const SharedValue& value) {
             const bool host = value.tensors.empty() || value.tensors[0].device == kOnHost;
             return host ? "Cpu" : "Cuda";
           })
      .def("numpy", [](const SharedValue& value) { return to_array(value.tensor()); })
      .def("arrays", &to_arrays, "An array, a list of arrays, or None.")
      .def("update_inplace",
           [](const SharedValue& value, const SharedValue& from) {
             copy_tensor(from.tensor(), value.tensor());
           })
      .def("to_dlpack", [](const SharedValue& value) { return to_dlpack(value.tensor(), false); })
      .def("__dlpack__", &dlpack, py::kw_only(), py::arg("max_version") = py::none(),
           py::arg("copy") = py::none());
}

}  // namespace ortmodule::bindings
