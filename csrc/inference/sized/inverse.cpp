// Inverse: of each matrix, by Gauss-Jordan elimination with the largest pivots, in double.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/element_value.h"
#include "base/error.h"
#include "inference/sized/element_reader.h"
#include "inference/sized/sized_op.h"

namespace ortmodule {
namespace {

// Compilers make vectors of these for any machine; a loop over doubles stays one at this level.
typedef double FourDoubles __attribute__((vector_size(32)));

// row -= times * pivot
void subtract_row(double* row, const double* pivot, double times, size_t size) {
  size_t i = 0;
  for (; i + 4 <= size; i += 4) {
    FourDoubles from, to;
    std::memcpy(&from, pivot + i, sizeof(from));
    std::memcpy(&to, row + i, sizeof(to));
    to -= from * times;
    std::memcpy(row + i, &to, sizeof(to));
  }
  for (; i < size; ++i) row[i] -= times * pivot[i];
}

// a becomes its inverse, column by column of the identity in place of those that are done; what has
// none gets numbers that are not finite.
void invert(std::vector<double>& a, std::vector<size_t>& pivots, size_t size) {
  for (size_t column = 0; column < size; ++column) {
    size_t pivot = column;
    for (size_t row = column + 1; row < size; ++row)
      if (std::abs(a[row * size + column]) > std::abs(a[pivot * size + column])) pivot = row;
    pivots[column] = pivot;
    double* own = a.data() + column * size;
    if (pivot != column) std::swap_ranges(own, own + size, a.data() + pivot * size);
    const double factor = 1 / std::exchange(own[column], 1.0);
    for (size_t i = 0; i < size; ++i) own[i] *= factor;
    for (size_t row = 0; row < size; ++row) {
      if (row == column) continue;
      double* other = a.data() + row * size;
      const double times = std::exchange(other[column], 0.0);
      if (times != 0) subtract_row(other, own, times, size);
    }
  }
  for (size_t column = size; column-- > 0;)
    for (size_t row = 0; row < size && pivots[column] != column; ++row)
      std::swap(a[row * size + column], a[row * size + pivots[column]]);
}

void run_inverse(const SizedCall& call) {
  const HostTensorView& x = call.operand(0);
  const auto size = static_cast<size_t>(x.sizes.back());
  const size_t elements = size * size;
  auto* to = call.result<char>(x.dtype, x.sizes);
  std::vector<double> a(elements);
  std::vector<size_t> pivots(size);
  const int64_t matrices =
      elements == 0 ? 0 : element_count(x.sizes) / static_cast<int64_t>(elements);
  with_reader(x, [&](const auto& read) {
    for (int64_t m = 0; m < matrices; ++m) {
      const int64_t first = m * static_cast<int64_t>(elements);
      for (size_t i = 0; i < elements; ++i)
        a[i] = static_cast<double>(read(first + static_cast<int64_t>(i)));
      invert(a, pivots, size);
      for (size_t i = 0; i < elements; ++i)
        store_real(to + (static_cast<size_t>(first) + i) * size_of(x.dtype), x.dtype, a[i]);
    }
  });
}

std::vector<SizedResult> most_inverse(const SizedCall& call) {
  return {{call.operand(0).dtype, call.operand(0).sizes}};
}

const SizedRegistrar kInverse({"Inverse", run_inverse, most_inverse});

}  // namespace
}  // namespace ortmodule
