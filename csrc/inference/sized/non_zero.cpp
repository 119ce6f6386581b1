// NonZero: the indices of the elements that are not zero, int64[rank, count], in row-major order.
// They are counted, then written. A scalar counts as a vector, as in stock onnxruntime.
#include <algorithm>

#include "inference/sized/element_reader.h"
#include "inference/sized/sized_op.h"

namespace ortmodule {
namespace {

void run_non_zero(const SizedCall& call) {
  const HostTensorView& x = call.operand(0);
  const int64_t elements = element_count(x.sizes);
  const Sizes sizes = x.sizes.empty() ? Sizes{1} : x.sizes;
  const auto rank = static_cast<int64_t>(sizes.size());
  with_reader(x, [&](const auto& read) {
    int64_t count = 0;
    for (int64_t i = 0; i < elements; ++i) count += read(i) != 0;
    auto* places = call.result<int64_t>(DType::Int64, {rank, count});
    if (count == 0) return;
    Sizes at(sizes.size(), 0);
    int64_t found = 0;
    for (int64_t i = 0; i < elements; ++i) {
      if (read(i) != 0) {
        for (int64_t d = 0; d < rank; ++d) places[d * count + found] = at[static_cast<size_t>(d)];
        ++found;
      }
      for (size_t d = at.size(); d-- > 0 && ++at[d] == sizes[d];) at[d] = 0;
    }
  });
}

std::vector<SizedResult> most_non_zero(const SizedCall& call) {
  const Sizes& sizes = call.operand(0).sizes;
  return {{DType::Int64,
           {std::max<int64_t>(1, static_cast<int64_t>(sizes.size())), element_count(sizes)}}};
}

const SizedRegistrar kOp({"NonZero", run_non_zero, most_non_zero});

}  // namespace
}  // namespace ortmodule
