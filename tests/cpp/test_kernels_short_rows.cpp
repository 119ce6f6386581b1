// Rows of all lengths around the widths of vectors: a row must give the same bits alone and beside
// any others, and what stands in its last, partly filled vector counts as everything else does.
#include "test_kernels_harness.h"

namespace ortmodule::testing {
namespace {

constexpr int64_t kLengths[] = {1,  2,  3,  4,  5,  6,  7,  8,  9,   10,  11,
                                12, 13, 14, 15, 16, 17, 18, 19, 20,  31,  32,
                                33, 48, 63, 64, 65, 66, 95, 96, 100, 257, 1030};
constexpr DType kTypes[] = {DType::Float32, DType::Float64, DType::Float16, DType::BFloat16};

DType statistics_of(DType dtype) {
  return dtype == DType::Float64 ? DType::Float64 : DType::Float32;
}

/// An op over the last axis of [rows, n], with operands and results of one row each or for all.
struct RowOp {
  const char* op;
  Attrs attrs;
  // Sizes of operands and results: 'x' rows of n, 's' one statistic per row, 'c' one per column,
  // 'r' a result per row, 'i' an index per row.
  std::string in, out;
};

const Attrs kLast{{"axis", -1}}, kNorm{{"axis", -1}, {"epsilon", 1e-5}};
const Attrs kOver{{"axes", Dims{1}}, {"keepdims", 0}}, kIndex{{"axis", 1}, {"keepdims", 0}};
const RowOp kOps[] = {{"Softmax", kLast, "x", "x"},
                      {"LogSoftmax", kLast, "x", "x"},
                      {"SoftmaxGrad", kLast, "xx", "x"},
                      {"LogSoftmaxGrad", kLast, "xx", "x"},
                      {"BiasSoftmax", kLast, "xc", "x"},
                      {"LayerNormalization", kNorm, "xcc", "xss"},
                      {"SkipLayerNormalization", kNorm, "xxcc", "xssx"},
                      {"LayerNormalizationGrad", kNorm, "xxcss", "x--"},
                      {"SimplifiedLayerNormalization", kNorm, "xc", "xs"},
                      {"SimplifiedLayerNormalizationGrad", kNorm, "xxcs", "x-"},
                      {"ReduceSum", kOver, "x", "r"},
                      {"ReduceMean", kOver, "x", "r"},
                      {"ReduceMax", kOver, "x", "r"},
                      {"ReduceMin", kOver, "x", "r"},
                      {"ReduceProd", kOver, "x", "r"},
                      {"ArgMax", kIndex, "x", "i"},
                      {"ArgMin", kIndex, "x", "i"}};

Sizes sizes_of(char kind, int64_t rows, int64_t n) {
  if (kind == 'x') return {rows, n};
  if (kind == 's') return {rows, 1};
  return {kind == 'c' ? n : rows};
}

DType dtype_of(char kind, DType dtype) {
  return kind == 's' ? statistics_of(dtype) : kind == 'i' ? DType::Int64 : dtype;
}

/// Row `row` of a tensor of rows; a tensor of columns whole.
Tensor row_of(const Tensor& all, char kind, int64_t row, int64_t n) {
  if (kind == 'c') return all;
  Tensor one(all.dtype(), sizes_of(kind, 1, n));
  for (int64_t i = 0; i < one.count(); ++i) one.set(i, all.get(row * one.count() + i));
  return one;
}

std::vector<Tensor*> addresses(std::vector<Tensor>& tensors, const std::string& kinds) {
  std::vector<Tensor*> result;
  for (size_t i = 0; i < tensors.size(); ++i)
    result.push_back(kinds[i] == '-' ? nullptr : &tensors[i]);
  return result;
}

std::vector<Tensor> run(const KernelDef& def, const RowOp& op, std::vector<Tensor> in, int64_t rows,
                        int64_t n) {
  std::vector<Tensor> out;
  for (char kind : op.out) out.emplace_back(dtype_of(kind, in[0].dtype()), sizes_of(kind, rows, n));
  const std::vector<Tensor*> inputs = addresses(in, op.in), outputs = addresses(out, op.out);
  run_kernel(def, facts_of({node_of(op.op, op.attrs, inputs, outputs)}, inputs, outputs), inputs,
             outputs);
  return out;
}

TEST(ShortRows, GiveTheSameBitsAlone) {
  constexpr int64_t kRows = 37;
  for (const RowOp& op : kOps) {
    for (const KernelDef* def : kernels_of(op.op)) {
      if (def->device != Device::CPU) continue;
      SCOPED_TRACE(def->name);
      for (DType dtype : kTypes) {
        for (int64_t n : kLengths) {
          std::vector<Tensor> in;
          for (char kind : op.in)
            in.push_back(Tensor::random(dtype_of(kind, dtype), sizes_of(kind, kRows, n),
                                        static_cast<unsigned>(in.size()), 0.5, 2));
          const std::vector<Tensor> together = run(*def, op, in, kRows, n);
          for (int64_t row : {0, 7, 15, 16, 36}) {
            std::vector<Tensor> own;
            for (size_t i = 0; i < in.size(); ++i) own.push_back(row_of(in[i], op.in[i], row, n));
            const std::vector<Tensor> alone = run(*def, op, own, 1, n);
            for (size_t i = 0; i < alone.size(); ++i) {
              if (op.out[i] == '-') continue;
              ASSERT_TRUE(alone[i].same_bits(row_of(together[i], op.out[i], row, n)))
                  << name_of(dtype) << ", row " << row << " of " << n << " elements, result " << i;
            }
          }
        }
      }
    }
  }
}

/// Rows of `n` random numbers, of which every third ends with `last`.
Tensor rows_ending_with(double last, DType dtype, int64_t rows, int64_t n) {
  Tensor x = Tensor::random(dtype, {rows, n}, 1, -2, 2);
  for (int64_t row = 0; row < rows; row += 3) x.set(row * n + n - 1, last);
  return x;
}

TEST(ShortRows, CountTheirLastElement) {
  constexpr int64_t kRows = 19;
  const double inf = INFINITY;
  for (DType dtype : {DType::Float32, DType::BFloat16}) {
    for (int64_t n : kLengths) {
      for (double last : {inf, -inf, std::nan("")}) {
        Tensor x = rows_ending_with(last, dtype, kRows, n), y(dtype, {kRows, n});
        Tensor result(dtype, {kRows}), index(DType::Int64, {kRows});
        SCOPED_TRACE(str(n, " elements, of which the last is ", last));
        const auto check = [&](const char* op, const auto& expected) {
          run_op(op, kOver, {&x}, {&result}, [&] {
            for (int64_t row = 0; row < kRows; row += 3)
              ASSERT_TRUE(result.get(row) == expected ||
                          (std::isnan(result.get(row)) && std::isnan(expected)))
                  << op << " " << result.get(row);
            for (int64_t row = 1; row < kRows; row += 3)
              ASSERT_TRUE(std::isfinite(result.get(row))) << op;
          });
        };
        const double least = n == 1 ? last : -inf;
        check("ReduceSum", last);
        if (last != -inf || n == 1)
          check("ReduceMax", std::isnan(last) ? last : std::max(last, least));
        if (last != inf || n == 1) check("ReduceMin", last);
        const auto expect_last = [&] {
          for (int64_t row = 0; row < kRows; row += 3)
            ASSERT_EQ(index.get(row), static_cast<double>(n - 1));
        };
        if (last != -inf) run_op("ArgMax", kIndex, {&x}, {&index}, expect_last);
        if (last != inf) run_op("ArgMin", kIndex, {&x}, {&index}, expect_last);
        run_op("Softmax", kLast, {&x}, {&y}, [&] {
          for (int64_t i = 0; i < y.count(); ++i) {
            const bool ends = i / n % 3 == 0, lost = ends && (last != -inf || n == 1);
            ASSERT_EQ(std::isnan(y.get(i)), lost) << "Softmax, element " << i;
            if (ends && !lost && i % n == n - 1) {
              ASSERT_EQ(y.get(i), 0);
            }
          }
        });
      }
    }
  }
}

// Of equal elements the first; of rows of what a search starts from, too.
TEST(ShortRows, FindTheFirstOfEqualElements) {
  constexpr int64_t kRows = 18;
  for (int64_t n : kLengths) {
    for (double value :
         {1.0, static_cast<double>(INFINITY), -static_cast<double>(INFINITY), std::nan("")}) {
      Tensor x(DType::Float32, {kRows, n}), index(DType::Int64, {kRows});
      for (int64_t i = 0; i < x.count(); ++i) x.set(i, value);
      for (const char* op : {"ArgMax", "ArgMin"})
        run_op(op, kIndex, {&x}, {&index}, [&] {
          for (int64_t row = 0; row < kRows; ++row) ASSERT_EQ(index.get(row), 0) << op << n;
        });
    }
  }
}

TEST(ShortRows, MayBeNone) {
  for (int64_t n : {1, 5, 64, 65}) {
    Tensor x(DType::Float32, {0, n}), y(DType::Float32, {0, n}), sums(DType::Float32, {0});
    run_op("Softmax", kLast, {&x}, {&y}, [] {});
    run_op("ReduceSum", kOver, {&x}, {&sums}, [] {});
  }
  Tensor empty(DType::Float32, {21, 0}), sums(DType::Float32, {21});
  run_op("ReduceSum", kOver, {&empty}, {&sums}, [&] {
    for (int64_t row = 0; row < 21; ++row) EXPECT_EQ(sums.get(row), 0);
  });
}

}  // namespace
}  // namespace ortmodule::testing
