// Inverse: of each matrix, by Gauss-Jordan elimination with the largest pivots, in double.
#include <cmath>
#include <utility>

#include "base/element_value.h"
#include "base/error.h"
#include "inference/sized/element_reader.h"
#include "inference/sized/sized_op.h"

namespace ortmodule {
namespace {

// a becomes the identity, y its inverse; what has none gets numbers that are not finite.
void invert(std::vector<double>& a, std::vector<double>& y, size_t size) {
  for (size_t column = 0; column < size; ++column) {
    size_t pivot = column;
    for (size_t row = column + 1; row < size; ++row)
      if (std::abs(a[row * size + column]) > std::abs(a[pivot * size + column])) pivot = row;
    for (size_t i = 0; i < size && pivot != column; ++i) {
      std::swap(a[pivot * size + i], a[column * size + i]);
      std::swap(y[pivot * size + i], y[column * size + i]);
    }
    const double factor = 1 / a[column * size + column];
    for (size_t i = 0; i < size; ++i) {
      a[column * size + i] *= factor;
      y[column * size + i] *= factor;
    }
    for (size_t row = 0; row < size; ++row) {
      const double times = a[row * size + column];
      if (row == column || times == 0) continue;
      for (size_t i = 0; i < size; ++i) {
        a[row * size + i] -= times * a[column * size + i];
        y[row * size + i] -= times * y[column * size + i];
      }
    }
  }
}

void run_inverse(const SizedCall& call) {
  const HostTensorView& x = call.operand(0);
  const auto size = static_cast<size_t>(x.sizes.back());
  const size_t elements = size * size;
  auto* to = call.result<char>(x.dtype, x.sizes);
  std::vector<double> a(elements), y(elements);
  const int64_t matrices =
      elements == 0 ? 0 : element_count(x.sizes) / static_cast<int64_t>(elements);
  with_reader(x, [&](const auto& read) {
    for (int64_t m = 0; m < matrices; ++m) {
      const int64_t first = m * static_cast<int64_t>(elements);
      for (size_t i = 0; i < elements; ++i) {
        a[i] = static_cast<double>(read(first + static_cast<int64_t>(i)));
        y[i] = i % (size + 1) == 0 ? 1 : 0;
      }
      invert(a, y, size);
      for (size_t i = 0; i < elements; ++i)
        store_real(to + (static_cast<size_t>(first) + i) * size_of(x.dtype), x.dtype, y[i]);
    }
  });
}

std::vector<SizedResult> most_inverse(const SizedCall& call) {
  return {{call.operand(0).dtype, call.operand(0).sizes}};
}

const SizedRegistrar kInverse({"Inverse", run_inverse, most_inverse});

}  // namespace
}  // namespace ortmodule
