#include "kernels/aten/counted_rows.h"

#include <cstring>

#include "kernels/dtype_dispatch.h"
#include "kernels/scalar_math.h"

namespace ortmodule::loss_head {

CountedRows::CountedRows(const TensorView& x, const TensorView& labels, int64_t ignore_index)
    : x_(x), labels_(labels), ignore_index_(ignore_index) {
  for (int64_t row = 0; row < x.sizes[0]; ++row) count_ += counts(row);
}

int64_t CountedRows::label(int64_t row) const {
  return labels_.dtype == DType::Int64 ? labels_.as<int64_t>()[row] : labels_.as<int32_t>()[row];
}

// An ignored row that is not finite makes the gradients NaN, as in eager PyTorch.
bool CountedRows::counts(int64_t row) const {
  if (label(row) != ignore_index_) return true;
  bool finite = true;
  dispatch_float(x_.dtype, [&]<class T> {
    const T* from = x_.as<T>() + row * x_.sizes[1];
    ComputeOf<T> sum = 0;  // of zeros and NaN
    for (int64_t i = 0; i < x_.sizes[1]; ++i) sum += computed(from[i]) * ComputeOf<T>(0);
    finite = sum == 0;
  });
  return !finite;
}

void CountedRows::gather(int64_t count, void* x, void* labels) {
  const size_t row_bytes = static_cast<size_t>(x_.sizes[1]) * size_of(x_.dtype);
  char* to = static_cast<char*>(x);
  for (int64_t i = 0; i < count; ++i, to += row_bytes) {
    while (next_ < x_.sizes[0] && !counts(next_)) ++next_;
    const bool there = next_ < x_.sizes[0];
    const int64_t label_of_row = there ? label(next_) : ignore_index_;
    if (labels_.dtype == DType::Int64)
      static_cast<int64_t*>(labels)[i] = label_of_row;
    else
      static_cast<int32_t*>(labels)[i] = static_cast<int32_t>(label_of_row);
    if (there)
      std::memcpy(to, x_.as<char>() + static_cast<size_t>(next_++) * row_bytes, row_bytes);
    else
      std::memset(to, 0, row_bytes);
  }
}

void CountedRows::spread(const TensorView& dx) const {
  const size_t row_bytes = static_cast<size_t>(dx.sizes[1]) * size_of(dx.dtype);
  const auto place = [&](int64_t row) {
    return dx.as<char>() + static_cast<size_t>(row) * row_bytes;
  };
  int64_t dense = count_;
  for (int64_t row = dx.sizes[0]; row-- > 0;) {
    if (!counts(row))
      std::memset(place(row), 0, row_bytes);
    else if (--dense != row)
      std::memcpy(place(row), place(dense), row_bytes);
  }
}

}  // namespace ortmodule::loss_head
