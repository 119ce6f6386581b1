// MatMulInteger, MatMulIntegerToFloat, and both on packed weights; PackIntegerMatrix packs them.
// With a' and b' the factors as they are multiplied (integer_product.h) and their zero points:
//   y[i, j] = sum a' b' - za'[i] (column[j] - inner zb'[j]) - zb'[j] row[i]
// where column and row are the sums of b's columns and of a's rows.
#include "kernels/cpu/integer_copies.h"
#include "kernels/cpu/integer_finish.h"
#include "kernels/cpu/integer_matrix.h"
#include "kernels/matmul_problem.h"

namespace ortmodule {
inline namespace ORTM_ISA {
namespace {

using Product = IntegerProduct<IntegerDot>;

constexpr uint8_t kSignBit = 0x80;
/// Multiplications worth waking a thread.
constexpr int64_t kGrain = 1 << 22;

/// Where a step has its operands; -1: the op has none such.
struct Places {
  int a_scale = -1, b_scale = -1, a_zero = -1, b_zero = -1, bias = -1, y_scale = -1, y_zero = -1;
};

struct IntegerProblem {
  MatMulProblem product;
  Places places;
  bool packed = false;
  uint8_t flip_a = 0;     // what makes a unsigned
  uint8_t flip_b = 0;     // what makes b signed
  float b_number = 1.0f;  // the scale of b, if it is no operand

  int64_t matrices() const { return product.batch * static_cast<int64_t>(product.calls.size()); }
  /// Numbers of 32 bits that a matrix of the batch needs: a term for each column, a sum for each
  /// row.
  int64_t scratch() const { return product.columns + product.rows; }
};

MatMulProblem packed_problem(const StepFacts& facts) {
  const Layout& a = facts.inputs[0].layout;
  MatMulProblem p;
  p.inner = a.sizes.back();
  p.rows = element_count(a.sizes) / std::max<int64_t>(p.inner, 1);
  if (p.inner == 0) p.rows = element_count({a.sizes.begin(), a.sizes.end() - 1});
  p.columns = facts.node().attrs.integer("columns");
  p.a = {p.inner, false, 0};
  p.calls = {{}};
  return p;
}

IntegerProblem problem_of(const StepFacts& facts) {
  IntegerProblem p;
  p.packed = facts.node().op == "PackedMatMulInteger";
  p.product = p.packed ? packed_problem(facts) : matmul_problem(facts);
  p.places =
      facts.node().op == "MatMulInteger" ? Places{-1, -1, 2, 3} : Places{2, 3, 4, 5, 6, 7, 8};
  p.flip_a = facts.inputs[0].dtype == DType::Int8 ? kSignBit : 0;
  const bool unsigned_b =
      p.packed ? facts.node().attrs.flag("unsigned_b") : facts.inputs[1].dtype == DType::UInt8;
  p.flip_b = unsigned_b ? kSignBit : 0;
  p.b_number = static_cast<float>(facts.node().attrs.number("b_number", 1.0));
  return p;
}

std::shared_ptr<const void> prepare(const StepFacts& facts) {
  return std::make_shared<const IntegerProblem>(problem_of(facts));
}

size_t workspace_bytes(const StepFacts& facts) {
  const IntegerProblem p = problem_of(facts);
  return static_cast<size_t>(p.matrices() * p.scratch()) * sizeof(int32_t);
}

/// The matrices and terms of one product.
class Run {
 public:
  Run(const KernelArgs& args, const IntegerProblem& p)
      : args_(args),
        p_(p),
        a_scale_(args, p.places.a_scale),
        b_scale_(args, p.places.b_scale),
        a_zero_(args, p.places.a_zero),
        b_zero_(args, p.places.b_zero),
        bias_(args, p.places.bias),
        results_(args, p.places.y_scale, p.places.y_zero) {
    has_b_zero_ = p.flip_b != 0;
    for (int64_t j = 0; j < (b_zero_.stride == 0 ? 1 : p.product.columns); ++j)
      has_b_zero_ = has_b_zero_ || b_zero_.point(j) != 0;
  }

  void run() const {
    const MatMulProblem& m = p_.product;
    if (m.rows == 0 || m.columns == 0 || p_.matrices() == 0) return;
    parallel_ranges(args_.context, p_.matrices(), grain_for(m.rows + m.columns),
                    [&](int64_t begin, int64_t end) {
                      for (int64_t i = begin; i < end; ++i) make_terms(i);
                    });
#if defined(ORTM_INTEGER_RESTS)
    const int64_t together = p_.packed ? rests().together() : 0;
    if (together == 2) return multiply<FoursDot>();
    if (together == 1) return multiply<PairsDot>();
#endif
    multiply<IntegerDot>();
  }

 private:
  template <class Dot>
  void multiply() const {
    const MatMulProblem& m = p_.product;
    const IntegerProduct<Dot> product(m.rows, m.columns, m.inner);
    const int64_t units = product.units();
    const int64_t each = std::max<int64_t>(1, ceil_div(m.rows * m.columns * m.inner, units));
    parallel_ranges(args_.context, p_.matrices() * units, ceil_div(kGrain, each),
                    [&](int64_t begin, int64_t end) {
                      while (begin < end) {
                        const int64_t i = begin / units, first = begin % units;
                        const int64_t count = std::min(units - first, end - begin);
                        run_units(product, i, first, first + count);
                        begin += count;
                      }
                    });
  }

  template <class T>
  static StridedMatrix<const T> matrix(const void* data, int64_t offset, const BlasMatrix& m,
                                       int64_t rows, int64_t columns) {
    const T* from = static_cast<const T*>(data) + offset;
    if (m.flipped) return {from, rows, columns, 1, m.leading};
    return {from, rows, columns, m.leading, 1};
  }
  const BlasOffsets& call(int64_t i) const {
    return p_.product.calls[static_cast<size_t>(i / p_.product.batch)];
  }
  StridedMatrix<const uint8_t> left(int64_t i) const {
    const MatMulProblem& m = p_.product;
    return matrix<uint8_t>(args_.in[0].data, call(i).a + i % m.batch * m.a.batch_stride, m.a,
                           m.rows, m.inner);
  }
  StridedMatrix<const int8_t> right(int64_t i) const {
    const MatMulProblem& m = p_.product;
    return matrix<int8_t>(args_.in[1].data, call(i).b + i % m.batch * m.b.batch_stride, m.b,
                          m.inner, m.columns);
  }
  int32_t* column_terms(int64_t i) const {
    return static_cast<int32_t*>(args_.workspace) + i * p_.scratch();
  }
  int32_t* row_sums(int64_t i) const { return column_terms(i) + p_.product.columns; }

  WeightRests rests() const {
    const MatMulProblem& m = p_.product;
    return {args_.in[1].as<int8_t>(), m.inner, m.columns, Product::piece_of(m.inner)};
  }

  int32_t a_point(int64_t row) const {
    return a_zero_.point(row) + (p_.flip_a ? int32_t{kSignBit} : 0);
  }
  int32_t b_point(int64_t column) const {
    return b_zero_.point(column) - (p_.flip_b ? int32_t{kSignBit} : 0);
  }

  void make_terms(int64_t i) const {
    const MatMulProblem& m = p_.product;
    int32_t* terms = column_terms(i);
    if (p_.packed) {
      const int64_t bytes = padded_columns(m.columns) * padded_inner(m.inner);
      std::memcpy(terms, args_.in[1].as<int8_t>() + bytes,
                  static_cast<size_t>(m.columns) * sizeof(int32_t));
    } else {
      std::fill_n(terms, m.columns, 0);
      add_integer_columns(right(i), static_cast<int8_t>(p_.flip_b), terms);
    }
    if (!has_b_zero_) return;
    const auto inner = static_cast<uint32_t>(m.inner);
    for (int64_t j = 0; j < m.columns; ++j)
      terms[j] = static_cast<int32_t>(static_cast<uint32_t>(terms[j]) -
                                      inner * static_cast<uint32_t>(b_point(j)));
    const StridedMatrix<const uint8_t> a = left(i);
    for (int64_t row = 0; row < m.rows; ++row)
      row_sums(i)[row] =
          integer_row_sum(a.data + row * a.row_stride, a.column_stride, m.inner, p_.flip_a);
  }

  template <class Dot>
  auto left_part(int64_t i) const {
    using Tile = IntegerTile<Dot>;
    return [a = left(i), flip = p_.flip_a](int64_t row, int64_t rows, int64_t first, int64_t inner,
                                           typename Dot::Left* to, typename Tile::Rows& part) {
      const uint8_t* from = a.data + row * a.row_stride + first * a.column_stride;
      if constexpr (sizeof(*to) == 1)
        if (flip == 0 && a.column_stride == 1 && Tile::are_steps(inner) &&
            !shares_cache_lines(a.row_stride))
          return part.set(from, a.row_stride, rows, inner);
      pack_integer_rows<Dot>({from, rows, inner, a.row_stride, a.column_stride}, flip, to, part);
    };
  }

  auto store_part(int64_t i) const {
    const MatMulProblem& m = p_.product;
    const int64_t y = call(i).y + i % m.batch * m.y.batch_stride;
    return [this, i, y](int64_t row, int64_t rows, int64_t column, int64_t columns, int32_t* sums,
                        int64_t stride) {
      finish(i, row, rows, column, columns, sums, stride);
      const int64_t at = y + row * p_.product.columns + column;
      if (a_scale_)
        store_scaled(rows, column, columns, sums, stride, at);
      else
        for (int64_t r = 0; r < rows; ++r)
          std::copy_n(sums + r * stride, columns,
                      args_.out[0].as<int32_t>() + at + r * p_.product.columns);
    };
  }

  // Takes the zero points off the sums.
  void finish(int64_t i, int64_t row, int64_t rows, int64_t column, int64_t columns, int32_t* sums,
              int64_t stride) const {
    const int32_t* terms = column_terms(i) + column;
    const bool one_point = b_zero_.stride == 0;
    for (int64_t r = 0; r < rows; ++r) {
      auto* sum = reinterpret_cast<uint32_t*>(sums + r * stride);
      const auto za = static_cast<uint32_t>(a_point(row + r));
      if (za != 0) {
        ORTM_SIMD
        for (int64_t j = 0; j < columns; ++j) sum[j] -= za * static_cast<uint32_t>(terms[j]);
      }
      if (!has_b_zero_) continue;
      const auto row_sum = static_cast<uint32_t>(row_sums(i)[row + r]);
      if (one_point) {
        const uint32_t term = static_cast<uint32_t>(b_point(0)) * row_sum;
        for (int64_t j = 0; j < columns; ++j) sum[j] -= term;
      } else {
        for (int64_t j = 0; j < columns; ++j)
          sum[j] -= static_cast<uint32_t>(b_point(column + j)) * row_sum;
      }
    }
  }

  void store_scaled(int64_t rows, int64_t column, int64_t columns, int32_t* sums, int64_t stride,
                    int64_t at) const {
    float factors[Product::kMostColumns], biases[Product::kMostColumns],
        steps[Product::kMostColumns], offsets[Product::kMostColumns];
    int32_t integers[Product::kMostColumns] = {};
    const bool adds_integers = bias_ && bias_.is_integer(), adds_floats = bias_ && !adds_integers;
    for (int64_t j = 0; j < columns; ++j) {
      factors[j] = a_scale_.number(0) * (b_scale_ ? b_scale_.number(column + j) : p_.b_number);
      if (adds_integers) integers[j] = static_cast<int32_t>(bias_.integer(column + j));
      if (adds_floats) biases[j] = bias_.number(column + j);
    }
    SumScales scales{sums, stride, integers, factors, adds_floats ? biases : nullptr};
    const SumSteps how =
        results_.steps().of_columns(factors, scales.biases, columns, steps, offsets);
    if (how.is_usual()) {
      scales.how = &how;
      scales.steps = steps;
      scales.offsets = offsets;
    }
    scales.write(results_, at, rows, p_.product.columns, columns);
  }

  template <class Dot>
  void run_units(const IntegerProduct<Dot>& product, int64_t i, int64_t begin, int64_t end) const {
    if constexpr (std::is_same_v<Dot, IntegerDot>)
      if (!p_.packed) return run_matrix(product, i, begin, end);
    run_packed(product, begin, end);
  }

  template <class Dot>
  void run_packed(const IntegerProduct<Dot>& product, int64_t begin, int64_t end) const {
    const auto* panels = args_.in[1].as<int8_t>();
    const int64_t inner = padded_inner(p_.product.inner);
    const auto right_part = [&](int64_t first, int64_t, int64_t column, int64_t) {
      return std::pair(panels + column * inner + first * kIntegerPanel, inner * kIntegerPanel);
    };
    if constexpr (std::is_same_v<Dot, IntegerDot>)
      product.run(begin, end, left_part<Dot>(0), right_part, store_part(0));
    else
      product.run(begin, end, left_part<Dot>(0), right_part, store_part(0),
                  [list = rests()](const auto&... part) { list.template add<Dot>(part...); });
  }

  void run_matrix(const Product& product, int64_t i, int64_t begin, int64_t end) const {
    alignas(64) int8_t panels[Product::kMostInner * Product::kMostColumns];
    const StridedMatrix<const int8_t> b = right(i);
    const auto right_part = [&](int64_t first, int64_t inner, int64_t column, int64_t columns) {
      const int64_t padded = padded_inner(inner);
      pack_integer_panels<IntegerDot>({b.data + first * b.row_stride + column * b.column_stride,
                                       inner, columns, b.row_stride, b.column_stride},
                                      static_cast<int8_t>(p_.flip_b), padded, panels);
      return std::pair(static_cast<const int8_t*>(panels), padded * kIntegerPanel);
    };
    product.run(begin, end, left_part<IntegerDot>(i), right_part, store_part(i));
  }

  const KernelArgs& args_;
  const IntegerProblem& p_;
  Each a_scale_, b_scale_, a_zero_, b_zero_, bias_;
  RealResults results_;
  bool has_b_zero_ = false;
};

void run(const KernelArgs& args) {
  Run(args, *static_cast<const IntegerProblem*>(args.prepared)).run();
}

void pack(const KernelArgs& args) {
  const TensorView& b = args.in[0];
  const auto flip = static_cast<int8_t>(b.dtype == DType::UInt8 ? kSignBit : 0);
  pack_integer_matrix(args.context,
                      {b.as<int8_t>(), b.sizes[0], b.sizes[1], b.strides[0], b.strides[1]}, flip,
                      args.out[0].as<int8_t>());
}

KernelDef product_kernel(std::string_view op, std::string_view name, LayoutRule layout) {
  return {.op = op,
          .name = name,
          .dtypes = {DType::Int8, DType::UInt8},
          .run = run,
          .unsupported = other_copy_runs,
          .workspace_bytes = workspace_bytes,
          .prepare = prepare,
          .input_rules = {layout, layout},
          .priority = kIntegerPriority};
}

REGISTER_CPU_KERNEL((product_kernel("MatMulInteger", "matmul_integer_cpu", LayoutRule::Matrix)));
REGISTER_CPU_KERNEL((product_kernel("MatMulIntegerToFloat", "matmul_integer_to_float_cpu",
                                    LayoutRule::Matrix)));
REGISTER_CPU_KERNEL((product_kernel("PackedMatMulInteger", "packed_matmul_integer_cpu",
                                    LayoutRule::Contiguous)));
REGISTER_CPU_KERNEL({.op = "PackIntegerMatrix",
                     .name = "pack_integer_matrix_cpu",
                     .dtypes = {DType::Int8, DType::UInt8},
                     .run = pack,
                     .unsupported = other_copy_runs,
                     .layout = LayoutRule::Any,
                     .priority = kIntegerPriority});

}  // namespace
}  // namespace ORTM_ISA
}  // namespace ortmodule
