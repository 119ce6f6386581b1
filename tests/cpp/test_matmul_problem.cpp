// The BLAS form of a product against the definition of the product, over layouts and batches.
#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <vector>

#include "kernels/matmul_problem.h"

namespace ortmodule {
namespace {

struct Case {
  std::string name;
  Layout a, b;
  bool trans_a = false, trans_b = false;
  size_t calls = 1;
  int64_t batch = 1;
};

Layout dense(Sizes sizes) {
  Sizes strides = contiguous_strides(sizes);
  return {std::move(sizes), std::move(strides), 0};
}

Layout strided(Sizes sizes, Sizes strides) { return {std::move(sizes), std::move(strides), 0}; }

/// Distinct small integers, so that sums are exact.
std::vector<double> numbers(const Layout& layout, int first) {
  std::vector<double> values(static_cast<size_t>(extent(layout)) + 1);
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<double>((static_cast<int>(i) * 7 + first) % 11 - 5);
  return values;
}

/// The element of `layout` at a position of the broadcast batch and of the flipped matrix.
int64_t offset_of(const Layout& layout, const Sizes& batch_index, int64_t row, int64_t column,
                  bool transposed) {
  const size_t matrix = layout.sizes.size() - 2;
  if (transposed) std::swap(row, column);
  int64_t offset = row * layout.strides[matrix] + column * layout.strides[matrix + 1];
  for (size_t i = 0; i < matrix; ++i)
    if (layout.sizes[i] != 1)
      offset += batch_index[batch_index.size() - matrix + i] * layout.strides[i];
  return offset;
}

int64_t matrix_size(const Layout& layout, bool transposed, size_t which) {
  return layout.sizes[layout.sizes.size() - 2 + (transposed ? 1 - which : which)];
}

Sizes broadcast_batch(const Layout& a, const Layout& b) {
  const size_t rank = std::max(a.sizes.size(), b.sizes.size()) - 2;
  Sizes batch(rank, 1);
  for (const Layout* m : {&a, &b})
    for (size_t i = 0; i + 2 < m->sizes.size(); ++i) {
      int64_t& size = batch[rank - (m->sizes.size() - 2) + i];
      if (size == 1) size = m->sizes[i];
    }
  return batch;
}

std::vector<double> by_definition(const Case& c, const Sizes& batch, const Layout& y,
                                  const std::vector<double>& a, const std::vector<double>& b) {
  std::vector<double> result(static_cast<size_t>(element_count(y.sizes)));
  const int64_t rows = y.sizes[batch.size()], columns = y.sizes[batch.size() + 1];
  const int64_t inner = matrix_size(c.a, c.trans_a, 1);
  for (size_t i = 0; i < result.size(); ++i) {
    auto position = static_cast<int64_t>(i);
    const int64_t column = position % columns;
    const int64_t row = (position /= columns) % rows;
    position /= rows;
    Sizes index(batch.size());
    for (size_t d = batch.size(); d-- > 0; position /= batch[d]) index[d] = position % batch[d];
    for (int64_t k = 0; k < inner; ++k)
      result[i] += a[static_cast<size_t>(offset_of(c.a, index, row, k, c.trans_a))] *
                   b[static_cast<size_t>(offset_of(c.b, index, k, column, c.trans_b))];
  }
  return result;
}

/// What a BLAS library does, which knows matrices by columns only: y' = op(b) op(a).
std::vector<double> by_blas(const MatMulProblem& p, const std::vector<double>& a,
                            const std::vector<double>& b, size_t count) {
  std::vector<double> y(count, -1000);
  const auto at = [](const BlasMatrix& m, int64_t row, int64_t column) {
    return m.flipped ? column * m.leading + row : row * m.leading + column;
  };
  EXPECT_GE(p.a.leading, p.a.flipped ? p.rows : p.inner);
  EXPECT_GE(p.b.leading, p.b.flipped ? p.inner : p.columns);
  EXPECT_FALSE(p.y.flipped);
  for (const BlasOffsets& call : p.calls)
    for (int64_t i = 0; i < p.batch; ++i)
      for (int64_t row = 0; row < p.rows; ++row)
        for (int64_t column = 0; column < p.columns; ++column) {
          double sum = 0;
          for (int64_t k = 0; k < p.inner; ++k)
            sum += a.at(static_cast<size_t>(call.a + i * p.a.batch_stride + at(p.a, row, k))) *
                   b.at(static_cast<size_t>(call.b + i * p.b.batch_stride + at(p.b, k, column)));
          y.at(static_cast<size_t>(call.y + i * p.y.batch_stride + at(p.y, row, column))) = sum;
        }
  return y;
}

StepFacts facts_of(const Case& c, const Layout& y) {
  StepFacts facts;
  NodeFacts& node = facts.nodes.emplace_back();
  node.op = "FusedMatMul";
  node.attrs = {{"transA", c.trans_a ? 1 : 0}, {"transB", c.trans_b ? 1 : 0}};
  facts.inputs = {{DType::Float32, c.a}, {DType::Float32, c.b}};
  facts.outputs = {{DType::Float32, y}};
  return facts;
}

const Case kCases[] = {
    {"plain", dense({3, 4}), dense({4, 5})},
    {"transposed_views", strided({3, 4}, {1, 3}), strided({4, 5}, {1, 4})},
    {"flags", dense({4, 3}), dense({5, 4}), true, true},
    {"flags_on_transposed_views", strided({4, 3}, {1, 4}), strided({5, 4}, {1, 5}), true, true},
    {"leading_dimensions", strided({3, 4}, {9, 1}), strided({4, 5}, {1, 8})},
    {"one_row", strided({1, 4}, {77, 1}), dense({4, 5})},
    {"one_row_strided", strided({1, 4}, {1, 6}), dense({4, 5})},
    {"one_column", dense({3, 4}), strided({4, 1}, {2, 1})},
    {"column_result_of_strided_vector", dense({3, 4}), strided({4, 1}, {1, 99})},
    {"inner_of_one", strided({3, 1}, {1, 55}), strided({1, 5}, {1, 1})},
    {"rows_of_a_batch", dense({2, 3, 4}), dense({4, 5})},
    {"rows_of_two_batches", dense({2, 6, 3, 4}), dense({4, 5})},
    {"batch", dense({6, 3, 4}), dense({6, 4, 5}), false, false, 1, 6},
    {"two_batches_are_one", dense({2, 3, 3, 4}), dense({2, 3, 4, 5}), false, false, 1, 6},
    {"heads", strided({2, 3, 7, 4}, {84, 4, 12, 1}), strided({2, 3, 4, 7}, {84, 4, 1, 12}), false,
     false, 2, 3},
    {"broadcast_left", dense({3, 4}), dense({6, 4, 5}), false, false, 1, 6},
    {"broadcast_inner", dense({2, 1, 3, 4}), dense({2, 3, 4, 5}), false, false, 2, 3},
    {"batch_of_one", dense({1, 3, 4}), dense({1, 4, 5})},
    {"transposed_batch", strided({6, 3, 4}, {12, 1, 3}), dense({6, 4, 5}), false, false, 1, 6},
    {"empty_outer_batch", dense({0, 2, 2, 4}), dense({1, 2, 4, 8}), false, false, 0, 2},
    {"gaps_between_batches", strided({2, 3, 4}, {100, 4, 1}), dense({4, 5}), false, false, 1, 2},
};

TEST(MatMulProblem, IsTheProduct) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(c.name);
    const Sizes batch = broadcast_batch(c.a, c.b);
    Sizes sizes = batch;
    sizes.push_back(matrix_size(c.a, c.trans_a, 0));
    sizes.push_back(matrix_size(c.b, c.trans_b, 1));
    const Layout y = dense(sizes);
    const MatMulProblem problem = matmul_problem(facts_of(c, y));
    EXPECT_EQ(problem.calls.size(), c.calls);
    EXPECT_EQ(problem.batch, c.batch);
    const std::vector<double> a = numbers(c.a, 3), b = numbers(c.b, 1);
    const std::vector<double> expected = by_definition(c, batch, y, a, b);
    EXPECT_EQ(by_blas(problem, a, b, expected.size()), expected);
  }
}

}  // namespace
}  // namespace ortmodule
