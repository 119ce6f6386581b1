// GroupedMatMul and GroupedOuterProduct of float32 and float64: a blocked product for each group,
// on rows and weights where they lie.
#include "kernels/cpu/blocked_product.h"
#include "kernels/grouped_rows.h"

namespace ortmodule {
inline namespace ORTM_ISA {
namespace {

template <class T>
StridedMatrix<const T> matrix_of(const TensorView& view) {
  const int r = view.rank - 2;
  return {view.as<T>(), view.sizes[r], view.sizes[r + 1], view.strides[r], view.strides[r + 1]};
}

template <class T>
void multiply(const KernelContext& context, const StridedMatrix<const T>& a,
              const StridedMatrix<const T>& b, T* y) {
  if (a.columns == 0) return static_cast<void>(std::fill_n(y, a.rows * b.columns, T(0)));
  const BlockedProduct<T> product(a.rows, b.columns, a.columns);
  const int64_t work = a.rows * b.columns * a.columns;
  const int64_t each = std::max<int64_t>(1, ceil_div(work, product.units()));
  parallel_ranges(
      context, product.units(), ceil_div(int64_t{1} << 20, each),
      [&](int64_t begin, int64_t end) { product.run(begin, end, a, b, T(1), false, y); });
}

template <class T>
void multiply_groups(const KernelArgs& args) {
  const auto x = matrix_of<T>(args.in[0]), w = matrix_of<T>(args.in[1]);
  T* y = args.out[0].as<T>();
  const int64_t end =
      for_each_group(args.in[2], x.rows, [&](int64_t e, int64_t first, int64_t count) {
        if (count * w.columns == 0) return;
        auto own = w;
        own.data += e * args.in[1].strides[0];
        multiply<T>(args.context, x.row_range(first, count), own, y + first * w.columns);
      });
  std::fill_n(y + end * w.columns, (x.rows - end) * w.columns, T(0));
}

template <class T>
void sum_outer_products(const KernelArgs& args) {
  const auto a = matrix_of<T>(args.in[0]), b = matrix_of<T>(args.in[1]);
  const int64_t elements = a.columns * b.columns;
  for_each_group(args.in[2], a.rows, [&](int64_t e, int64_t first, int64_t count) {
    T* y = args.out[0].as<T>() + e * elements;
    if (count == 0) std::fill_n(y, elements, T(0));
    if (count * elements == 0) return;
    multiply<T>(args.context, a.row_range(first, count).transposed(), b.row_range(first, count), y);
  });
}

template <bool outer>
void run_grouped(const KernelArgs& args) {
  if (args.in[0].dtype == DType::Float64)
    return outer ? sum_outer_products<double>(args) : multiply_groups<double>(args);
  return outer ? sum_outer_products<float>(args) : multiply_groups<float>(args);
}

KernelDef grouped_kernel(std::string_view op, std::string_view name,
                         void (*run)(const KernelArgs&)) {
  return {.op = op,
          .name = name,
          .dtypes = kFloats,
          .run = run,
          .input_rules = {LayoutRule::Matrix, LayoutRule::Matrix, LayoutRule::Contiguous},
          .priority = 2};
}

REGISTER_CPU_KERNEL((grouped_kernel("GroupedMatMul", "grouped_matmul_cpu", run_grouped<false>)));
REGISTER_CPU_KERNEL((grouped_kernel("GroupedOuterProduct", "grouped_outer_product_cpu",
                                    run_grouped<true>)));

}  // namespace
}  // namespace ORTM_ISA
}  // namespace ortmodule
