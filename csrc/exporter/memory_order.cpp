#include "exporter/memory_order.h"

#include <numeric>
#include <string>
#include <utility>

#include "base/layout.h"

namespace ortmodule {
namespace {

/// The dims, innermost first, as TensorIterator orders them: an insertion sort by stride, starting
/// from row-major order. Of equal strides the longer dim is the outer one. A stride of 0 compares
/// equal to any other, which is not a total order, so the result depends on the steps of the sort.
std::vector<size_t> innermost_first(const std::vector<bool>& is_long, const Sizes& strides) {
  std::vector<size_t> dims(strides.size());
  std::iota(dims.rbegin(), dims.rend(), size_t{0});
  const auto compare = [&](size_t a, size_t b) {
    if (strides[a] == 0 || strides[b] == 0) return 0;
    if (strides[a] != strides[b]) return strides[a] < strides[b] ? -1 : 1;
    return is_long[a] && !is_long[b] ? 1 : 0;
  };
  for (size_t i = 1; i < dims.size(); ++i) {
    size_t at = i;
    for (size_t other = i; other-- > 0;) {
      const int sign = compare(dims[other], dims[at]);
      if (sign < 0) break;
      if (sign > 0) std::swap(dims[other], dims[std::exchange(at, other)]);
    }
  }
  return dims;
}

/// Evaluates strides at an arbitrary size: they are multiples of each other, so the order is the
/// same for all sizes.
Sizes for_some_size(const Dims& strides) {
  constexpr int64_t kAnySize = 64;
  std::vector<std::string> symbols;
  for (const DimExpr& stride : strides) stride.collect_symbols(symbols);
  SymbolValues values;
  for (const std::string& symbol : symbols) values.bind(symbol, kAnySize);
  Sizes numbers;
  for (const DimExpr& stride : strides) numbers.push_back(stride.evaluate(values));
  return numbers;
}

}  // namespace

std::vector<int64_t> dense_order(const Dims& sizes, const Dims& strides) {
  const size_t rank = strides.size() == sizes.size() ? sizes.size() : 0;
  std::vector<int64_t> order;
  std::vector<bool> placed(rank, false);
  for (DimExpr expected = 1; order.size() < rank;) {
    size_t next = rank;
    for (size_t d = rank; d-- > 0 && next == rank;)
      if (!placed[d] && (sizes[d] == DimExpr(1) || strides[d] == expected)) next = d;
    if (next == rank) return {};
    placed[next] = true;
    expected = expected * sizes[next];
    order.insert(order.begin(), static_cast<int64_t>(next));
  }
  return order;
}

std::vector<int64_t> order_in_likeness(const Dims& sizes, const Dims& strides) {
  const Sizes steps = for_some_size(strides);
  std::vector<int64_t> order;  // dims of size 1 first
  std::vector<bool> is_long;
  for (size_t d = 0; d < steps.size(); ++d) {
    is_long.push_back(sizes[d] != DimExpr(1));
    if (!is_long[d]) order.push_back(static_cast<int64_t>(d));
    for (size_t other = 0; other < d; ++other)
      if (is_long[d] && is_long[other] && steps[d] != 0 && steps[d] == steps[other]) return {};
  }
  const std::vector<size_t> inner = innermost_first(is_long, steps);
  for (auto d = inner.rbegin(); d != inner.rend(); ++d)
    if (is_long[*d]) order.push_back(static_cast<int64_t>(*d));
  return order;
}

}  // namespace ortmodule
