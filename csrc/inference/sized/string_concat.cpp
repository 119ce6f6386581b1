// StringConcat: texts one after the other, broadcast to each other.
#include "base/error.h"
#include "base/layout.h"
#include "inference/sized/sized_op.h"

namespace ortmodule {
namespace {

Sizes concat_sizes(const SizedCall& call) {
  const Sizes &a = call.operand(0).sizes, &b = call.operand(1).sizes;
  Sizes sizes(std::max(a.size(), b.size()));
  const auto size_of_axis = [&](const Sizes& of, size_t from_back) {
    return from_back < of.size() ? of[of.size() - 1 - from_back] : 1;
  };
  for (size_t d = 0; d < sizes.size(); ++d) {
    const int64_t x = size_of_axis(a, d), y = size_of_axis(b, d);
    ORTM_CHECK(x == y || x == 1 || y == 1, "[run] operands must broadcast, but found sizes ", x,
               " and ", y);
    sizes[sizes.size() - 1 - d] = x == 1 ? y : x;
  }
  return sizes;
}

// Of an operand that is repeated along the axes where it has one element.
Sizes repeated_strides(const Sizes& of, const Sizes& sizes) {
  const Sizes dense = contiguous_strides(of);
  Sizes strides(sizes.size(), 0);
  for (size_t d = 0; d < of.size(); ++d)
    if (of[d] != 1) strides[sizes.size() - of.size() + d] = dense[d];
  return strides;
}

void run_string_concat(const SizedCall& call) {
  const Sizes sizes = concat_sizes(call);
  const Sizes a = repeated_strides(call.operand(0).sizes, sizes),
              b = repeated_strides(call.operand(1).sizes, sizes);
  const Sizes dense = contiguous_strides(sizes);
  int64_t* to = call.texts_result(sizes);
  for (int64_t i = 0; i < element_count(sizes); ++i) {
    int64_t left = 0, right = 0;
    for (size_t d = 0; d < sizes.size(); ++d) {
      const int64_t index = i / dense[d] % sizes[d];
      left += index * a[d];
      right += index * b[d];
    }
    to[i] = call.texts().number(call.text(0, left) + call.text(1, right));
  }
}

std::vector<SizedResult> most_string_concat(const SizedCall& call) {
  return {{DType::Int64, concat_sizes(call)}};
}

const SizedRegistrar kStringConcat({"StringConcat", run_string_concat, most_string_concat});

}  // namespace
}  // namespace ortmodule
