// The row kernels of ScaledDotProductAttention against their definitions in double.
#include <limits>

#include "kernels/attention_strip.h"
#include "kernels/philox.h"
#include "test_kernels_harness.h"

namespace ortmodule::testing {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr uint64_t kStream = 3;

struct StripCase {
  Sizes sizes;  // heads, rows, columns
  bool causal = false;
  double ratio = 0;
  DType mask = DType::Undefined;
  StripPosition position = {};
};

class AttentionStrip {
 public:
  AttentionStrip(const StripCase& c, DType dtype)
      : c_(c),
        scores(Tensor::random(dtype, c.sizes, 1, -3, 3)),
        dp(Tensor::random(dtype, c.sizes, 2)),
        position_(DType::Int64, {4}) {
    if (c.mask != DType::Undefined) {
      // One mask for all heads.
      const Sizes strides{0, c.sizes[2], 1};
      mask_ = Tensor::random(c.mask, c.sizes, 3, -1, 1, strides);
      if (c.mask == DType::Bool)
        for (int64_t i = 0; i < mask_.count(); ++i) mask_.set(i, i % 3 != 1);
    }
    const int64_t numbers[4] = {c.position.first_head, c.position.first_row, c.position.queries,
                                c.position.keys};
    std::memcpy(position_.data(), numbers, sizeof(numbers));
  }

  /// Runs every kernel of both ops, in place as attention does, twice each.
  void check() {
    define();
    const Attrs attrs{{"is_causal", c_.causal ? 1 : 0},
                      {"scale", kScale},
                      {"ratio", c_.ratio},
                      {"rng", static_cast<int64_t>(kStream)}};
    for (const KernelDef* def : kernels_of("AttentionProbabilities")) run(*def, attrs, false);
    for (const KernelDef* def : kernels_of("AttentionScoresGrad")) run(*def, attrs, true);
  }

 private:
  static constexpr double kScale = 0.7;

  void run(const KernelDef& def, const Attrs& attrs, bool gradient) {
    SCOPED_TRACE(def.name);
    Tensor* mask = c_.mask != DType::Undefined ? &mask_ : nullptr;
    Tensor bits;
    for (int repeat = 0; repeat < 2; ++repeat) {
      Tensor p = scores, ds = dp;
      std::vector<Tensor*> in{&p, mask, &position_}, out{&p};
      if (gradient) {
        in.push_back(&ds);
        out.push_back(&ds);
      }
      const StepFacts facts = facts_of({node_of(std::string(def.op), attrs, in, out)}, in, out);
      run_kernel(def, facts, in, out, repeat ? two_threads : nullptr);
      expect_close(p, probabilities_, 64, 0.5, "probabilities");
      if (gradient) expect_close(ds, dscores_, 256, 1, "dscores");
      if (repeat) {
        EXPECT_TRUE(bits.same_bits(p)) << "a second run differs";
      }
      bits = p;
    }
  }

  void define() {
    const int64_t rows = c_.sizes[1], columns = c_.sizes[2];
    for (int64_t i = 0; i < c_.sizes[0] * rows; ++i) {
      const int64_t query = c_.position.first_row + i % rows;
      const int64_t seen = c_.causal ? std::min(columns, query + 1) : columns;
      std::vector<double> x, kept, d;
      double most = -kInfinity, sum = 0, dot = 0;
      bool nan = false;
      for (int64_t j = 0; j < columns; ++j) {
        double score = scores.get(i * columns + j) * kScale;
        if (c_.mask == DType::Bool) score = mask_.get(i * columns + j) != 0 ? score : -kInfinity;
        if (c_.mask != DType::Bool && c_.mask != DType::Undefined)
          score += mask_.get(i * columns + j);
        x.push_back(j < seen ? score : -kInfinity);
        nan = nan || std::isnan(x.back());
        most = std::fmax(most, x.back());
        const int64_t head = c_.position.first_head + i / rows;
        const int64_t logical = (head * c_.position.queries + query) * c_.position.keys + j;
        const bool keeps = philox_word(kSeed, kStream, static_cast<uint64_t>(logical)) >=
                           dropout_threshold(c_.ratio);
        kept.push_back(keeps ? dropout_scale(c_.ratio) : 0);
        d.push_back(dp.get(i * columns + j) * kept.back());
      }
      for (double& v : x) sum += v = std::exp(v - most);
      for (size_t j = 0; j < x.size(); ++j) {
        x[j] = most == -kInfinity ? (nan ? std::nan("") : 0) : x[j] / sum;
        dot += x[j] * d[j];
      }
      for (size_t j = 0; j < x.size(); ++j) {
        probabilities_.push_back(x[j] * kept[j]);
        dscores_.push_back(x[j] * (d[j] - dot) * kScale);
      }
    }
  }

  StripCase c_;

 public:
  Tensor scores, dp;

 private:
  Tensor mask_, position_;
  std::vector<double> probabilities_, dscores_;
};

constexpr DType kTypes[] = {DType::Float32, DType::Float64};

TEST(AttentionRows, MatchTheirDefinition) {
  const std::vector<Sizes> shapes = {{1, 1, 1},   {2, 3, 7},    {3, 5, 64},
                                     {1, 2, 333}, {2, 2, 1024}, {2, 0, 4}};
  for (DType dtype : kTypes)
    for (const Sizes& sizes : shapes)
      for (bool causal : {false, true})
        for (double ratio : {0.0, 0.3, 1.0})
          for (DType mask : {DType::Undefined, DType::Bool, dtype, DType::BFloat16})
            AttentionStrip({sizes, causal, ratio, mask, {3, 2, 9, sizes[2] + 1}}, dtype).check();
}

TEST(AttentionRows, TakesLongRows) {
  for (DType dtype : kTypes)
    for (int64_t columns : {8704, 8707})
      AttentionStrip({{1, 2, columns}, false, 0.3, DType::Undefined, {0, 1, 4, columns}}, dtype)
          .check();
}

TEST(AttentionRows, TreatsNanAndInfinitiesAsEagerDoes) {
  for (DType dtype : kTypes) {
    AttentionStrip strip({{1, 4, 40}, false, 0.2, DType::Undefined, {0, 0, 4, 40}}, dtype);
    strip.scores.set(5, std::nan(""));
    strip.scores.set(45, -kInfinity);
    for (int64_t j = 0; j < 40; ++j) strip.scores.set(80 + j, -kInfinity);
    for (int64_t j = 0; j < 40; ++j) strip.scores.set(120 + j, j == 7 ? std::nan("") : -kInfinity);
    strip.check();
  }
}

}  // namespace
}  // namespace ortmodule::testing
