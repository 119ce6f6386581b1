// Matrix products of torch tensors into planned memory, by the library that is fastest for them.
#pragma once

#include <ATen/core/Tensor.h>

namespace ortmodule {

/// y = alpha * a @ b, of matrices or of batches of them.
void matrix_product(const at::Tensor& y, const at::Tensor& a, const at::Tensor& b, double alpha);

/// y = alpha * a @ b + beta * c of matrices; c broadcasts to y.
void matrix_product_plus(const at::Tensor& y, const at::Tensor& c, const at::Tensor& a,
                         const at::Tensor& b, double beta, double alpha);

/// Bytes that such a product takes from torch's allocator while it runs; the data is not read.
size_t matrix_product_bytes(const at::Tensor& y, const at::Tensor& a, const at::Tensor& b,
                            double beta);

}  // namespace ortmodule
