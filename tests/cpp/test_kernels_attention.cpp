// ScaledDotProductAttention and its gradient against their definitions in double.
#include <limits>

#include "kernels/philox.h"
#include "test_kernels_harness.h"

namespace ortmodule::testing {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kScale = 0.7;
constexpr int64_t kStream = 3;

struct AttentionCase {
  int64_t heads = 1, queries = 1, keys = 1, width = 4, value_width = 4;
  bool causal = false;
  double ratio = 0;
  DType mask = DType::Undefined;
  double score = 1;     // about how large q and k are
  int64_t sharers = 1;  // heads of q for each of k and v
};

/// [2, heads, rows, columns] whose heads are neighbours in memory, as those of a projection are.
Tensor heads_of(DType dtype, int64_t heads, int64_t rows, int64_t columns, unsigned seed,
                double most = 1) {
  const Sizes strides{rows * heads * columns, columns, heads * columns, 1};
  return Tensor::random(dtype, {2, heads, rows, columns}, seed, -most, most, strides);
}

class Attention {
 public:
  Attention(const AttentionCase& c, DType dtype)
      : q(heads_of(dtype, c.heads, c.queries, c.width, 1, c.score)),
        k(heads_of(dtype, c.heads / c.sharers, c.keys, c.width, 2, c.score)),
        v(heads_of(dtype, c.heads / c.sharers, c.keys, c.value_width, 3)),
        c_(c),
        dy_(heads_of(dtype, c.heads, c.queries, c.value_width, 4)) {
    if (c.mask == DType::Undefined) return;
    // One mask for all heads.
    mask = Tensor::random(c.mask, {2, 1, c.queries, c.keys}, 5, -1, 1);
    if (c.mask == DType::Bool)
      for (int64_t i = 0; i < mask.count(); ++i) mask.set(i, i % 3 != 1);
  }

  /// Runs every kernel of both ops, on one thread and on two.
  void check(double ulps) {
    SCOPED_TRACE(str(name_of(q.dtype()), " heads ", c_.heads, " by ", c_.sharers, " L ", c_.queries,
                     " S ", c_.keys, " E ", c_.width, " V ", c_.value_width,
                     c_.causal ? " causal" : "", " ratio ", c_.ratio, " mask ", name_of(c_.mask)));
    define();
    const auto kernels = kernels_of("ScaledDotProductAttention");
    const auto gradients = kernels_of("ScaledDotProductAttentionGrad");
    ASSERT_EQ(kernels.size(), gradients.size());
    for (size_t i = 0; i < kernels.size(); ++i) {
      SCOPED_TRACE(kernels[i]->name);
      Tensor bits[4];
      for (int threads : {1, 2}) {
        run(*kernels[i], *gradients[i], threads);
        expect_close(y_, expected_[0], ulps, 1, "y");
        expect_close(y_alone_, expected_[0], ulps, 1, "y without statistics");
        for (size_t g = 0; g < 3; ++g)
          expect_close(grads_[g], expected_[g + 1], ulps, 1, "a gradient");
        if (threads == 2) {
          EXPECT_TRUE(bits[0].same_bits(y_)) << "two threads differ";
          for (size_t g = 0; g < 3; ++g) EXPECT_TRUE(bits[g + 1].same_bits(grads_[g]));
        }
        bits[0] = y_;
        for (size_t g = 0; g < 3; ++g) bits[g + 1] = grads_[g];
      }
    }
  }

  Tensor q, k, v, mask;

 private:
  void run(const KernelDef& forward, const KernelDef& gradient, int threads) {
    Attrs attrs{{"is_causal", int64_t{c_.causal}}, {"scale", kScale}, {"ratio", c_.ratio}};
    if (c_.ratio > 0) attrs.set("rng", kStream);
    const auto run_step = [&](const KernelDef& kernel, const std::vector<Tensor*>& in,
                              const std::vector<Tensor*>& out) {
      StepFacts facts = facts_of({node_of(std::string(kernel.op), attrs, in, out)}, in, out);
      facts.threads = threads;
      run_kernel(kernel, facts, in, out, threads == 1 ? ParallelFor() : two_threads);
    };
    Tensor* seen = c_.mask != DType::Undefined ? &mask : nullptr;
    y_ = heads_of(q.dtype(), c_.heads, c_.queries, c_.value_width, 6);
    const DType wide = q.dtype() == DType::Float64 ? DType::Float64 : DType::Float32;
    Tensor statistics(wide, {2, c_.heads, c_.queries, 2});
    y_alone_ = heads_of(q.dtype(), c_.heads, c_.queries, c_.value_width, 6);
    run_step(forward, {&q, &k, &v, seen}, {&y_alone_, nullptr});
    run_step(forward, {&q, &k, &v, seen}, {&y_, &statistics});
    grads_[0] = Tensor(q.dtype(), q.sizes());
    grads_[1] = Tensor(k.dtype(), k.sizes());
    grads_[2] = Tensor(v.dtype(), v.sizes());
    run_step(gradient, {&dy_, &q, &k, &v, &y_, &statistics, seen},
             {&grads_[0], &grads_[1], &grads_[2]});
  }

  void define() {
    expected_.assign(4, {});
    expected_[0].assign(static_cast<size_t>(2 * c_.heads * c_.queries * c_.value_width), 0);
    expected_[1].assign(static_cast<size_t>(q.count()), 0);
    expected_[2].assign(static_cast<size_t>(k.count()), 0);
    expected_[3].assign(static_cast<size_t>(v.count()), 0);
    for (int64_t head = 0; head < 2 * c_.heads; ++head)
      for (int64_t row = 0; row < c_.queries; ++row) define_row(head, row);
  }

  double score(int64_t head, int64_t row, int64_t key) const {
    if (c_.causal && key > row) return -kInfinity;
    double sum = 0;
    for (int64_t e = 0; e < c_.width; ++e)
      sum += q.get((head * c_.queries + row) * c_.width + e) *
             k.get((head / c_.sharers * c_.keys + key) * c_.width + e);
    if (c_.mask == DType::Undefined) return sum * kScale;
    const double seen = mask.get((head / c_.heads * c_.queries + row) * c_.keys + key);
    if (c_.mask == DType::Bool) return seen != 0 ? sum * kScale : -kInfinity;
    return sum * kScale + seen;
  }

  void define_row(int64_t head, int64_t row) {
    const int64_t at = head * c_.queries + row;
    const auto keys = static_cast<size_t>(c_.keys);
    std::vector<double> p(keys), kept(keys), dp(keys);
    double most = -kInfinity, sum = 0, dot = 0;
    bool nan = false;
    for (int64_t j = 0; j < c_.keys; ++j) {
      p[static_cast<size_t>(j)] = score(head, row, j);
      most = std::fmax(most, p[static_cast<size_t>(j)]);
      nan = nan || std::isnan(p[static_cast<size_t>(j)]);
    }
    for (double& x : p) sum += x = most == -kInfinity ? 0 : std::exp(x - most);
    for (int64_t j = 0; j < c_.keys; ++j) {
      const auto i = static_cast<size_t>(j);
      const bool keeps =
          c_.ratio == 0 || philox_word(kSeed, kStream, static_cast<uint64_t>(at * c_.keys + j)) >=
                               dropout_threshold(c_.ratio);
      p[i] = most == -kInfinity ? (nan ? std::nan("") : 0) : p[i] / sum;
      kept[i] = keeps ? dropout_scale(c_.ratio) : 0;
      for (int64_t e = 0; e < c_.value_width; ++e) {
        const int64_t of_value = (head / c_.sharers * c_.keys + j) * c_.value_width + e;
        const double value = v.get(of_value);
        const double gradient = dy_.get(at * c_.value_width + e);
        expected_[0][static_cast<size_t>(at * c_.value_width + e)] += p[i] * kept[i] * value;
        expected_[3][static_cast<size_t>(of_value)] += p[i] * kept[i] * gradient;
        dp[i] += gradient * value * kept[i];
      }
      dot += p[i] * dp[i];
    }
    for (int64_t j = 0; j < c_.keys; ++j) {
      const auto i = static_cast<size_t>(j);
      const double ds = p[i] * (dp[i] - dot) * kScale;
      for (int64_t e = 0; e < c_.width; ++e) {
        const int64_t key = (head / c_.sharers * c_.keys + j) * c_.width + e;
        expected_[1][static_cast<size_t>(at * c_.width + e)] += ds * k.get(key);
        expected_[2][static_cast<size_t>(key)] += ds * q.get(at * c_.width + e);
      }
    }
  }

  AttentionCase c_;
  Tensor dy_, y_, y_alone_, grads_[3];
  std::vector<std::vector<double>> expected_;  // y, dq, dk, dv
};

double ulps_of(DType dtype) { return size_of(dtype) == 2 ? 4 : 128; }

constexpr DType kTypes[] = {DType::Float32, DType::Float64, DType::Float16, DType::BFloat16};

TEST(AttentionKernel, MatchesItsDefinition) {
  // L, S, E, V: tiles, panels and vectors that are whole and that are not; several pieces of rows.
  const std::vector<Sizes> shapes = {{1, 1, 1, 1},     {1, 70, 64, 70}, {3, 33, 24, 40},
                                     {6, 16, 8, 8},    {7, 5, 3, 9},    {13, 40, 17, 5},
                                     {50, 33, 16, 24}, {97, 65, 8, 8}};
  for (DType dtype : kTypes)
    for (const Sizes& s : shapes)
      for (bool causal : {false, true})
        for (double ratio : {0.0, 0.3, 1.0})
          for (DType mask : {DType::Undefined, DType::Bool, dtype})
            Attention({3, s[0], s[1], s[2], s[3], causal, ratio, mask}, dtype)
                .check(ulps_of(dtype));
}

TEST(AttentionKernel, GoesOverBlocksOfKeys) {
  for (DType dtype : kTypes)
    for (bool causal : {false, true})
      for (double ratio : {0.0, 0.3})
        for (const Sizes& s : std::vector<Sizes>{{70, 300, 8, 8}, {530, 515, 5, 4}})
          Attention({1, s[0], s[1], s[2], s[3], causal, ratio}, dtype).check(ulps_of(dtype));
}

TEST(AttentionKernel, ReadsSharedKeysOnceForAllTheirQueries) {
  // L, S, E, V, sharers: read as they lie, packed, and in blocks of keys.
  for (DType dtype : kTypes)
    for (const Sizes& s : std::vector<Sizes>{{1, 70, 64, 70, 2},
                                             {3, 33, 24, 40, 6},
                                             {50, 33, 16, 24, 3},
                                             {70, 300, 8, 8, 2},
                                             {3, 0, 4, 4, 2}})
      for (bool causal : {false, true})
        for (double ratio : {0.0, 0.3})
          for (DType mask : {DType::Undefined, DType::Bool, dtype})
            Attention({6, s[0], s[1], s[2], s[3], causal, ratio, mask, 1, s[4]}, dtype)
                .check(2 * ulps_of(dtype));
}

TEST(AttentionKernel, TakesEmptyOperands) {
  for (DType dtype : kTypes)
    for (const Sizes& s :
         std::vector<Sizes>{{0, 0, 4, 4}, {0, 3, 4, 4}, {3, 0, 4, 4}, {3, 5, 0, 4}, {3, 5, 4, 0}})
      Attention({2, s[0], s[1], s[2], s[3]}, dtype).check(ulps_of(dtype));
}

TEST(AttentionKernel, TakesLargeScores) {
  for (DType dtype : {DType::Float32, DType::Float64})
    Attention({1, 30, 30, 8, 8, false, 0, DType::Undefined, 20}, dtype).check(1e4);
}

TEST(AttentionKernel, TakesManyKeys) {
  for (DType dtype : {DType::Float32, DType::Float64})
    for (int64_t keys : {8704, 8707}) Attention({1, 3, keys, 4, 4, false, 0.3}, dtype).check(128);
}

TEST(AttentionKernel, TreatsNanAndInfinitiesAsEagerDoes) {
  constexpr int64_t kKeys = 40;
  for (DType dtype : kTypes)
    for (double ratio : {0.0, 0.2}) {
      Attention attention({1, 5, kKeys, 4, 4, false, ratio, dtype}, dtype);
      attention.mask.set(5, std::nan(""));
      attention.mask.set(kKeys + 5, -kInfinity);
      for (int64_t j = 0; j < kKeys; ++j) {
        attention.mask.set(2 * kKeys + j, -kInfinity);
        attention.mask.set(3 * kKeys + j, j == kKeys - 1 ? std::nan("") : -kInfinity);
      }
      attention.check(ulps_of(dtype));
    }
}

TEST(AttentionKernel, GivesZerosForRowsThatSeeNothing) {
  for (DType dtype : kTypes)
    for (DType mask : {DType::Bool, dtype}) {
      Attention attention({2, 9, 20, 4, 4, false, 0, mask}, dtype);
      for (int64_t j = 0; j < 40; ++j)
        attention.mask.set(20 + j, mask == DType::Bool ? 0 : -kInfinity);
      attention.check(ulps_of(dtype));
    }
}

}  // namespace
}  // namespace ortmodule::testing
