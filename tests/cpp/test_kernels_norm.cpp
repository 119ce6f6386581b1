// Layer norm, RMS norm and their gradients against formulas in double.
#include <limits>

#include "test_kernels_harness.h"

namespace ortmodule::testing {
namespace {

constexpr DType kTypes[] = {DType::Float32, DType::Float64, DType::Float16, DType::BFloat16};
const std::vector<std::pair<int64_t, int64_t>> kShapes = {
    {1, 1},    {3, 7},  {5, 1},  {300, 33}, {2, 2500}, {70, 96}, {0, 4},   {1, 9000},
    {2, 8199}, {70, 4}, {37, 8}, {100, 16}, {35, 19},  {40, 63}, {49, 64}, {50, 65}};
constexpr double kEpsilon = 1e-5;

DType statistics_of(DType dtype) {
  return dtype == DType::Float64 ? DType::Float64 : DType::Float32;
}

struct Row {
  double mean = 0, inv = 0;
};

// Statistics of a row; RMS norm has no mean.
Row statistics(const Tensor& x, int64_t row, int64_t n, bool centered) {
  long double sum = 0, squares = 0;  // double would err as much as a kernel for double
  for (int64_t i = 0; centered && i < n; ++i) sum += x.get(row * n + i);
  const long double mean = sum / static_cast<long double>(n);
  for (int64_t i = 0; i < n; ++i)
    squares += (x.get(row * n + i) - mean) * (x.get(row * n + i) - mean);
  Row r;
  r.mean = static_cast<double>(mean);
  r.inv = static_cast<double>(1 / std::sqrt(squares / static_cast<long double>(n) + kEpsilon));
  return r;
}

struct Case {
  int64_t rows, n;
  DType dtype;
  bool affine, centered;
  Tensor x, dy, dsum, scale, bias, y, dx, dscale, dbias, mean, inv;

  Case(int64_t row_count, int64_t columns, DType type, bool has_scale, bool has_mean)
      : rows(row_count),
        n(columns),
        dtype(type),
        affine(has_scale),
        centered(has_mean),
        x(Tensor::random(type, {rows, n}, 1, -1, 3)),
        dy(Tensor::random(type, {rows, n}, 2)),
        dsum(Tensor::random(type, {rows, n}, 7)),
        scale(Tensor::random(type, {n}, 3)),
        bias(Tensor::random(type, {n}, 4)),
        y(type, {rows, n}),
        dx(type, {rows, n}),
        dscale(type, {n}),
        dbias(type, {n}),
        mean(statistics_of(type), {rows, 1}),
        inv(statistics_of(type), {rows, 1}) {}

  double factor(int64_t i) const { return affine ? scale.get(i) : 1; }

  void check_forward(const std::string& what) const {
    std::vector<double> expected;
    for (int64_t row = 0; row < rows; ++row) {
      const Row r = statistics(x, row, n, centered);
      for (int64_t i = 0; i < n; ++i)
        expected.push_back((x.get(row * n + i) - r.mean) * r.inv * factor(i) +
                           (affine && centered ? bias.get(i) : 0));
      if (centered) {
        ASSERT_NEAR(mean.get(row), r.mean, 1e-6);
      }
      ASSERT_NEAR(inv.get(row), r.inv, 1e-5 * r.inv + (n == 1 ? 1 : 0));
    }
    expect_close(y, expected, 32, 1, what);
  }

  void set_statistics() {
    for (int64_t row = 0; row < rows; ++row) {
      const Row r = statistics(x, row, n, centered);
      mean.set(row, r.mean);
      inv.set(row, r.inv);
    }
  }

  // `adds`: dx includes dsum, and is rounded once.
  void check_backward(bool adds = false) const {
    std::vector<double> expected, expected_scale(static_cast<size_t>(n)),
        expected_bias(static_cast<size_t>(n));
    for (int64_t row = 0; row < rows; ++row) {
      const double m = centered ? mean.get(row) : 0, v = inv.get(row);
      double g = 0, gh = 0;
      for (int64_t i = 0; i < n; ++i) {
        const double h = (x.get(row * n + i) - m) * v, d = dy.get(row * n + i);
        g += centered ? d * factor(i) / static_cast<double>(n) : 0;
        gh += d * factor(i) * h / static_cast<double>(n);
        expected_scale[static_cast<size_t>(i)] += d * h;
        expected_bias[static_cast<size_t>(i)] += d;
      }
      for (int64_t i = 0; i < n; ++i) {
        const double h = (x.get(row * n + i) - m) * v;
        expected.push_back(v * (dy.get(row * n + i) * factor(i) - g - h * gh) +
                           (adds ? dsum.get(row * n + i) : 0));
      }
    }
    const double size = n == 1 ? 1e3 : 4;
    if (adds && size_of(dtype) == 2 && n > 1)
      expect_close(dx, expected, 1.05, 1e-2, "dx rounded once");
    else
      expect_close(dx, expected, 32, size, "dx");
    const double sums = 4 * std::sqrt(static_cast<double>(rows));
    expect_close(dscale, expected_scale, 32, sums, "dscale");
    if (centered) expect_close(dbias, expected_bias, 32, sums, "dbias");
  }
};

TEST(LayerNorm, MatchesDouble) {
  const Attrs attrs{{"axis", -1}, {"epsilon", kEpsilon}};
  for (auto [rows, n] : kShapes) {
    for (DType dtype : kTypes) {
      for (bool affine : {false, true}) {
        Case c(rows, n, dtype, affine, true);
        Tensor* scale = affine ? &c.scale : nullptr;
        Tensor* bias = affine ? &c.bias : nullptr;
        run_op("LayerNormalization", attrs, {&c.x, scale, bias}, {&c.y, &c.mean, &c.inv},
               [&] { c.check_forward("LayerNormalization"); });
        c.set_statistics();
        run_op("LayerNormalizationGrad", attrs, {&c.dy, &c.x, scale, &c.mean, &c.inv},
               {&c.dx, &c.dscale, &c.dbias}, [&] { c.check_backward(); });
        run_op("LayerNormalizationGrad", attrs, {&c.dy, &c.x, scale, &c.mean, &c.inv},
               {&c.dx, nullptr, nullptr}, [&] { c.check_backward(); });
      }
    }
  }
}

TEST(LayerNorm, NormalizesSeveralDimensions) {
  Case c(6, 35, DType::Float32, true, true);
  Tensor x = Tensor::of(DType::Float32, {2, 3, 5, 7}, c.x.values());
  Tensor scale = Tensor::of(DType::Float32, {5, 7}, c.scale.values());
  Tensor bias = Tensor::of(DType::Float32, {5, 7}, c.bias.values());
  Tensor y(DType::Float32, {2, 3, 5, 7}), mean(DType::Float32, {2, 3, 1, 1}),
      inv(DType::Float32, {2, 3, 1, 1});
  run_op("LayerNormalization", {{"axis", 2}, {"epsilon", kEpsilon}}, {&x, &scale, &bias},
         {&y, &mean, &inv}, [&] {
           c.y = Tensor::of(DType::Float32, {6, 35}, y.values());
           c.mean = Tensor::of(DType::Float32, {6, 1}, mean.values());
           c.inv = Tensor::of(DType::Float32, {6, 1}, inv.values());
           c.check_forward("several dimensions");
         });
}

void check_skip(DType dtype, const Sizes& sizes) {
  Case c(sizes[0], sizes[1], dtype, true, true);
  Tensor left = Tensor::random(dtype, sizes, 5), skip = Tensor::random(dtype, sizes, 6);
  for (int64_t i = 0; i < c.x.count(); ++i) c.x.set(i, left.get(i) + skip.get(i));
  Tensor sum(dtype, sizes);
  run_op("SkipLayerNormalization", {{"axis", -1}, {"epsilon", kEpsilon}},
         {&left, &skip, &c.scale, &c.bias}, {&c.y, &c.mean, &c.inv, &sum}, [&] {
           EXPECT_TRUE(sum.same_bits(c.x));
           c.check_forward("SkipLayerNormalization");
         });
  run_op("SkipLayerNormalization", {{"axis", -1}, {"epsilon", kEpsilon}},
         {&left, &skip, &c.scale, &c.bias}, {&c.y, &c.mean, &c.inv, nullptr},
         [&] { c.check_forward("without the sum"); });
}

TEST(LayerNorm, AddsSkip) {
  for (DType dtype : kTypes)
    for (const Sizes& sizes : {Sizes{9, 130}, Sizes{3, 37}, Sizes{1, 8704}})
      check_skip(dtype, sizes);
}

// Rows with NaN or an infinity are NaN, the others as without them.
TEST(LayerNorm, KeepsNanInItsRow) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const char* op : {"LayerNormalization", "SimplifiedLayerNormalization"}) {
    for (DType dtype : kTypes) {
      const bool centered = std::string_view(op) == "LayerNormalization";
      Case c(4, 40, dtype, false, centered);
      c.x.set(45, std::nan(""));
      c.x.set(90, kInfinity);
      const std::vector<Tensor*> out = centered ? std::vector<Tensor*>{&c.y, &c.mean, &c.inv}
                                                : std::vector<Tensor*>{&c.y, &c.inv};
      run_op(op, {{"axis", -1}, {"epsilon", kEpsilon}}, {&c.x, nullptr}, out, [&] {
        for (int64_t i = 0; i < c.y.count(); ++i) {
          const int64_t row = i / 40;
          if (row == 1 || (row == 2 && (centered || i == 90)))
            ASSERT_TRUE(std::isnan(c.y.get(i))) << op << i;
          else
            ASSERT_TRUE(std::isfinite(c.y.get(i))) << op << i;
        }
      });
    }
  }
}

TEST(RmsNorm, MatchesDouble) {
  const Attrs attrs{{"axis", -1}, {"epsilon", kEpsilon}};
  for (auto [rows, n] : kShapes) {
    for (DType dtype : kTypes) {
      for (bool affine : {false, true}) {
        Case c(rows, n, dtype, affine, false);
        Tensor* scale = affine ? &c.scale : nullptr;
        run_op("SimplifiedLayerNormalization", attrs, {&c.x, scale}, {&c.y, &c.inv},
               [&] { c.check_forward("SimplifiedLayerNormalization"); });
        c.set_statistics();
        run_op("SimplifiedLayerNormalizationGrad", attrs, {&c.dy, &c.x, scale, &c.inv},
               {&c.dx, &c.dscale}, [&] { c.check_backward(); });
      }
    }
  }
}

// The same kernels with y or dy in 16 bits, of rows that are held, summed by their block, or
// neither.
TEST(NormCast, MatchesDouble) {
  for (auto [rows, n] :
       {std::pair<int64_t, int64_t>{3, 7}, {300, 33}, {70, 96}, {35, 19}, {2, 8200}})
    for (DType narrow : {DType::Float16, DType::BFloat16})
      for (bool centered : {true, false}) {
        Case c(rows, n, DType::Float32, true, centered);
        c.y = Tensor(narrow, {rows, n});
        c.dy = Tensor::random(narrow, {rows, n}, 2);
        const Attrs attrs{{"axis", -1}, {"epsilon", kEpsilon}, {"to", narrow}};
        if (centered) {
          run_op("LayerNormalizationCast", attrs, {&c.x, &c.scale, &c.bias},
                 {&c.y, &c.mean, &c.inv}, [&] { c.check_forward("LayerNormalizationCast"); });
        } else {
          run_op("SimplifiedLayerNormalizationCast", attrs, {&c.x, &c.scale}, {&c.y, &c.inv},
                 [&] { c.check_forward("SimplifiedLayerNormalizationCast"); });
        }
        c.set_statistics();
        const Attrs wide{{"axis", -1}, {"to", DType::Float32}};
        if (centered) {
          run_op("CastLayerNormalizationGrad", wide, {&c.dy, &c.x, &c.scale, &c.mean, &c.inv},
                 {&c.dx, &c.dscale, &c.dbias}, [&] { c.check_backward(); });
        } else {
          run_op("CastSimplifiedLayerNormalizationGrad", wide, {&c.dy, &c.x, &c.scale, &c.inv},
                 {&c.dx, &c.dscale}, [&] { c.check_backward(); });
        }
      }
}

// Operands of a norm's gradient; a norm that is not centered has no mean.
std::vector<Tensor*> gradient_operands(Case& c, bool adds) {
  std::vector<Tensor*> in{&c.dy, &c.x, c.affine ? &c.scale : nullptr};
  if (c.centered) in.push_back(&c.mean);
  in.push_back(&c.inv);
  if (adds) in.push_back(&c.dsum);
  return in;
}

std::vector<Tensor*> gradient_results(Case& c, bool sums) {
  std::vector<Tensor*> out{&c.dx, sums ? &c.dscale : nullptr};
  if (c.centered) out.push_back(sums ? &c.dbias : nullptr);
  return out;
}

void run_on_cuda(const std::string& op, const Attrs& attrs, const std::vector<Tensor*>& in,
                 const std::vector<Tensor*>& out) {
  const StepFacts facts = facts_of({node_of(op, attrs, in, out)}, in, out);
  for (const KernelDef* def : kernels_of(op))
    if (def->device == Device::CUDA) run_kernel(*def, facts, in, out);
}

// With dsum: near double, with the bits of dx and a sum of its own where that rounds nothing else,
// and the same over the memory of dsum or of dy.
void check_added(Case& c, DType narrow, bool sums) {
  const bool cast = narrow != c.dtype;
  const std::string norm =
                        c.centered ? "LayerNormalizationGrad" : "SimplifiedLayerNormalizationGrad",
                    prefix = cast ? "Cast" : "";
  Attrs attrs{{"axis", -1}};
  if (cast) attrs.set("to", c.dtype);
  run_op(prefix + "Skip" + norm, attrs, gradient_operands(c, true), gradient_results(c, sums),
         [&] { c.check_backward(true); });
  const Tensor found = c.dx;
  if (size_of(c.dtype) > 2) {
    run_on_cuda(prefix + norm, attrs, gradient_operands(c, false), gradient_results(c, sums));
    for (int64_t i = 0; i < c.dx.count(); ++i) {
      const double sum = c.dx.get(i) + c.dsum.get(i);
      ASSERT_EQ(found.get(i), c.dtype == DType::Float32 ? static_cast<float>(sum) : sum) << i;
    }
  }
  for (Tensor* over : {&c.dsum, &c.dy}) {
    if (over->dtype() != c.dtype) continue;
    const Tensor before = *over;
    std::vector<Tensor*> out = gradient_results(c, sums);
    out[0] = over;
    run_on_cuda(prefix + "Skip" + norm, attrs, gradient_operands(c, true), out);
    EXPECT_TRUE(over->same_bits(found)) << prefix + norm << " in place";
    *over = before;
  }
}

TEST(NormGradient, AddsWhatGoesAroundTheNorm) {
  for (auto [rows, n] : kShapes)
    for (DType dtype : kTypes)
      for (const bool centered : {true, false})
        for (const bool affine : {true, false}) {
          Case c(rows, n, dtype, affine, centered);
          c.set_statistics();
          check_added(c, dtype, true);
          check_added(c, dtype, false);
          if (dtype != DType::Float32) continue;
          for (DType narrow : {DType::Float16, DType::BFloat16}) {
            c.dy = Tensor::random(narrow, {rows, n}, 2);
            check_added(c, narrow, true);
          }
        }
}

TEST(NormCast, AddsSkip) {
  for (const Sizes& sizes : {Sizes{9, 132}, Sizes{3, 37}, Sizes{1, 8704}}) {
    Case c(sizes[0], sizes[1], DType::Float32, true, true);
    c.y = Tensor(DType::BFloat16, sizes);
    Tensor left = Tensor::random(DType::Float32, sizes, 5),
           skip = Tensor::random(DType::Float32, sizes, 6), sum(DType::Float32, sizes);
    for (int64_t i = 0; i < c.x.count(); ++i) c.x.set(i, left.get(i) + skip.get(i));
    run_op("SkipLayerNormalizationCast",
           {{"axis", -1}, {"epsilon", kEpsilon}, {"to", DType::BFloat16}},
           {&left, &skip, &c.scale, &c.bias}, {&c.y, &c.mean, &c.inv, &sum}, [&] {
             EXPECT_TRUE(sum.same_bits(c.x));
             c.check_forward("SkipLayerNormalizationCast");
           });
  }
}

// y in both types has the bits of the norm and of the norm with its cast.
TEST(NormCast, WritesBothTypes) {
  for (const Sizes& sizes : {Sizes{9, 132}, Sizes{3, 37}, Sizes{2, 8704}})
    for (DType narrow : {DType::Float16, DType::BFloat16}) {
      Case c(sizes[0], sizes[1], DType::Float32, true, true);
      Tensor rounded(narrow, sizes), expected(narrow, sizes), wide(DType::Float32, sizes);
      Tensor left = Tensor::random(DType::Float32, sizes, 5),
             skip = Tensor::random(DType::Float32, sizes, 6), sum(DType::Float32, sizes);
      const Attrs attrs{{"axis", -1}, {"epsilon", kEpsilon}, {"to", narrow}};
      const auto check = [&](const std::string& what) {
        EXPECT_TRUE(c.y.same_bits(wide) && rounded.same_bits(expected)) << what << name_of(narrow);
      };
      const std::vector<Tensor*> in{&c.x, &c.scale, &c.bias},
          skips{&left, &skip, &c.scale, &c.bias};
      run_on_cuda("LayerNormalization", attrs, in, {&wide, &c.mean, &c.inv});
      run_on_cuda("LayerNormalizationCast", attrs, in, {&expected, &c.mean, &c.inv});
      run_op("LayerNormalizationWithCast", attrs, in, {&c.y, &c.mean, &c.inv, &rounded},
             [&] { check("LayerNormalization"); });
      run_on_cuda("SimplifiedLayerNormalization", attrs, {&c.x, &c.scale}, {&wide, &c.inv});
      run_on_cuda("SimplifiedLayerNormalizationCast", attrs, {&c.x, &c.scale}, {&expected, &c.inv});
      run_op("SimplifiedLayerNormalizationWithCast", attrs, {&c.x, &c.scale},
             {&c.y, &c.inv, &rounded}, [&] { check("SimplifiedLayerNormalization"); });
      run_on_cuda("SkipLayerNormalization", attrs, skips, {&wide, &c.mean, &c.inv, &sum});
      run_on_cuda("SkipLayerNormalizationCast", attrs, skips, {&expected, &c.mean, &c.inv, &sum});
      run_op("SkipLayerNormalizationWithCast", attrs, skips,
             {&c.y, &c.mean, &c.inv, &sum, &rounded}, [&] { check("SkipLayerNormalization"); });
    }
}

// Parts of dy in both types give the bits of their sum in float32.
TEST(NormGradient, AddsPartsOfTheGradient) {
  for (auto [rows, n] : kShapes)
    for (DType narrow : {DType::Float16, DType::BFloat16})
      for (const bool centered : {true, false})
        for (const bool sums : {true, false}) {
          Case c(rows, n, DType::Float32, true, centered);
          c.set_statistics();
          const std::string norm =
              centered ? "LayerNormalizationGrad" : "SimplifiedLayerNormalizationGrad";
          const Tensor part = Tensor::random(narrow, {rows, n}, 2);
          for (int64_t i = 0; i < part.count(); ++i) c.dy.set(i, part.get(i) + c.dsum.get(i));
          run_on_cuda(norm, {{"axis", -1}}, gradient_operands(c, false), gradient_results(c, sums));
          const Tensor dx = c.dx, dscale = c.dscale, dbias = c.dbias;
          c.dy = part;
          run_op("AddCast" + norm, {{"axis", -1}}, gradient_operands(c, true),
                 gradient_results(c, sums), [&] {
                   EXPECT_TRUE(c.dx.same_bits(dx)) << norm << rows << "x" << n;
                   EXPECT_TRUE(c.dscale.same_bits(dscale) && c.dbias.same_bits(dbias)) << norm;
                 });
        }
}

}  // namespace
}  // namespace ortmodule::testing
