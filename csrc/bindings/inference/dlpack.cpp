#include "bindings/inference/dlpack.h"

#include <array>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "inference/copy_elements.h"
#include "onnx/onnx_types.h"

namespace py = pybind11;

namespace ortmodule::bindings {
namespace {

// The structs of DLPack's C interface, version 1.1.
struct Device {
  int32_t type;
  int32_t id;
};
constexpr int32_t kHost = 1;
constexpr int32_t kCuda = 2;
constexpr int32_t kPinnedHost = 3;  // of CUDA; the CPU reads it like any other

struct DataType {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
};

struct Tensor {
  void* data;
  Device device;
  int32_t rank;
  DataType dtype;
  int64_t* sizes;
  int64_t* strides;  // in elements; null: row-major
  uint64_t byte_offset;
};

struct Managed {
  Tensor tensor;
  void* context;
  void (*deleter)(Managed*);
};

struct ManagedVersioned {
  uint32_t major;
  uint32_t minor;
  void* context;
  void (*deleter)(ManagedVersioned*);
  uint64_t flags;
  Tensor tensor;
};
constexpr uint64_t kReadOnly = 1;

constexpr const char* kName = "dltensor";
constexpr const char* kVersionedName = "dltensor_versioned";

struct TypeRow {
  std::string_view onnx;
  uint8_t code;
  uint8_t bits;
};

constexpr std::array<TypeRow, 20> kTypes = {{
    {"int8", 0, 8},
    {"int16", 0, 16},
    {"int32", 0, 32},
    {"int64", 0, 64},
    {"uint8", 1, 8},
    {"uint16", 1, 16},
    {"uint32", 1, 32},
    {"uint64", 1, 64},
    {"float16", 2, 16},
    {"float", 2, 32},
    {"double", 2, 64},
    {"bfloat16", 4, 16},
    {"complex64", 5, 64},
    {"complex128", 5, 128},
    {"bool", 6, 8},
    {"float8e4m3fn", 10, 8},
    {"float8e4m3fnuz", 11, 8},
    {"float8e5m2", 12, 8},
    {"float8e5m2fnuz", 13, 8},
    {"float8e8m0", 14, 8},
}};

int element_type_of(DataType dtype) {
  for (const TypeRow& row : kTypes) {
    if (row.code != dtype.code || row.bits != dtype.bits || dtype.lanes != 1) continue;
    for (int number = 1; const OnnxElement* element = find_onnx_element(number); ++number)
      if (element->name == row.onnx) return number;
  }
  throw Error(str("[dlpack] the element type must be one of ONNX's whole bytes, but found code ",
                  int{dtype.code}, " with ", int{dtype.bits}, " bits and ", dtype.lanes, " lanes"));
}

DataType dtype_of(int element_type) {
  const std::string name = onnx_type_name(element_type);
  for (const TypeRow& row : kTypes)
    if (row.onnx == name) return {row.code, row.bits, 1};
  throw Error(str("[dlpack] DLPack must have the element type, but found ", name));
}

/// What an exported capsule keeps.
template <class Struct>
struct Exported {
  SharedTensor tensor;
  Sizes strides;
  Struct managed{};
};

template <class Struct>
Struct* exported(const SharedTensor& tensor) {
  const DataType dtype = dtype_of(tensor.element_type);
  auto* context = new Exported<Struct>{
      tensor, tensor.strides.empty() ? contiguous_strides(tensor.sizes) : tensor.strides, {}};
  Struct& managed = context->managed;
  managed.context = context;
  managed.deleter = [](Struct* self) { delete static_cast<Exported<Struct>*>(self->context); };
  managed.tensor = {tensor.data,
                    tensor.device == kOnHost ? Device{kHost, 0} : Device{kCuda, tensor.device},
                    static_cast<int32_t>(tensor.sizes.size()),
                    dtype,
                    context->tensor.sizes.data(),
                    context->strides.data(),
                    0};
  return &managed;
}

template <class Struct>
py::capsule capsule_of(Struct* managed, const char* name) {
  // Whoever consumes a capsule renames it and calls the deleter in the end.
  auto destroy = [](PyObject* capsule) {
    for (const char* own : {kName, kVersionedName}) {
      if (!PyCapsule_IsValid(capsule, own)) continue;
      auto* unused = static_cast<Struct*>(PyCapsule_GetPointer(capsule, own));
      unused->deleter(unused);
    }
  };
  return py::capsule(managed, name, destroy);
}

void check_device(int32_t type) {
  ORTM_CHECK(type == kHost || type == kPinnedHost || type == kCuda,
             "[dlpack] the tensor must be in memory of the CPU or of CUDA, but found device type ",
             type, ": move it to the CPU first (tensor.cpu())");
}

SharedTensor described(const Tensor& tensor, std::shared_ptr<void> owner) {
  SharedTensor made;
  made.owner = std::move(owner);
  check_device(tensor.device.type);
  if (tensor.device.type == kCuda) made.device = tensor.device.id;
  made.element_type = element_type_of(tensor.dtype);
  ORTM_CHECK(tensor.rank == 0 || (tensor.rank > 0 && tensor.sizes),
             "[dlpack] the tensor must have sizes, but found rank ", tensor.rank, " without them");
  made.sizes.assign(tensor.sizes, tensor.sizes + tensor.rank);
  tensor_bytes(made.element_type, made.sizes);  // checks the sizes
  if (tensor.strides)
    made.strides = canonical_strides(made.sizes, {tensor.strides, tensor.strides + tensor.rank});
  if (tensor.data) made.data = static_cast<char*>(tensor.data) + tensor.byte_offset;
  return made;
}

/// Takes the content of a capsule over. The caller has checked the name.
template <class Struct>
std::pair<Struct*, std::shared_ptr<void>> consumed(const py::object& capsule, const char* name,
                                                   const char* used_name) {
  auto* managed = static_cast<Struct*>(PyCapsule_GetPointer(capsule.ptr(), name));
  PyCapsule_SetName(capsule.ptr(), used_name);
  std::shared_ptr<void> owner(managed, [](void* held) {
    auto* self = static_cast<Struct*>(held);
    if (!self->deleter || !Py_IsInitialized()) return;
    const py::gil_scoped_acquire gil;
    self->deleter(self);
  });
  return {managed, std::move(owner)};
}

SharedTensor from_capsule(const py::object& capsule) {
  if (PyCapsule_IsValid(capsule.ptr(), kVersionedName)) {
    auto [managed, owner] =
        consumed<ManagedVersioned>(capsule, kVersionedName, "used_dltensor_versioned");
    ORTM_CHECK(managed->major == 1, "[dlpack] the version must be 1, but found ", managed->major);
    SharedTensor tensor = described(managed->tensor, std::move(owner));
    tensor.read_only = (managed->flags & kReadOnly) != 0;
    return tensor;
  }
  if (!PyCapsule_IsValid(capsule.ptr(), kName))
    throw py::type_error(
        "[dlpack] the source must have __dlpack__ or be an unused capsule named 'dltensor', but "
        "found " +
        py::cast<std::string>(py::repr(capsule)).substr(0, 200));
  auto [managed, owner] = consumed<Managed>(capsule, kName, "used_dltensor");
  return described(managed->tensor, std::move(owner));
}

}  // namespace

py::capsule to_dlpack(const SharedTensor& tensor, bool versioned) {
  if (!versioned) {
    if (tensor.read_only)
      throw py::buffer_error(
          "[dlpack] only DLPack 1 can share read-only memory: ask for max_version=(1, 0)");
    return capsule_of(exported<Managed>(tensor), kName);
  }
  auto* managed = exported<ManagedVersioned>(tensor);
  managed->major = 1;
  managed->flags = tensor.read_only ? kReadOnly : 0;
  return capsule_of(managed, kVersionedName);
}

SharedTensor from_dlpack(const py::object& source) {
  if (!py::hasattr(source, "__dlpack__")) return from_capsule(source);
  if (py::hasattr(source, "__dlpack_device__")) {
    const auto device = py::cast<py::tuple>(source.attr("__dlpack_device__")());
    const auto type = py::cast<int32_t>(py::int_(device[0]));
    check_device(type);
  }
  const py::object method = source.attr("__dlpack__");
  try {
    return from_capsule(method(py::arg("max_version") = py::make_tuple(1, 1)));
  } catch (py::error_already_set& error) {
    if (!error.matches(PyExc_TypeError)) throw;  // a producer of before version 1
  }
  return from_capsule(method());
}

}  // namespace ortmodule::bindings
