// WidenedMatMul and MatMulNBits: the blocked product of tiled_product.h, whose right factor is
// widened and scaled while it is packed, so that no more than half a MiB of it exists in 32 bits.
// Few rows stream 16-bit floats, and blocks of few bits.
#include "kernels/cpu/block_product.h"
#include "kernels/cpu/streamed_product.h"

namespace ortmodule {
inline namespace ORTM_ISA {
namespace {

constexpr int64_t kWidth = kPanelWidth<float>;

/// y = x times a factor that pack(first, inner, column, width, to) packs as pack_panels does.
template <class Pack>
void multiply(const KernelArgs& args, const Pack& pack) {
  const ProductRows rows = product_rows(args);
  if (rows.rows > 0) multiply_panels(args.context, rows, pack);
}

// --- 8 bits --------------------------------------------------------------------------------------
/// What each index along an axis is scaled and shifted by.
struct Steps {
  const float* scale = nullptr;
  const void* zero = nullptr;
  int64_t scale_stride = 0, zero_stride = 0;
  float number = 1.0f;  // the scale, if it is no operand

  explicit Steps(const KernelArgs& args)
      : number(static_cast<float>(args.facts.node().attrs.number("number", 1.0))) {
    if (args.in.size() > 2 && args.in[2].data) {
      scale = args.in[2].as<float>();
      scale_stride = args.in[2].element_count() == 1 ? 0 : 1;
    }
    if (args.in.size() > 3 && args.in[3].data) {
      zero = args.in[3].data;
      zero_stride = args.in[3].element_count() == 1 ? 0 : 1;
    }
  }
  float scale_of(int64_t i) const { return scale ? scale[i * scale_stride] : number; }
  template <class T>
  float zero_of(int64_t i) const {
    return zero ? static_cast<float>(static_cast<const T*>(zero)[i * zero_stride]) : 0.0f;
  }
};

/// A panel of `count` columns from `column` on, rows [first, first + inner).
template <class T>
void widen_panel(const StridedMatrix<const T>& w, const Steps& steps, bool by_row, int64_t first,
                 int64_t inner, int64_t column, int64_t count, float* to) {
  const int64_t lanes = whole_vectors<float>(count);
  float scales[kWidth], zeros[kWidth];
  for (int64_t j = 0; j < count; ++j) {
    scales[j] = by_row ? 1.0f : steps.scale_of(column + j);
    zeros[j] = by_row ? 0.0f : steps.zero_of<T>(column + j);
  }
  for (int64_t r = 0; r < inner; ++r, to += lanes) {
    const T* from = w.data + (first + r) * w.row_stride + column * w.column_stride;
    if (by_row) {
      const float scale = steps.scale_of(first + r), zero = steps.zero_of<T>(first + r);
      for (int64_t j = 0; j < count; ++j)
        to[j] = (static_cast<float>(from[j * w.column_stride]) - zero) * scale;
    } else if (w.column_stride == 1) {
      ORTM_SIMD
      for (int64_t j = 0; j < count; ++j)
        to[j] = (static_cast<float>(from[j]) - zeros[j]) * scales[j];
    } else {
      for (int64_t j = 0; j < count; ++j)
        to[j] = (static_cast<float>(from[j * w.column_stride]) - zeros[j]) * scales[j];
    }
    std::fill(to + count, to + lanes, 0.0f);
  }
}

template <class T>
void multiply_bytes(const KernelArgs& args) {
  const TensorView& view = args.in[1];
  const StridedMatrix<const T> w{view.as<T>(), view.sizes[0], view.sizes[1], view.strides[0],
                                 view.strides[1]};
  const Steps steps(args);
  const bool by_row = args.facts.node().attrs.integer("axis") == 0;
  multiply(args, [&](int64_t first, int64_t inner, int64_t column, int64_t width, float* to) {
    for (int64_t begin = 0; begin < width; begin += kWidth) {
      const int64_t count = std::min(kWidth, width - begin);
      widen_panel(w, steps, by_row, first, inner, column + begin, count, to);
      to += inner * whole_vectors<float>(count);
    }
  });
}

// --- 16 bits -------------------------------------------------------------------------------------
template <class T>
void stream_halves(const KernelArgs& args, const StridedMatrix<const T>& w, int64_t rows) {
  const StreamedProduct<T, float> product(rows, w.columns, w.rows);
  const StridedMatrix<const float> x{args.in[0].as<float>(), rows, w.rows, w.rows, 1};
  const int64_t each = std::max<int64_t>(1, ceil_div(rows * w.columns * w.rows, product.units()));
  parallel_ranges(args.context, product.units(), ceil_div(StreamedProduct<T, float>::kGrain, each),
                  [&](int64_t begin, int64_t end) {
                    product.run(begin, end, x, w, 1.0f, false, args.out[0].as<float>());
                  });
}

template <class T>
void multiply_halves(const KernelArgs& args) {
  const TensorView &view = args.in[1], &y = args.out[0];
  const StridedMatrix<const T> w{view.as<T>(), view.sizes[0], view.sizes[1], view.strides[0],
                                 view.strides[1]};
  const int64_t rows = w.columns == 0 ? 0 : y.element_count() / w.columns;
  if (rows > 0 && StreamedProduct<T, float>::pays(rows, w.columns, w.rows, w.row_stride == 1))
    return stream_halves(args, w, rows);
  multiply(args, [&](int64_t first, int64_t inner, int64_t column, int64_t width, float* to) {
    const T* from = w.data + first * w.row_stride + column * w.column_stride;
    pack_panels<float>(StridedMatrix<const T>{from, inner, width, w.row_stride, w.column_stride},
                       to);
  });
}

void widened_matmul(const KernelArgs& args) {
  switch (args.in[1].dtype) {
    case DType::Int8: return multiply_bytes<int8_t>(args);
    case DType::UInt8: return multiply_bytes<uint8_t>(args);
    case DType::Float16: return multiply_halves<Float16>(args);
    default: return multiply_halves<BFloat16>(args);
  }
}

// --- few bits ------------------------------------------------------------------------------------
void matmul_n_bits(const KernelArgs& args) {
  const BlockWeights w = block_weights(args);
  const ProductRows rows = product_rows(args);
  if (rows.rows == 0) return;
  with_bits(args.facts.node().attrs.integer("bits"),
            [&](auto bits) { multiply_blocks<decltype(bits)::value>(args.context, rows, w); });
}

REGISTER_CPU_KERNEL({.op = "WidenedMatMul",
                     .name = "widened_matmul_cpu",
                     .dtypes = {DType::Float32},
                     .run = widened_matmul,
                     .input_rules = {LayoutRule::Contiguous, LayoutRule::Any}});
REGISTER_CPU_KERNEL({.op = "MatMulNBits",
                     .name = "matmul_n_bits_cpu",
                     .dtypes = {DType::Float32},
                     .run = matmul_n_bits});

}  // namespace
}  // namespace ORTM_ISA
}  // namespace ortmodule
