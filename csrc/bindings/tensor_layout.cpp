#include "bindings/tensor_layout.h"

#include <ATen/ops/empty_strided.h>

namespace ortmodule::bindings {

at::Tensor copied(const at::Tensor& x, const Layout& layout) {
  const at::Tensor copy = at::empty_strided(layout.sizes, layout.strides, x.options());
  copy_values(copy, x);
  return copy;
}

void copy_values(const at::Tensor& to, const at::Tensor& x) {
  at::Tensor into = to, from = x;
  for (int64_t d = 0; d < to.dim(); ++d) {
    if (to.size(d) <= 1 || to.stride(d) != 0) continue;
    into = into.narrow(d, 0, 1);
    from = from.narrow(d, 0, 1);
  }
  into.copy_(from);
}

at::Tensor laid_out(const at::Tensor& x, const Layout& layout) {
  bool lies_so = !x.is_neg();
  for (size_t d = 0; d < layout.sizes.size(); ++d)
    lies_so &= layout.sizes[d] == 1 || x.stride(static_cast<int64_t>(d)) == layout.strides[d];
  return lies_so ? x : copied(x, layout);
}

}  // namespace ortmodule::bindings
