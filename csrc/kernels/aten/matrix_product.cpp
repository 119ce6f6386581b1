#include "kernels/aten/matrix_product.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/baddbmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <optional>

#include "kernels/aten/library_probe.h"

namespace at::native {

// result = alpha * mat1 @ mat2 + beta * result by oneDNN. libtorch exports it, but ships no header
// for it: weak, so that a build without it leaves all products to torch.
[[gnu::weak]] void mkldnn_matmul(const Tensor& mat1, const Tensor& mat2, const Tensor& result,
                                 float beta, float alpha);

}  // namespace at::native

namespace ortmodule {
namespace {

/// Torch's float32 products are MKL's, which uses no AVX-512 on processors of AMD; oneDNN does
/// (Zen 4, one core, layers of width 256 to 1024: 85 to 105 GFLOP/s against 70 to 90). The choice
/// depends on the machine, the sizes and the strides only, so that a step gives the same bits
/// again.
bool onednn_is_faster() {
  static const bool faster = [] {
#if defined(__x86_64__)
    __builtin_cpu_init();
    return at::native::mkldnn_matmul != nullptr && __builtin_cpu_is("amd") &&
           isa_available(Isa::Avx512);
#else
    return false;
#endif
  }();
  return faster && at::globalContext().userEnabledMkldnn();
}

bool is_row_major(const at::Tensor& x) { return x.stride(1) == 1 && x.stride(0) == x.size(1); }
bool is_column_major(const at::Tensor& x) { return x.stride(0) == 1 && x.stride(1) == x.size(0); }

/// The dimension that batch and length go into, and that changes with them: the rows of a and y in
/// a layer's forward and in the gradient of its input, the inner one in that of its weight.
enum class LongDim { Rows, Inner };

std::optional<LongDim> long_dim(const at::Tensor& y, const at::Tensor& a, const at::Tensor& b) {
  const bool plain = y.dim() == 2 && y.scalar_type() == at::kFloat && y.is_cpu() && is_row_major(y);
  if (!plain || !onednn_is_faster()) return std::nullopt;
  if (is_row_major(a) && (is_row_major(b) || is_column_major(b))) return LongDim::Rows;
  if (is_column_major(a) && is_row_major(b)) return LongDim::Inner;
  return std::nullopt;
}

/// oneDNN generates code for each combination of sizes, which takes milliseconds, most where they
/// are no powers of two. So the long dimension goes in parts of a few lengths, and no new batch or
/// sequence length waits for code; what is left goes to torch. The code takes memory as well, about
/// 1 MiB for each length, which no plan sees: products of little memory are left to torch.
struct Parts {
  std::array<int64_t, 3> lengths{};
  int64_t end = 0;  // where the rest begins

  /// Nothing if the parts do not pay: each reads the whole of the other matrix again. `row_bytes`
  /// of the matrices with the long dimension, `other_bytes` of the one without.
  static std::optional<Parts> of(int64_t size, int64_t row_bytes, int64_t other_bytes) {
    constexpr int64_t kLeastBytes = 8 << 20;  // of a part
    constexpr int64_t kRowsPerReading = 200;  // oneDNN gains about as much time in so many rows
    Parts parts;
    int64_t readings = -1;
    for (int64_t& part : parts.lengths) {
      for (const int64_t length : {2048, 1024, 512, 256, 128, 64})
        if (part == 0 && length <= size - parts.end &&
            length * row_bytes + other_bytes >= kLeastBytes)
          part = length;
      parts.end += part;
      readings += part > 0;
    }
    readings += parts.end < size;
    const bool pays = size - readings * kRowsPerReading >= size / 2;
    if (!pays || parts.end == 0) return std::nullopt;
    return parts;
  }

  template <class Run>
  void run(Run part) const {
    int64_t begin = 0;
    for (const int64_t length : lengths) {
      if (length > 0) part(begin, length);
      begin += length;
    }
  }
};

/// How oneDNN makes a product, if it is to.
struct OnednnProduct {
  LongDim dim;
  Parts parts;

  static std::optional<OnednnProduct> of(const at::Tensor& y, const at::Tensor& a,
                                         const at::Tensor& b) {
    const auto dim = long_dim(y, a, b);
    if (!dim) return std::nullopt;
    const bool rows = *dim == LongDim::Rows;
    const int64_t other = a.size(rows ? 1 : 0), columns = b.size(1), item = a.element_size();
    const auto parts =
        Parts::of(a.size(rows ? 0 : 1), (other + columns) * item, other * columns * item);
    if (!parts) return std::nullopt;
    return OnednnProduct{*dim, *parts};
  }
};

void torch_product(const at::Tensor& y, const at::Tensor& c, const at::Tensor& a,
                   const at::Tensor& b, double beta, double alpha) {
  at::Tensor target = y;
  if (beta == 0.0 && alpha == 1.0)
    at::mm_out(target, a, b);
  else
    at::addmm_out(target, c, a, b, beta, alpha);
}

/// y = alpha * a @ b + beta * y.
void accumulate(const at::Tensor& y, const at::Tensor& a, const at::Tensor& b,
                const OnednnProduct& how, double beta, double alpha) {
  const auto scale = static_cast<float>(alpha);
  const bool rows = how.dim == LongDim::Rows;
  const int64_t end = how.parts.end, rest = a.size(rows ? 0 : 1) - end;
  how.parts.run([&](int64_t begin, int64_t length) {
    if (rows)
      at::native::mkldnn_matmul(a.narrow(0, begin, length), b, y.narrow(0, begin, length),
                                static_cast<float>(beta), scale);
    else
      at::native::mkldnn_matmul(a.narrow(1, begin, length), b.narrow(0, begin, length), y,
                                begin == 0 ? static_cast<float>(beta) : 1.0F, scale);
  });
  if (rest == 0) return;
  if (rows) {
    const at::Tensor last = y.narrow(0, end, rest);
    torch_product(last, last, a.narrow(0, end, rest), b, beta, alpha);
  } else {
    torch_product(y, y, a.narrow(1, end, rest), b.narrow(0, end, rest), 1.0, alpha);
  }
}

/// What oneDNN takes for one part, into which it copies blocks of its operands: a call on zeros
/// tells, one for each combination of sizes in this process.
size_t part_bytes(const OnednnProduct& how, int64_t length, const at::Tensor& a,
                  const at::Tensor& b, double beta) {
  static std::mutex mutex;
  static std::map<std::array<int64_t, 7>, size_t> known;
  const bool rows = how.dim == LongDim::Rows;
  const int64_t other = a.size(rows ? 1 : 0);
  const std::array<int64_t, 7> key{
      rows, length, other, b.size(1), b.stride(1) == 1, beta != 0.0, at::get_num_threads()};
  const std::lock_guard lock(mutex);
  if (const auto found = known.find(key); found != known.end()) return found->second;
  const int64_t inner = rows ? other : length, columns = b.size(1);
  // Products of zeros are zeros, so one memory serves as both operands and the result.
  const at::Tensor memory =
      at::zeros({std::max({length * other, inner * columns, (rows ? length : other) * columns})});
  const auto matrix = [&](int64_t m, int64_t n) { return memory.narrow(0, 0, m * n).view({m, n}); };
  const at::Tensor part = matrix(length, other);
  const at::Tensor part_b = is_row_major(b) ? matrix(inner, columns) : matrix(columns, inner).t();
  return known[key] = bytes_taken_by([&] {
           at::native::mkldnn_matmul(rows ? part : part.t(), part_b,
                                     matrix(rows ? length : other, columns),
                                     static_cast<float>(beta), 1);
         });
}

}  // namespace

size_t matrix_product_bytes(const at::Tensor& y, const at::Tensor& a, const at::Tensor& b,
                            double beta) {
  const bool plain_sum = beta == 0.0 || beta == 1.0;
  const auto how = plain_sum ? OnednnProduct::of(y, a, b) : std::nullopt;
  size_t bytes = 0;
  if (how)
    how->parts.run([&](int64_t begin, int64_t length) {
      const bool adds = beta != 0.0 || (how->dim == LongDim::Inner && begin > 0);
      bytes = std::max(bytes, part_bytes(*how, length, a, b, adds ? 1.0 : 0.0));
    });
  return bytes;
}

void matrix_product(const at::Tensor& y, const at::Tensor& a, const at::Tensor& b, double alpha) {
  at::Tensor target = y;
  if (y.dim() == 3 && alpha == 1.0) {
    at::bmm_out(target, a, b);
  } else if (y.dim() == 3) {
    at::baddbmm_out(target, y, a, b, 0, alpha);
  } else {
    matrix_product_plus(y, y, a, b, 0, alpha);
  }
}

void matrix_product_plus(const at::Tensor& y, const at::Tensor& c, const at::Tensor& a,
                         const at::Tensor& b, double beta, double alpha) {
  const bool plain_sum = beta == 0.0 || beta == 1.0;
  const auto how = plain_sum ? OnednnProduct::of(y, a, b) : std::nullopt;
  if (!how) {
    torch_product(y, c, a, b, beta, alpha);
    return;
  }
  if (beta != 0.0 && !c.is_same(y)) y.copy_(c);
  accumulate(y, a, b, *how, beta, alpha);
}

}  // namespace ortmodule
