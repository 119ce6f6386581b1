#include "onnx/onnx_substitutes.h"

#include <utility>

#include "base/layout.h"
#include "base/narrow_number.h"
#include "onnx/onnx_types.h"

namespace ortmodule {

OnnxTensor substitute(int element_type, std::vector<int64_t> sizes, SharedBytes elements) {
  OnnxTensor tensor{onnx_dtype(element_type), std::move(sizes), std::move(elements), element_type};
  const int bits = packed_bits(tensor.dtype);  // 0: of a type that the engine lacks
  if (bits == 0 || bits >= 8) return tensor;
  const int64_t count = element_count(tensor.dims);
  std::string packed(static_cast<size_t>((count * bits + 7) / 8), '\0');
  pack_elements(tensor.bytes.data(), count, tensor.dtype, packed.data());
  tensor.bytes = std::move(packed);
  return tensor;
}

}  // namespace ortmodule
