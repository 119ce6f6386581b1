#include "inference/sized/sized_op.h"

#include "base/error.h"

namespace ortmodule {
namespace {

std::vector<SizedOp>& rows() {
  static std::vector<SizedOp> all;
  return all;
}

}  // namespace

SizedRegistrar::SizedRegistrar(SizedOp op) { rows().push_back(op); }

const SizedOp* find_sized_op(std::string_view op) {
  for (const SizedOp& row : rows())
    if (row.op == op) return &row;
  return nullptr;
}

void SizedCall::check_single(size_t i, DType dtype) const {
  const HostTensorView& x = operand(i);
  ORTM_CHECK(x.dtype == dtype && element_count(x.sizes) == 1, "[run] operand ", i,
             " must be one element of type ", name_of(dtype), ", but found ",
             element_count(x.sizes), " of ", name_of(x.dtype));
}

int64_t SizedCall::integer(size_t i, int64_t fallback) const {
  if (!has(i)) return fallback;
  check_single(i, DType::Int64);
  return *data<int64_t>(i);
}

std::vector<std::string> SizedCall::text_attr(std::string_view name) const {
  std::vector<std::string> texts;
  if (attrs_.has(name))
    for (const int64_t number : attrs_.integers(name)) texts.push_back(texts_->text(number));
  return texts;
}

float SizedCall::number(size_t i, float fallback) const {
  if (!has(i)) return fallback;
  check_single(i, DType::Float32);
  return *data<float>(i);
}

}  // namespace ortmodule
