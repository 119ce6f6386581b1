// The optimizers' kernels, every copy of them, against the formulas in double.
#include "kernels/adam.h"
#include "test_kernels_harness.h"

namespace ortmodule::testing {
namespace {

constexpr double kBeta1 = 0.9, kBeta2 = 0.99, kLr = 0.01, kEpsilon = 1e-6, kDecay = 0.1;

/// The operands of FusedAdam for tensors of these sizes.
struct AdamCase {
  std::vector<Tensor> tensors;  // five of each, then lr, scale and flag
  std::vector<Tensor*> operands;

  AdamCase(DType type, DType moments, const std::vector<int64_t>& counts) {
    unsigned seed = 1;
    for (int64_t count : counts) {
      tensors.push_back(Tensor::random(type, {count}, seed++));
      tensors.push_back(Tensor::random(type, {count}, seed++));
      tensors.push_back(Tensor::random(moments, {count}, seed++));
      tensors.push_back(Tensor::random(moments, {count}, seed++, 0.01, 2));
      tensors.push_back(Tensor::of(DType::Float32, {1}, {static_cast<double>(seed)}));
    }
    refresh(3);
  }
  void refresh(size_t absent) {
    operands.clear();
    for (Tensor& tensor : tensors) operands.push_back(&tensor);
    for (size_t i = 0; i < absent; ++i) operands.push_back(nullptr);
  }
  StepFacts facts(AdamMode mode, double weight_decay = kDecay) const {
    Attrs attrs = {{"mode", DimExpr(static_cast<int64_t>(mode))},
                   {"bias_correction", DimExpr(1)},
                   {"lr", kLr},
                   {"beta1", kBeta1},
                   {"beta2", kBeta2},
                   {"epsilon", kEpsilon},
                   {"weight_decay", weight_decay},
                   {"tensors", DimExpr(static_cast<int64_t>(operands.size() / 5))}};
    return facts_of({node_of("FusedAdam", attrs, operands, {})}, operands, {});
  }
};

struct Element {
  double p, g, m, v;
};

/// The formula of Kingma and Ba, and where each mode decays.
Element reference(AdamMode mode, Element e, double t) {
  if (mode == AdamMode::L2) e.g += kDecay * e.p;
  e.m = kBeta1 * e.m + (1 - kBeta1) * e.g;
  e.v = kBeta2 * e.v + (1 - kBeta2) * e.g * e.g;
  const double correction1 = 1 - std::pow(kBeta1, t), correction2 = 1 - std::pow(kBeta2, t);
  if (mode == AdamMode::Torch) e.p -= kLr * kDecay * e.p;
  if (mode == AdamMode::Transformers) {
    e.p -= kLr * std::sqrt(correction2) / correction1 * e.m / (std::sqrt(e.v) + kEpsilon);
    e.p -= kLr * kDecay * e.p;
  } else {
    e.p -= kLr / correction1 * e.m / (std::sqrt(e.v / correction2) + kEpsilon);
  }
  return e;
}

double precision_of(DType type) {
  if (type == DType::Float64) return 1e-13;
  if (type == DType::Float32) return 1e-6;
  return type == DType::Float16 ? 2e-3 : 1.6e-2;
}

const std::vector<int64_t> kCounts = {1, 0, 5, 64, 129, 1500, 70001};

void check_adam(const AdamCase& before, const AdamCase& after, AdamMode mode, double scale) {
  for (size_t i = 0; i + 4 < before.tensors.size(); i += 5) {
    const double t = before.tensors[i + 4].get(0) + 1;
    ASSERT_EQ(after.tensors[i + 4].get(0), t);
    for (int64_t k = 0; k < before.tensors[i].count(); ++k) {
      const auto at = [&](size_t list) { return before.tensors[i + list].get(k); };
      const Element e = reference(mode, {at(0), at(1) / scale, at(2), at(3)}, t);
      const double type = precision_of(before.tensors[i].dtype());
      const double moments = precision_of(before.tensors[i + 2].dtype());
      ASSERT_NEAR(after.tensors[i].get(k), e.p, type * 4) << i << " " << k;
      ASSERT_NEAR(after.tensors[i + 1].get(k), at(1) / scale, type * 4);
      ASSERT_NEAR(after.tensors[i + 2].get(k), e.m, moments * 4);
      ASSERT_NEAR(after.tensors[i + 3].get(k), e.v, moments * 4);
    }
  }
}

TEST(FusedAdam, AgreesWithTheFormula) {
  const std::pair<DType, DType> types[] = {
      {DType::Float32, DType::Float32},  {DType::Float64, DType::Float64},
      {DType::Float16, DType::Float32},  {DType::Float16, DType::Float16},
      {DType::BFloat16, DType::Float32}, {DType::BFloat16, DType::BFloat16}};
  for (auto [type, moments] : types)
    for (AdamMode mode : {AdamMode::L2, AdamMode::Transformers, AdamMode::Torch})
      for (const KernelDef* def : kernels_of("FusedAdam"))
        for (ParallelFor threads : {ParallelFor{}, ParallelFor{two_threads}}) {
          SCOPED_TRACE(str(def->name, " ", name_of(type), " ", name_of(moments), " ",
                           static_cast<int>(mode), threads ? " two threads" : ""));
          const AdamCase before(type, moments, kCounts);
          AdamCase after(type, moments, kCounts);
          run_kernel(*def, after.facts(mode), after.operands, {}, threads);
          check_adam(before, after, mode, 1.0);
        }
}

TEST(FusedAdam, TakesLearningRateScaleAndFlagFromMemory) {
  for (const KernelDef* def : kernels_of("FusedAdam")) {
    const AdamCase before(DType::Float32, DType::Float32, kCounts);
    AdamCase after(DType::Float32, DType::Float32, kCounts);
    Tensor lr = Tensor::of(DType::Float32, {1}, {kLr});
    Tensor scale = Tensor::of(DType::Float32, {1}, {8.0});
    Tensor found = Tensor::of(DType::Float32, {1}, {0.0});
    after.refresh(0);
    for (Tensor* number : {&lr, &scale, &found}) after.operands.push_back(number);
    StepFacts facts = after.facts(AdamMode::Torch);
    facts.nodes[0].attrs.set("lr", 123.0);
    run_kernel(*def, facts, after.operands, {});
    check_adam(before, after, AdamMode::Torch, 8.0);

    AdamCase skipped(DType::Float32, DType::Float32, kCounts);
    skipped.refresh(2);
    found.set(0, 1.0);
    skipped.operands.push_back(&found);
    run_kernel(*def, skipped.facts(AdamMode::Torch), skipped.operands, {});
    for (size_t i = 0; i < before.tensors.size(); ++i)
      ASSERT_TRUE(skipped.tensors[i].same_bits(before.tensors[i])) << i;
  }
}

TEST(FusedAdam, KeepsInfiniteParametersWithoutWeightDecay) {
  const double infinity = std::numeric_limits<double>::infinity();
  for (DType type : {DType::Float32, DType::Float64, DType::Float16, DType::BFloat16})
    for (AdamMode mode : {AdamMode::L2, AdamMode::Transformers, AdamMode::Torch})
      for (const KernelDef* def : kernels_of("FusedAdam")) {
        SCOPED_TRACE(str(def->name, " ", name_of(type), " ", static_cast<int>(mode)));
        AdamCase given(type, type, {131});
        for (int64_t k = 0; k < 131; k += 2)
          given.tensors[0].set(k, k % 4 == 0 ? infinity : -infinity);
        run_kernel(*def, given.facts(mode, 0.0), given.operands, {});
        for (int64_t k = 0; k < 131; ++k) {
          if (k % 2 == 0)
            ASSERT_EQ(given.tensors[0].get(k), k % 4 == 0 ? infinity : -infinity) << k;
          else
            ASSERT_TRUE(std::isfinite(given.tensors[0].get(k))) << k;
        }
      }
}

TEST(FusedAdam, TakesManyTensors) {
  std::vector<int64_t> counts(150);
  for (size_t i = 0; i < counts.size(); ++i) counts[i] = static_cast<int64_t>(i % 6);
  counts[63] = counts[64] = counts[149] = 20000;
  for (const KernelDef* def : kernels_of("FusedAdam")) {
    SCOPED_TRACE(def->name);
    const AdamCase before(DType::Float32, DType::Float32, counts);
    AdamCase after(DType::Float32, DType::Float32, counts);
    run_kernel(*def, after.facts(AdamMode::Torch), after.operands, {}, two_threads);
    check_adam(before, after, AdamMode::Torch, 1.0);
  }
}

TEST(FusedAdam, TakesUnalignedOperands) {
  const AdamCase before(DType::BFloat16, DType::Float32, {1500});
  for (const KernelDef* def : kernels_of("FusedAdam"))
    for (size_t moved = 0; moved < 5; ++moved) {  // 4: all of them
      SCOPED_TRACE(str(def->name, " ", moved));
      AdamCase after(DType::BFloat16, DType::Float32, {1500});
      const int64_t count = 1499;
      std::vector<TensorView> views;
      for (size_t i = 0; i < 4; ++i) {
        TensorView view = after.tensors[i].view();
        view.sizes = &count;
        if (moved == i || moved == 4) view.data = view.as<char>() + size_of(view.dtype);
        views.push_back(view);
      }
      views.push_back(after.tensors[4].view());
      views.resize(8);
      StepFacts facts = after.facts(AdamMode::Torch);
      std::vector<std::byte> workspace(def->workspace_bytes ? def->workspace_bytes(facts) : 1);
      KernelContext context;
      def->run({facts, views, {}, workspace.data(), nullptr, context});
      const auto shift = [&](size_t i) { return int64_t{moved == i || moved == 4}; };
      for (int64_t k = 0; k < count; ++k) {
        const auto at = [&](size_t i) { return before.tensors[i].get(k + shift(i)); };
        const Element e =
            reference(AdamMode::Torch, {at(0), at(1), at(2), at(3)}, before.tensors[4].get(0) + 1);
        ASSERT_NEAR(after.tensors[0].get(k + shift(0)), e.p, 0.06) << k;
        ASSERT_NEAR(after.tensors[2].get(k + shift(2)), e.m, 4e-6) << k;
        ASSERT_NEAR(after.tensors[3].get(k + shift(3)), e.v, 4e-6) << k;
      }
      for (size_t i : {0, 2, 3}) {
        const int64_t untouched = shift(i) ? 0 : count;
        ASSERT_EQ(after.tensors[i].get(untouched), before.tensors[i].get(untouched));
      }
    }
}

TEST(UnscaleGradients, MultipliesAndFindsWhatIsNotFinite) {
  const double infinity = std::numeric_limits<double>::infinity();
  for (DType type : {DType::Float32, DType::Float64, DType::Float16, DType::BFloat16})
    for (const KernelDef* def : kernels_of("UnscaleGradients"))
      for (double bad : {0.0, infinity, -infinity, std::nan("")})
        for (int64_t where : {int64_t{0}, int64_t{69999}}) {
          SCOPED_TRACE(str(def->name, " ", name_of(type), " ", bad, " at ", where));
          Tensor small = Tensor::random(type, {77}, 1), large = Tensor::random(type, {70000}, 2);
          if (bad != 0) large.set(where, bad);
          Tensor found(DType::Float32, {1});
          const double untouched = found.get(0);
          Tensor a(compute_dtype(type), {77}), b(compute_dtype(type), {70000});
          StepFacts facts =
              facts_of({node_of("UnscaleGradients", {{"factor", 0.125}, {"tensors", DimExpr(2)}},
                                {&small, &large}, {&a, &b, &found})},
                       {&small, &large}, {&a, &b, &found});
          run_kernel(*def, facts, {&small, &large}, {&a, &b, &found}, two_threads);
          EXPECT_EQ(found.get(0), bad != 0 ? 1.0 : untouched);
          for (int64_t k = 0; k < 77; ++k) ASSERT_EQ(a.get(k), 0.125 * small.get(k));
          for (int64_t k = 1; k < 69999; ++k) ASSERT_EQ(b.get(k), 0.125 * large.get(k));
        }
}

}  // namespace
}  // namespace ortmodule::testing
