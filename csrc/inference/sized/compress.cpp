// Compress: the slices of x along `axis` for which the condition holds; without an axis, of all
// elements in row-major order. Slices beyond the condition are left out.
#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "inference/sized/sized_op.h"

namespace ortmodule {
namespace {

struct Split {
  int64_t outer = 1, along = 1, inner = 1;

  explicit Split(const SizedCall& call) {
    const Sizes& sizes = call.operand(0).sizes;
    along = element_count(sizes);
    if (!call.attrs().has("axis")) return;
    const auto axis = static_cast<size_t>(call.attrs().integer("axis"));
    along = sizes[axis];
    for (size_t d = 0; d < sizes.size(); ++d)
      (d < axis ? outer : inner) *= d == axis ? 1 : sizes[d];
  }
};

Sizes sizes_of(const SizedCall& call, int64_t kept) {
  if (!call.attrs().has("axis")) return {kept};
  Sizes sizes = call.operand(0).sizes;
  sizes[static_cast<size_t>(call.attrs().integer("axis"))] = kept;
  return sizes;
}

int64_t candidates(const SizedCall& call, const Split& split) {
  const HostTensorView& condition = call.operand(1);
  ORTM_CHECK(condition.dtype == DType::Bool && condition.sizes.size() == 1,
             "[Compress] the condition must be a vector of bools, but found ",
             name_of(condition.dtype), " of rank ", condition.sizes.size());
  return std::min(condition.sizes[0], split.along);
}

void run_compress(const SizedCall& call) {
  const Split split(call);
  const int64_t most = candidates(call, split);
  const auto* condition = call.data<uint8_t>(1);
  const int64_t kept =
      std::count_if(condition, condition + most, [](uint8_t holds) { return holds != 0; });
  const HostTensorView& x = call.operand(0);
  const auto slice = static_cast<size_t>(split.inner) * size_of(x.dtype);
  const Sizes sizes = sizes_of(call, kept);
  auto* to = x.texts ? reinterpret_cast<char*>(call.texts_result(sizes))
                     : call.result<char>(x.dtype, sizes);
  const auto* from = call.data<char>(0);
  for (int64_t outer = 0; outer < split.outer; ++outer)
    for (int64_t i = 0; i < most; ++i) {
      if (condition[i] == 0 || slice == 0) continue;
      std::memcpy(to, from + static_cast<size_t>(outer * split.along + i) * slice, slice);
      to += slice;
    }
}

std::vector<SizedResult> most_compress(const SizedCall& call) {
  return {{call.operand(0).dtype, sizes_of(call, candidates(call, Split(call)))}};
}

const SizedRegistrar kOp({"Compress", run_compress, most_compress});

}  // namespace
}  // namespace ortmodule
