// Products through an emulated cuBLASLt (tests/cublas_emulation): what a step describes to the
// library, and when. Results of all layouts are among test_kernels_matmul.cpp's.
#include <atomic>
#include <thread>

#include "emulated_clock.h"
#include "emulated_library.h"
#include "kernels/product_epilogues.h"
#include "temporary_folder.h"
#include "test_kernels_harness.h"

namespace ortmodule::testing {
namespace {

using cublas::emulation::counts;
using cublas::emulation::refuse;

/// A step of cuBLASLt's kernel, prepared once and run as often as wanted.
class CublasStep {
 public:
  CublasStep(const std::string& op, const Attrs& attrs, const std::vector<Tensor*>& in,
             const std::vector<Tensor*>& out)
      : facts_(facts_of({node_of(op, attrs, in, out)}, in, out)) {
    for (const KernelDef* def : kernels_of(op))
      if (def->name.ends_with("_cublaslt")) kernel_ = def;
    EXPECT_NE(kernel_, nullptr) << op;
    EXPECT_FALSE(kernel_->unsupported(facts_)) << *kernel_->unsupported(facts_);
    workspace_bytes_ = kernel_->workspace_bytes(facts_);
    prepared_ = kernel_->prepare(facts_);
  }

  void run(const std::vector<Tensor*>& in, const std::vector<Tensor*>& out,
           KernelContext context = {}) const {
    struct alignas(64) Line {
      std::byte bytes[64];
    };
    std::vector<Line> workspace(workspace_bytes_ / 64 + 1);
    std::vector<TensorView> in_views, out_views;
    for (Tensor* t : in) in_views.push_back(t->view());
    for (Tensor* t : out) out_views.push_back(t->view());
    kernel_->run({facts_, in_views, out_views, workspace.data(), prepared_.get(), context});
  }

  void forget() { prepared_.reset(); }

 private:
  StepFacts facts_;
  const KernelDef* kernel_ = nullptr;
  size_t workspace_bytes_ = 0;
  std::shared_ptr<const void> prepared_;
};

/// A Gemm of [rows, 24] and [24, 16] with a bias, and what it gives.
struct BiasedProduct {
  Tensor a, b, bias, y;

  explicit BiasedProduct(unsigned seed, int64_t rows = 8)
      : a(Tensor::random(DType::Float32, {rows, 24}, seed)),
        b(Tensor::random(DType::Float32, {24, 16}, seed + 1)),
        bias(Tensor::random(DType::Float32, {16}, seed + 2)),
        y(DType::Float32, {rows, 16}) {}
  std::vector<Tensor*> in() { return {&a, &b, &bias}; }
  std::vector<Tensor*> out() { return {&y}; }

  void expect_right() const {
    std::vector<double> expected;
    for (int64_t i = 0; i < y.sizes()[0]; ++i)
      for (int64_t j = 0; j < 16; ++j) {
        double sum = bias.get(j);
        for (int64_t k = 0; k < 24; ++k) sum += a.get(i * 24 + k) * b.get(k * 16 + j);
        expected.push_back(sum);
      }
    expect_close(y, expected, 4, 1, "y");
  }
};

TEST(CublasProducts, AreDescribedOnceForAStep) {
  const int64_t alive = counts().alive;
  BiasedProduct first(1, 9), second(11, 9);
  CublasStep step("Gemm", {}, first.in(), first.out());
  EXPECT_EQ(counts().alive, alive) << "a plan that does not run describes nothing";
  const int64_t asked = counts().heuristics;
  step.run(first.in(), first.out());
  first.expect_right();
  const int64_t created = counts().created;
  EXPECT_GT(counts().alive, alive);
  step.run(second.in(), second.out());  // other addresses, also of the bias
  second.expect_right();
  step.run(first.in(), first.out());
  first.expect_right();
  EXPECT_EQ(counts().created, created);
  EXPECT_EQ(counts().heuristics, asked + 1);
  step.forget();
  EXPECT_EQ(counts().alive, alive) << "descriptors go with their step";
}

TEST(CublasProducts, OfEqualStepsHaveOneAlgorithm) {
  BiasedProduct product(21, 10);
  const CublasStep first("Gemm", {}, product.in(), product.out());
  first.run(product.in(), product.out());
  const int64_t asked = counts().heuristics;
  const CublasStep second("Gemm", {}, product.in(), product.out());
  second.run(product.in(), product.out());
  EXPECT_EQ(counts().heuristics, asked);
  // Operands elsewhere are another problem: the algorithm may rely on their alignment.
  BiasedProduct other(31, 10);
  other.a = other.a.misaligned(1);
  second.run(other.in(), other.out());
  other.expect_right();
  EXPECT_EQ(counts().heuristics, asked + 1);
}

TEST(CublasProducts, FollowTheFlagsOfTheRun) {
  BiasedProduct product(41, 11);
  const CublasStep step("Gemm", {}, product.in(), product.out());
  for (const bool tf32 : {false, true, false}) {
    KernelContext context;
    context.allow_tf32 = tf32;
    step.run(product.in(), product.out(), context);
    EXPECT_EQ(counts().last_compute, tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F);
  }
}

TEST(CublasProducts, OfThreadsDoNotMix) {
  BiasedProduct shape(51, 12);
  const CublasStep step("Gemm", {}, shape.in(), shape.out());
  std::vector<BiasedProduct> products;
  for (unsigned i = 0; i < 4; ++i) products.emplace_back(60 + 10 * i, 12);
  std::vector<std::thread> threads;
  for (BiasedProduct& product : products)
    threads.emplace_back([&] {
      for (int i = 0; i < 50; ++i) step.run(product.in(), product.out());
    });
  for (std::thread& thread : threads) thread.join();
  for (const BiasedProduct& product : products) product.expect_right();
}

/// dW and the sum of dY's rows.
struct WeightGradient {
  int64_t rows;
  Tensor dy, x;
  Tensor dw = Tensor(DType::Float32, {16, 24}), db = Tensor(DType::Float32, {16});

  explicit WeightGradient(int64_t rows)
      : rows(rows),
        dy(Tensor::random(DType::Float32, {rows, 16}, 71)),
        x(Tensor::random(DType::Float32, {rows, 24}, 72)) {}
  std::vector<Tensor*> in() { return {&dy, &x}; }
  std::vector<Tensor*> out() { return {&dw, &db}; }

  void expect_right() const {
    std::vector<double> product, sums;
    for (int64_t i = 0; i < 16; ++i) {
      double sum = 0;
      for (int64_t k = 0; k < rows; ++k) sum += dy.get(k * 16 + i);
      sums.push_back(sum);
      for (int64_t j = 0; j < 24; ++j) {
        double dot = 0;
        for (int64_t k = 0; k < rows; ++k) dot += dy.get(k * 16 + i) * x.get(k * 24 + j);
        product.push_back(dot);
      }
    }
    expect_close(dw, product, 4, 1, "dw");
    expect_close(db, sums, 4, 1, "db");
  }
};

TEST(CublasProducts, ThatAreRefusedAreMadeOfTheirParts) {
  WeightGradient gradient(8);
  const CublasStep step("WeightBiasGrad", {}, gradient.in(), gradient.out());
  step.run(gradient.in(), gradient.out());
  gradient.expect_right();
  std::atomic<int> refused = 0;
  refuse([&](cublasLtEpilogue_t epilogue) {
    if (epilogue != CUBLASLT_EPILOGUE_BGRADB) return CUBLAS_STATUS_SUCCESS;
    ++refused;
    return CUBLAS_STATUS_NOT_SUPPORTED;
  });
  for (int i = 0; i < 2; ++i) {
    for (Tensor* t : gradient.out()) t->forget();
    step.run(gradient.in(), gradient.out());
    gradient.expect_right();
  }
  const CublasStep equal("WeightBiasGrad", {}, gradient.in(), gradient.out());
  equal.run(gradient.in(), gradient.out());
  EXPECT_EQ(refused, 1) << "the library is not asked again, by no step";
  refuse({});
}

TEST(CublasProducts, ThatFailInTheirLaunchEndTheStep) {
  BiasedProduct product(81, 13);
  const CublasStep step("Gemm", {}, product.in(), product.out());
  refuse([](cublasLtEpilogue_t) { return CUBLAS_STATUS_EXECUTION_FAILED; });
  EXPECT_THROW(step.run(product.in(), product.out()), Error);
  refuse({});
  step.run(product.in(), product.out());
  product.expect_right();
}

/// Launches take a millisecond without an epilogue that gives a second result, and `epilogue_ms`
/// with one; counts both. Plans measure, and keep what they choose in `file`.
class MeasuredEpilogues {
 public:
  MeasuredEpilogues(float epilogue_ms, const std::string& file) {
    use_product_epilogues(EpilogueUse::Measured, file);
    refuse([this, epilogue_ms](cublasLtEpilogue_t epilogue) {
      const bool plain =
          epilogue == CUBLASLT_EPILOGUE_DEFAULT || epilogue == CUBLASLT_EPILOGUE_BIAS;
      ++(plain ? parts : epilogues);
      cuda::emulation::pass_time(plain ? 1 : epilogue_ms);
      return CUBLAS_STATUS_SUCCESS;
    });
  }
  MeasuredEpilogues(const MeasuredEpilogues&) = delete;
  MeasuredEpilogues& operator=(const MeasuredEpilogues&) = delete;
  ~MeasuredEpilogues() {
    use_product_epilogues(EpilogueUse::Always);
    cuda::emulation::pretend_capture(false);
    refuse({});
  }

  std::atomic<int> epilogues = 0, parts = 0;
};

void run_right(const CublasStep& step, WeightGradient& gradient, KernelContext context = {}) {
  for (Tensor* t : gradient.out()) t->forget();
  step.run(gradient.in(), gradient.out(), context);
  gradient.expect_right();
}

TEST(ProductEpilogues, ThatTakeLongerAreLeftOut) {
  const TemporaryFolder folder;
  WeightGradient gradient(9);
  const MeasuredEpilogues measured(3, folder / "choices");
  const CublasStep step("WeightBiasGrad", {}, gradient.in(), gradient.out());
  run_right(step, gradient);
  const int timed = measured.epilogues, parts = measured.parts;
  EXPECT_GT(timed, 3);
  const std::vector<double> bits = gradient.db.values();
  run_right(step, gradient);
  EXPECT_EQ(gradient.db.values(), bits);
  // Of a plan of its own, and of one with other flags.
  const CublasStep equal("WeightBiasGrad", {}, gradient.in(), gradient.out());
  run_right(equal, gradient);
  EXPECT_EQ(measured.epilogues, timed);
  EXPECT_EQ(measured.parts, parts + 2);
  KernelContext context;
  context.allow_tf32 = true;
  run_right(equal, gradient, context);
  EXPECT_EQ(measured.epilogues, 2 * timed);
  const auto kept = epilogue_choices()->measured();
  ASSERT_EQ(kept.size(), 2u);
  for (const EpilogueChoices::Choice& choice : kept) {
    EXPECT_FALSE(choice.epilogue);
    EXPECT_FLOAT_EQ(choice.times.epilogue_us, 3000);
    EXPECT_FLOAT_EQ(choice.times.parts_us, 1000);
    EXPECT_EQ(choice.problem.find("emulated, cuBLASLt 1, f32 16x9x24 batch 1 "), 0u)
        << choice.problem;
  }
}

TEST(ProductEpilogues, ThatTakeLessStay) {
  const TemporaryFolder folder;
  WeightGradient gradient(10);
  const MeasuredEpilogues measured(0.5F, folder / "choices");
  const CublasStep step("WeightBiasGrad", {}, gradient.in(), gradient.out());
  run_right(step, gradient);
  const int timed = measured.epilogues, parts = measured.parts;
  run_right(step, gradient);
  EXPECT_EQ(measured.epilogues, timed + 1);
  EXPECT_EQ(measured.parts, parts);
}

TEST(ProductEpilogues, AreNotTimedWhileAGraphIsCaptured) {
  const TemporaryFolder folder;
  WeightGradient gradient(11);
  const MeasuredEpilogues measured(3, folder / "choices");
  const CublasStep step("WeightBiasGrad", {}, gradient.in(), gradient.out());
  cuda::emulation::pretend_capture(true);
  run_right(step, gradient);
  EXPECT_EQ(measured.epilogues, 1);
  // What a graph has recorded has the bits of later steps.
  cuda::emulation::pretend_capture(false);
  const CublasStep equal("WeightBiasGrad", {}, gradient.in(), gradient.out());
  run_right(equal, gradient);
  EXPECT_EQ(measured.epilogues, 2);
  EXPECT_EQ(measured.parts, 0);
}

TEST(ProductEpilogues, OfGeluHaveItsOperandToo) {
  const TemporaryFolder folder;
  Tensor x = Tensor::random(DType::BFloat16, {8, 24}, 91);
  Tensor w = Tensor::random(DType::BFloat16, {24, 16}, 92);
  Tensor bias = Tensor::random(DType::BFloat16, {16}, 93);
  Tensor y(DType::BFloat16, {8, 16}), before(DType::BFloat16, {8, 16});
  const MeasuredEpilogues measured(3, folder / "choices");
  const CublasStep step("GemmFastGelu", {{"transB", 0}}, {&x, &w, &bias}, {&y, &before});
  for (int i = 0; i < 2; ++i) {
    y.forget(), before.forget();
    step.run({&x, &w, &bias}, {&y, &before});
    std::vector<double> sums, bent;
    for (int64_t at = 0; at < 8 * 16; ++at) {
      double sum = bias.get(at % 16);
      for (int64_t k = 0; k < 24; ++k) sum += x.get(at / 16 * 24 + k) * w.get(k * 16 + at % 16);
      sums.push_back(sum);
      const double z = before.get(at);
      bent.push_back(0.5 * z * (1 + std::tanh(0.7978845608028654 * (z + 0.044715 * z * z * z))));
    }
    expect_close(before, sums, 4, 1, "before");
    expect_close(y, bent, 4, 1, "y");
  }
  EXPECT_EQ(epilogue_choices()->measured().size(), 1u);
  const int timed = measured.epilogues;
  step.run({&x, &w, &bias}, {&y, &before});
  EXPECT_EQ(measured.epilogues, timed);
}

TEST(ProductEpilogues, CanBeTurnedOff) {
  WeightGradient gradient(12);
  const StepFacts facts = facts_of({node_of("WeightBiasGrad", {}, gradient.in(), gradient.out())},
                                   gradient.in(), gradient.out());
  const auto selected = [&] {
    std::string why;
    return select_kernel("WeightBiasGrad", Device::CUDA, facts, &why)->name;
  };
  EXPECT_EQ(selected(), "weight_bias_grad_cublaslt");
  use_product_epilogues(EpilogueUse::Never);
  EXPECT_EQ(selected(), "weight_bias_grad_parts");
  use_product_epilogues(EpilogueUse::Always);
}

}  // namespace
}  // namespace ortmodule::testing
