#include "bindings/inference/arrays.h"

#include <array>
#include <string>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "inference/copy_elements.h"
#include "onnx/onnx_types.h"

namespace py = pybind11;

namespace ortmodule::bindings {
namespace {

struct NumpyName {
  std::string_view name;
  std::string_view onnx;
};

// Types of ml_dtypes.
constexpr std::array<NumpyName, 11> kNames = {{
    {"bfloat16", "bfloat16"},
    {"float8_e4m3fn", "float8e4m3fn"},
    {"float8_e4m3fnuz", "float8e4m3fnuz"},
    {"float8_e5m2", "float8e5m2"},
    {"float8_e5m2fnuz", "float8e5m2fnuz"},
    {"float8_e8m0fnu", "float8e8m0"},
    {"float4_e2m1fn", "float4e2m1"},
    {"int4", "int4"},
    {"uint4", "uint4"},
    {"int2", "int2"},
    {"uint2", "uint2"},
}};

int builtin_element_type(const py::dtype& dtype) {
  const auto bytes = dtype.itemsize();
  switch (dtype.kind()) {
    case 'b': return 9;
    case 'i': return bytes == 8 ? 7 : bytes == 4 ? 6 : bytes == 2 ? 5 : bytes == 1 ? 3 : 0;
    case 'u': return bytes == 8 ? 13 : bytes == 4 ? 12 : bytes == 2 ? 4 : bytes == 1 ? 2 : 0;
    case 'f': return bytes == 8 ? 11 : bytes == 4 ? 1 : bytes == 2 ? 10 : 0;
    case 'c': return bytes == 8 ? 14 : bytes == 16 ? 15 : 0;
    default: return 0;
  }
}

int number_of(std::string_view onnx_name) {
  for (int number = 1; const OnnxElement* element = find_onnx_element(number); ++number)
    if (element->name == onnx_name) return number;
  return 0;
}

bool is_native(const py::dtype& dtype) {
  const char order = dtype.byteorder();
  return order != '>' && order != '<';  // numpy writes '=' for the machine's own
}

// The strides in elements; false if they are no multiples of the element size.
bool element_strides(const py::array& array, Sizes& strides) {
  strides.clear();
  if ((array.flags() & py::array::c_style) != 0 || array.itemsize() == 0) return true;
  for (py::ssize_t d = 0; d < array.ndim(); ++d) {
    if (array.strides(d) % array.itemsize() != 0 && array.shape(d) > 1) return false;
    strides.push_back(array.strides(d) / array.itemsize());
  }
  return true;
}

Sizes sizes_of(const py::array& array) { return {array.shape(), array.shape() + array.ndim()}; }

// The array, or a row-major copy if its elements are in another byte order or not at multiples of
// their size.
py::array addressable(py::array array, Sizes& strides) {
  if (is_native(array.dtype()) && element_strides(array, strides)) return array;
  strides.clear();
  return array.attr("astype")(array.dtype().attr("newbyteorder")("="), "C");
}

// numpy's number of a builtin type (NPY_TYPES), -1 if it has none.
int builtin_number(int element_type) {
  constexpr std::array<int, 16> kNumbers = {-1, 11, 2, 1, 4, 3, 5, 7, -1, 0, 23, 12, 6, 8, 14, 15};
  const auto number = static_cast<size_t>(element_type);
  return number < kNumbers.size() ? kNumbers[number] : -1;
}

}  // namespace

int element_type_of(const py::dtype& dtype) {
  constexpr int kUserDefined = 256;  // NPY_USERDEF
  if (dtype.num() < kUserDefined) return builtin_element_type(dtype);
  const auto name = py::cast<std::string>(dtype.attr("name"));
  for (const NumpyName& row : kNames)
    if (row.name == name) return number_of(row.onnx);
  return 0;
}

py::dtype numpy_dtype(int element_type) {
  if (const int number = builtin_number(element_type); number >= 0) return py::dtype(number);
  const std::string name = onnx_type_name(element_type);
  for (const NumpyName& row : kNames) {
    if (row.onnx != name) continue;
    try {
      return py::dtype::from_args(
          py::module_::import("ml_dtypes").attr(std::string(row.name).c_str()));
    } catch (const py::error_already_set&) {
      throw Error(str("[numpy] an array of type ", name,
                      " needs the package ml_dtypes: install it, or use from_dlpack"));
    }
  }
  throw Error(str("[numpy] numpy must have the element type, but found ", name));
}

std::shared_ptr<void> keep(py::object object) {
  return {object.release().ptr(), [](void* held) {
            if (!Py_IsInitialized()) return;  // at the end of the process nothing can be released
            const py::gil_scoped_acquire gil;
            Py_DECREF(static_cast<PyObject*>(held));
          }};
}

HostTensorView view_of(py::handle value, std::vector<py::object>& held) {
  py::array array = py::array::ensure(value);
  if (!array) throw py::error_already_set();
  HostTensorView view;
  array = addressable(std::move(array), view.strides);
  view.dtype = onnx_dtype(element_type_of(array.dtype()));
  view.sizes = sizes_of(array);
  view.data = array.data();
  held.push_back(std::move(array));
  return view;
}

SharedTensor shared_tensor(const py::array& given) {
  SharedTensor tensor;
  const py::array array = addressable(given, tensor.strides);
  tensor.element_type = element_type_of(array.dtype());
  ORTM_CHECK(tensor.element_type != 0,
             "[OrtValue] a numpy array must have a numeric type of ONNX, ", "but found ",
             py::cast<std::string>(py::str(array.dtype())));
  tensor.sizes = sizes_of(array);
  tensor.strides = canonical_strides(tensor.sizes, tensor.strides);
  tensor.data = const_cast<void*>(array.data());  // NOLINT: read_only says whether it is written
  tensor.read_only = !array.writeable();
  tensor.owner = keep(array);
  return tensor;
}

py::array to_array(const SharedTensor& given) {
  const SharedTensor tensor = on_host(given);
  const py::dtype dtype = numpy_dtype(tensor.element_type);
  std::vector<py::ssize_t> strides;
  for (int64_t stride : tensor.strides) strides.push_back(stride * dtype.itemsize());
  auto owner = std::make_unique<std::shared_ptr<void>>(tensor.owner);
  const py::capsule base(owner.release(),
                         [](void* held) { delete static_cast<std::shared_ptr<void>*>(held); });
  py::array array(dtype, std::vector<py::ssize_t>(tensor.sizes.begin(), tensor.sizes.end()),
                  strides, tensor.data, base);
  if (tensor.read_only) array.attr("flags").attr("writeable") = false;
  return array;
}

py::object to_arrays(const SharedValue& value) {
  if (!value.has_value()) return py::none();
  if (!value.is_sequence) return to_array(value.tensors[0]);
  py::list arrays;
  for (const SharedTensor& tensor : value.tensors) arrays.append(to_array(tensor));
  return arrays;
}

}  // namespace ortmodule::bindings
