// Import of NonZero: known of small contents, else a SizedOp.
#include "ops/onnx_call.h"

namespace ortmodule {
namespace {

std::optional<std::vector<KnownValue>> known_non_zero(OnnxCall& c) {
  const KnownValue* x = c.known(0);
  if (!x || x->dims.size() > 1 || c.is_input_content(*x)) return std::nullopt;
  KnownValue result{DType::Int64, {1, 0}, {}};
  for (size_t i = 0; i < x->elements.size(); ++i) {
    const KnownNumber& number = x->elements.at(i);
    const bool zero =
        number.is_real() ? number.real() == 0 : c.sizes().equal(number.numerator(), 0);
    if (!zero) result.elements.emplace_back(static_cast<int64_t>(i));
  }
  result.dims.at(1) = static_cast<int64_t>(result.elements.size());
  return std::vector{std::move(result)};
}

Attrs sized_non_zero(OnnxCall& c) {
  c.dims(0);
  return {};
}

REGISTER_ONNX({{"NonZero", 9, nullptr, known_non_zero, "", sized_non_zero}});

}  // namespace
}  // namespace ortmodule
