// Steps of recurrent layers against their definitions in double, their gates computed again bit by
// bit, and their gradients against differences.
#include "test_kernels_harness.h"

namespace ortmodule::testing {
namespace {

struct Case {
  std::string op;
  int64_t steps = 5, batch = 3, hidden = 4;
  bool batch_first = false, reverse = false, lengths = false, relu = false, packed = false;
  int64_t projection = 0;  // the width of a projected state
  bool reset_before = false;
};

double sigmoid_of(double x) { return 1 / (1 + std::exp(-x)); }

class Layer {
 public:
  Layer(const Case& c, DType dtype)
      : c_(c),
        dtype_(dtype),
        lstm_(c.op == "LSTMSteps"),
        gates_(lstm_                ? 4
               : c.op == "GRUSteps" ? 3
                                    : 1),
        pre(Tensor::random(dtype, sequence(gates_ * c.hidden), 1)),
        r(Tensor::random(dtype, {gates_ * c.hidden, width()}, 2, -0.5, 0.5)),
        bias(Tensor::random(dtype, {gates_ * c.hidden}, 3)),
        recurrent_bias(Tensor::random(dtype, {gates_ * c.hidden}, 4)),
        h(Tensor::random(dtype, {c.batch, width()}, 5)),
        cell(Tensor::random(dtype, {c.batch, c.hidden}, 6)),
        lengths(DType::Int64, {c.batch}),
        batch_sizes(DType::Int64, {c.steps}),
        projection(Tensor::random(dtype, {width(), c.hidden}, 10)),
        y(dtype, sequence(width())),
        last_h(dtype, h.sizes()),
        last_c(dtype, cell.sizes()),
        saved(dtype, sequence((lstm_ || gates_ == 3 ? 4 : 1) * c.hidden)),
        cells(dtype, sequence(c.hidden)) {
    for (int64_t row = 0; row < c.batch; ++row) lengths.set(row, length(row));
    for (int64_t step = 0; step < c.steps; ++step) batch_sizes.set(step, rows_of(step));
  }

  Attrs attrs() const {
    Attrs attrs{{"layout", int64_t{c_.batch_first}}, {"reverse", int64_t{c_.reverse}}};
    if (gates_ == 1) attrs.set("relu", int64_t{c_.relu});
    if (c_.reset_before) attrs.set("reset_before", int64_t{1});
    return attrs;
  }
  Tensor* seen_lengths() { return c_.lengths ? &lengths : nullptr; }
  Tensor* seen_batch_sizes() { return c_.packed ? &batch_sizes : nullptr; }
  Tensor* seen_projection() { return c_.projection > 0 ? &projection : nullptr; }
  std::vector<Tensor*> in() {
    std::vector<Tensor*> in{&pre, &r, &bias, &recurrent_bias, &h};
    if (lstm_) in.push_back(&cell);
    in.insert(in.end(), {seen_lengths(), seen_batch_sizes()});
    if (lstm_) in.push_back(seen_projection());
    return in;
  }
  std::vector<Tensor*> out() {
    if (lstm_) return {&y, &last_h, &last_c, &saved, &cells};
    if (gates_ == 3) return {&y, &last_h, &saved};
    return {&y, &last_h};
  }

  int64_t at(int64_t step, int64_t row, int64_t width, int64_t j) const {
    if (c_.packed) {
      int64_t before = 0;
      for (int64_t earlier = 0; earlier < step; ++earlier) before += rows_of(earlier);
      return (before + row) * width + j;
    }
    return (c_.batch_first ? row * c_.steps + step : step * c_.batch + row) * width + j;
  }

  /// y and the last states in double, from the operands as they are.
  void define(std::vector<double>& states, std::vector<double>& last,
              std::vector<double>& last_cell) {
    const int64_t n = c_.hidden;
    states.assign(static_cast<size_t>(y.count()), 0);
    last = h.values();
    last_cell = cell.values();
    for (int64_t row = 0; row < c_.batch; ++row)
      for (int64_t i = 0; i < c_.steps; ++i) {
        const int64_t step = c_.reverse ? c_.steps - 1 - i : i;
        if ((c_.lengths || c_.packed) && step >= length(row)) continue;
        std::vector<double> next(static_cast<size_t>(n));
        for (int64_t j = 0; j < n; ++j)
          next[static_cast<size_t>(j)] = unit(step, row, j, last, last_cell);
        if (c_.projection > 0) next = projected(next);
        for (int64_t j = 0; j < width(); ++j) {
          last[static_cast<size_t>(row * width() + j)] = next[static_cast<size_t>(j)];
          states[static_cast<size_t>(at(step, row, width(), j))] = next[static_cast<size_t>(j)];
        }
      }
  }

  void check(double ulps) {
    SCOPED_TRACE(str(c_.op, " ", name_of(dtype_), " T ", c_.steps, " B ", c_.batch, " H ",
                     c_.hidden, c_.batch_first ? " batch first" : "", c_.reverse ? " reverse" : "",
                     c_.lengths ? " lengths" : "", c_.packed ? " packed" : "", " P ", c_.projection,
                     c_.reset_before ? " reset before" : ""));
    std::vector<double> states, last, last_cell;
    define(states, last, last_cell);
    run_op(c_.op, attrs(), in(), out(), [&] {
      expect_close(y, states, ulps, 1, "y");
      expect_close(last_h, last, ulps, 1, "y_h");
      if (lstm_) expect_close(last_c, last_cell, ulps, 4, "y_c");
    });
    if (gates_ > 1 && !c_.reset_before) check_gates();
  }

  void check_gates() {
    const std::string op = lstm_ ? "LSTMGates" : "GRUGates";
    const auto forward = kernels_of(c_.op), again = kernels_of(op);
    ASSERT_EQ(forward.size(), again.size());
    Tensor saved_again(dtype_, saved.sizes()), cells_again(dtype_, cells.sizes());
    std::vector<Tensor*> operands = in(), results{&saved_again};
    operands.insert(operands.begin() + 4, &y);
    if (lstm_) results.push_back(&cells_again);
    for (size_t i = 0; i < forward.size(); ++i) {
      SCOPED_TRACE(forward[i]->name);
      run_kernel(*forward[i], facts_of({node_of(c_.op, attrs(), in(), out())}, in(), out()), in(),
                 out());
      for (ParallelFor threads : {ParallelFor{}, ParallelFor{two_threads}}) {
        run_kernel(*again[i],
                   facts_of({node_of(op, attrs(), operands, results)}, operands, results), operands,
                   results, threads);
        EXPECT_TRUE(saved_again.same_bits(saved)) << "gates differ";
        if (lstm_) {
          EXPECT_TRUE(cells_again.same_bits(cells)) << "cells differ";
        }
      }
    }
  }

  /// sum(dy y) + sum(dy_h y_h) + sum(dy_c y_c) in double.
  double loss(Tensor& dy, Tensor& dy_h, Tensor& dy_c) {
    std::vector<double> states, last, last_cell;
    define(states, last, last_cell);
    double sum = 0;
    for (int64_t i = 0; i < y.count(); ++i) sum += dy.get(i) * states[static_cast<size_t>(i)];
    for (int64_t i = 0; i < h.count(); ++i) sum += dy_h.get(i) * last[static_cast<size_t>(i)];
    for (int64_t i = 0; lstm_ && i < cell.count(); ++i)
      sum += dy_c.get(i) * last_cell[static_cast<size_t>(i)];
    return sum;
  }

  void check_gradient() {
    SCOPED_TRACE(str(c_.op, c_.reverse ? " reverse" : "", c_.lengths ? " lengths" : "",
                     c_.packed ? " packed" : "", " P ", c_.projection));
    const KernelDef& forward = *kernels_of(c_.op).front();
    run_kernel(forward, facts_of({node_of(c_.op, attrs(), in(), out())}, in(), out()), in(), out());
    Tensor dy = Tensor::random(dtype_, y.sizes(), 7), dy_h = Tensor::random(dtype_, h.sizes(), 8);
    Tensor dy_c = Tensor::random(dtype_, cell.sizes(), 9);
    Tensor dpre(dtype_, pre.sizes()), drecurrent(dtype_, pre.sizes()), dh(dtype_, h.sizes()),
        dc(dtype_, cell.sizes()), dprojected(dtype_, y.sizes());
    std::vector<Tensor*> operands, results;
    if (lstm_) {
      operands = {&saved,
                  &cells,
                  &r,
                  &dy,
                  &dy_h,
                  &dy_c,
                  &cell,
                  seen_lengths(),
                  seen_batch_sizes(),
                  seen_projection()};
      results = {&dpre, &dh, &dc, c_.projection > 0 ? &dprojected : nullptr};
    } else if (gates_ == 3) {
      operands = {&saved, &y, &r, &dy, &dy_h, &h, seen_lengths(), seen_batch_sizes()};
      results = {&dpre, &drecurrent, &dh};
    } else {
      operands = {&y, &r, &dy, &dy_h, seen_lengths(), seen_batch_sizes(), &h};
      results = {&dpre, &dh};
    }
    const auto difference = [&](Tensor& x, int64_t i) {
      const double before = x.get(i), step = 1e-5;
      x.set(i, before + step);
      const double above = loss(dy, dy_h, dy_c);
      x.set(i, before - step);
      const double below = loss(dy, dy_h, dy_c);
      x.set(i, before);
      return (above - below) / (2 * step);
    };
    run_op(c_.op + "Grad", attrs(), operands, results, [&] {
      for (int64_t i = 0; i < pre.count(); i += 3)
        ASSERT_NEAR(dpre.get(i), difference(pre, i), 1e-6) << "dpre " << i;
      for (int64_t i = 0; i < h.count(); ++i)
        ASSERT_NEAR(dh.get(i), difference(h, i), 1e-6) << "dh " << i;
      for (int64_t i = 0; lstm_ && i < cell.count(); ++i)
        ASSERT_NEAR(dc.get(i), difference(cell, i), 1e-6) << "dc " << i;
      for (int64_t i = 0; i < projection.count() && c_.projection > 0; ++i)
        ASSERT_NEAR(projection_gradient(dprojected, i), difference(projection, i), 1e-6)
            << "projection " << i;
      for (int64_t g = 0; g < recurrent_bias.count() && gates_ == 3; ++g) {
        double sum = 0;
        for (int64_t i = g; i < pre.count(); i += recurrent_bias.count()) sum += drecurrent.get(i);
        ASSERT_NEAR(sum, difference(recurrent_bias, g), 1e-6) << "recurrent bias " << g;
      }
    });
  }

 private:
  int64_t width() const { return c_.projection > 0 ? c_.projection : c_.hidden; }
  int64_t length(int64_t row) const { return std::max<int64_t>(1, c_.steps - 2 * row); }
  int64_t rows_of(int64_t step) const {
    int64_t rows = 0;
    while (rows < c_.batch && length(rows) > step) ++rows;
    return rows;
  }

  std::vector<double> projected(const std::vector<double>& state) const {
    std::vector<double> result(static_cast<size_t>(width()));
    for (int64_t j = 0; j < width(); ++j)
      for (int64_t k = 0; k < c_.hidden; ++k)
        result[static_cast<size_t>(j)] +=
            projection.get(j * c_.hidden + k) * state[static_cast<size_t>(k)];
    return result;
  }

  /// Element i of the projection's gradient: the sum of dprojected times o tanh(c).
  double projection_gradient(Tensor& dprojected, int64_t i) {
    const int64_t n = c_.hidden, j = i / n, k = i % n;
    double sum = 0;
    for (int64_t row = 0; row < dprojected.count() / width(); ++row)
      sum += dprojected.get(row * width() + j) * saved.get(row * 4 * n + 3 * n + k) *
             std::tanh(cells.get(row * n + k));
    return sum;
  }

  Sizes sequence(int64_t width) const {
    if (c_.packed) {
      int64_t rows = 0;
      for (int64_t row = 0; row < c_.batch; ++row) rows += length(row);
      return {rows, width};
    }
    return c_.batch_first ? Sizes{c_.batch, c_.steps, width} : Sizes{c_.steps, c_.batch, width};
  }

  double from_state(int64_t gate, int64_t row, int64_t j, const std::vector<double>& last) const {
    double sum = recurrent_bias.get(gate * c_.hidden + j);
    for (int64_t k = 0; k < width(); ++k)
      sum += r.get((gate * c_.hidden + j) * width() + k) *
             last[static_cast<size_t>(row * width() + k)];
    return sum;
  }
  double from_input(int64_t gate, int64_t step, int64_t row, int64_t j) const {
    const int64_t unit = gate * c_.hidden + j;
    return pre.get(at(step, row, gates_ * c_.hidden, unit)) + bias.get(unit);
  }

  /// The recurrent part of a GRU's new gate where the state is reset before the product.
  double reset_product(int64_t step, int64_t row, int64_t j,
                       const std::vector<double>& last) const {
    std::vector<double> reset = last;
    for (int64_t k = 0; k < c_.hidden; ++k)
      reset[static_cast<size_t>(row * c_.hidden + k)] *=
          sigmoid_of(from_input(0, step, row, k) + from_state(0, row, k, last));
    return from_state(2, row, j, reset);
  }

  double unit(int64_t step, int64_t row, int64_t j, const std::vector<double>& last,
              std::vector<double>& last_cell) const {
    const int64_t n = c_.hidden;
    const auto recurrent = [&](int64_t gate) { return from_state(gate, row, j, last); };
    const auto given = [&](int64_t gate) { return from_input(gate, step, row, j); };
    const auto z = [&](int64_t gate) { return given(gate) + recurrent(gate); };
    if (gates_ == 1) return c_.relu ? std::max(z(0), 0.0) : std::tanh(z(0));
    if (gates_ == 3) {
      const double product =
          c_.reset_before ? reset_product(step, row, j, last) : sigmoid_of(z(0)) * recurrent(2);
      const double fresh = std::tanh(given(2) + product);
      return fresh + sigmoid_of(z(1)) * (last[static_cast<size_t>(row * n + j)] - fresh);
    }
    double& c = last_cell[static_cast<size_t>(row * n + j)];
    c = sigmoid_of(z(1)) * c + sigmoid_of(z(0)) * std::tanh(z(2));
    return sigmoid_of(z(3)) * std::tanh(c);
  }

  Case c_;
  DType dtype_;
  bool lstm_;
  int64_t gates_;

 public:
  Tensor pre, r, bias, recurrent_bias, h, cell, lengths, batch_sizes, projection;
  Tensor y, last_h, last_c, saved, cells;
};

TEST(RecurrentKernel, MatchesItsDefinition) {
  for (const char* op : {"LSTMSteps", "GRUSteps", "RNNSteps"})
    for (DType dtype : {DType::Float32, DType::Float64, DType::Float16, DType::BFloat16})
      for (const Sizes& s : std::vector<Sizes>{
               {1, 1, 1}, {5, 3, 4}, {3, 70, 9}, {4, 5, 33}, {2, 2, 300}, {2, 1, 300}})
        for (int variant = 0; variant < 6; ++variant) {
          Case c{op,          s[0], s[1], s[2], variant % 2 == 1, variant >= 2, variant % 3 > 0,
                 variant == 3};
          if (variant >= 4) c = {op, s[0], s[1], s[2], false, variant == 5, false, false, true};
          Layer(c, dtype).check(size_of(dtype) == 2 ? 24 : 512);
        }
}

TEST(RecurrentKernel, StatesThatAreResetBeforeTheProductMatchTheirDefinition) {
  for (DType dtype : {DType::Float32, DType::Float64, DType::Float16, DType::BFloat16})
    for (const Sizes& s :
         std::vector<Sizes>{{1, 1, 1}, {5, 3, 4}, {3, 70, 9}, {4, 5, 33}, {2, 1, 300}, {20, 1, 40}})
      for (int variant = 0; variant < 4; ++variant) {
        Case c{"GRUSteps", s[0], s[1], s[2], variant == 1, variant % 2 == 1, variant == 2};
        c.packed = variant == 3;
        c.reset_before = true;
        Layer(c, dtype).check(size_of(dtype) == 2 ? 24 : 512);
      }
}

TEST(RecurrentKernel, ProjectedStatesMatchTheirDefinition) {
  for (DType dtype : {DType::Float32, DType::Float64, DType::Float16, DType::BFloat16})
    for (int64_t width : {1, 3, 20, 40})
      for (int variant = 0; variant < 4; ++variant)
        Layer({"LSTMSteps", 5, 3, 33, variant == 1, variant % 2 == 1, variant == 2, false,
               variant == 3, width},
              dtype)
            .check(size_of(dtype) == 2 ? 48 : 512);
}

TEST(RecurrentKernel, GradientsMatchDifferences) {
  for (const char* op : {"LSTMSteps", "GRUSteps", "RNNSteps"})
    for (int variant = 0; variant < 8; ++variant)
      Layer({op, 5, 3, 4, (variant & 1) != 0, (variant & 2) != 0, (variant & 4) != 0, variant == 5},
            DType::Float64)
          .check_gradient();
  for (const char* op : {"LSTMSteps", "GRUSteps", "RNNSteps"})
    for (bool reverse : {false, true})
      Layer({op, 5, 3, 4, false, reverse, false, false, true}, DType::Float64).check_gradient();
  for (int variant = 0; variant < 4; ++variant)
    Layer({"LSTMSteps", 5, 3, 4, variant == 1, variant % 2 == 1, variant == 2, false, variant == 3,
           3},
          DType::Float64)
        .check_gradient();
}

}  // namespace
}  // namespace ortmodule::testing
