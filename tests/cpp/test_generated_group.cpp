// How generated code replaces the interpreter while a program runs: in the background, between
// runs, from disk; with the C++ compiler in place of NVRTC.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "host_library.h"
#include "kernels/cuda/generated_group.h"
#include "pointwise_samples.h"

namespace ortmodule::testing {
namespace {

namespace fs = std::filesystem;

const KernelDef& cuda_kernel() {
  for (const KernelDef* def : kernels_of("PointwiseGroup"))
    if (def->device == Device::CUDA) return *def;
  throw InternalError("no CUDA kernel of groups");
}

KernelContext context_of(uint64_t number, int device = 0) {
  KernelContext context;
  context.seed.value = kSeed;
  context.generated_code = number;
  context.device_index = device;
  return context;
}

PointwiseExample example() {
  PointwiseExample sample = std::move(pointwise_samples().at("bias_gelu_bf16"));
  for (size_t i = 0; i < sample.inputs.size(); ++i)
    *sample.inputs[i] = Tensor::random(sample.inputs[i]->dtype(), sample.inputs[i]->sizes(),
                                       static_cast<unsigned>(i + 1));
  return sample;
}

/// A plan's step, run by hand.
class Step {
 public:
  explicit Step(const PointwiseExample& e)
      : example_(e), facts_(e.facts()), prepared_(cuda_kernel().prepare(facts_)) {}

  Tensor run(KernelContext context, int64_t skipped_bytes = 0) {
    std::vector<TensorView> in, out;
    for (Tensor* t : example_.in()) in.push_back(t->view());
    for (Tensor* t : example_.out()) out.push_back(t->view());
    in[0].data = static_cast<std::byte*>(in[0].data) + skipped_bytes;
    cuda_kernel().run({facts_, in, out, nullptr, prepared_.get(), context});
    return *example_.outputs[0];
  }

 private:
  const PointwiseExample& example_;
  StepFacts facts_;
  std::shared_ptr<const void> prepared_;
};

TEST(GeneratedGroup, ReplacesTheInterpreterBetweenRuns) {
  const PointwiseExample e = example();
  const Tensor expected = Step(e).run(context_of(0));
  cuda::enable_generated_code(std::make_unique<cuda::emulation::HostCodeMaker>(), "");
  cuda::GeneratedCode& code = *cuda::generated_code();
  Step step(e);
  const auto launches = [&] { return code.counts().launches; };

  const uint64_t first = code.newest(context_of(0));
  EXPECT_TRUE(step.run(context_of(first)).same_bits(expected));
  code.finish();
  EXPECT_EQ(code.counts().compiled, 1);
  // Compiled, but the run that is under way does not know it; nor does one that began before it was
  // loaded.
  step.run(context_of(first));
  const uint64_t second = code.newest(context_of(0));
  EXPECT_GT(second, first);
  step.run(context_of(first));
  EXPECT_EQ(launches(), 0);

  std::memset(e.outputs[0]->data(), 0, 64);
  EXPECT_TRUE(step.run(context_of(second)).same_bits(expected));
  EXPECT_EQ(launches(), 1);
  // A view that does not begin at a vector is interpreted.
  step.run(context_of(second), 2);
  EXPECT_EQ(launches(), 1);
  // An equal step shares the code.
  EXPECT_TRUE(Step(e).run(context_of(second)).same_bits(expected));
  EXPECT_EQ(launches(), 2);
  EXPECT_EQ(code.counts().compiled, 1);
}

/// Counts what it is asked for.
class CountingMaker : public cuda::CodeMaker {
 public:
  struct Counts {
    std::atomic<int> compiled{0}, loaded{0};
    std::atomic<bool> fails{false}, capturing{false};
  };
  explicit CountingMaker(Counts& counts) : counts_(counts) {}

  std::string environment(int device) const override { return str("device ", device); }
  std::string compile(const cuda::PointwiseSource&, int device) const override {
    ++counts_.compiled;
    if (counts_.fails) throw Error("[test] it must compile, but does not");
    return str("code for ", device);
  }
  std::unique_ptr<cuda::LoadedCode> load(const std::string& code, const cuda::PointwiseSource&,
                                         int device) const override {
    EXPECT_EQ(code, str("code for ", device));
    ++counts_.loaded;
    return std::make_unique<NoCode>();
  }
  bool may_load(const KernelContext&) const override { return !counts_.capturing; }

 private:
  struct NoCode : cuda::LoadedCode {
    void launch(const cuda::PointwiseLaunch&, int64_t, const KernelContext&) const override {}
  };
  Counts& counts_;
};

class CountedCode : public ::testing::Test {
 protected:
  std::unique_ptr<cuda::GeneratedCode> make(const std::string& folder = "") {
    return std::make_unique<cuda::GeneratedCode>(std::make_unique<CountingMaker>(counts_), folder);
  }
  std::shared_ptr<cuda::GeneratedGroup> group_in(cuda::GeneratedCode& code) {
    const PointwiseExample e = example();
    return code.group(*cuda::compile_pointwise(e.facts()));
  }
  CountingMaker::Counts counts_;
};

TEST_F(CountedCode, LoadsForEachDeviceAndNotInCaptures) {
  const auto code = make();
  const auto group = group_in(*code);
  EXPECT_EQ(group_in(*code), group);
  const uint64_t first = code->newest(context_of(0));
  for (int device : {0, 3}) EXPECT_EQ(group->code(context_of(first, device)), nullptr);
  code->finish();
  EXPECT_EQ(counts_.compiled, 2);
  counts_.capturing = true;
  EXPECT_EQ(code->newest(context_of(0)), first);
  EXPECT_EQ(counts_.loaded, 0);
  counts_.capturing = false;
  const uint64_t second = code->newest(context_of(0, 3));
  EXPECT_EQ(counts_.loaded, 1);
  EXPECT_NE(group->code(context_of(second, 3)), nullptr);
  EXPECT_EQ(group->code(context_of(second, 0)), nullptr);
  const uint64_t third = code->newest(context_of(0));
  EXPECT_NE(group->code(context_of(third, 0)), nullptr);
  EXPECT_NE(group->code(context_of(third, 0)), group->code(context_of(third, 3)));
  EXPECT_EQ(group->code(context_of(0)), nullptr);  // off for this run
  EXPECT_EQ(counts_.compiled, 2);
}

TEST_F(CountedCode, StaysInterpretedWhereNothingCompiles) {
  counts_.fails = true;
  const auto code = make();
  const auto group = group_in(*code);
  for (int run = 0; run < 3; ++run) {
    EXPECT_EQ(group->code(context_of(code->newest(context_of(0)))), nullptr);
    code->finish();
  }
  EXPECT_EQ(counts_.compiled, 1);
  EXPECT_EQ(code->counts().failed, 1);
  EXPECT_EQ(code->counts().failure, "[test] it must compile, but does not");
}

TEST_F(CountedCode, ComesFromDiskTheNextTime) {
  std::string root = (fs::temp_directory_path() / "ortmodule_code_XXXXXX").string();
  ASSERT_NE(mkdtemp(root.data()), nullptr);
  for (int process = 0; process < 3; ++process) {
    const auto code = make(root + "/kernels");
    const auto group = group_in(*code);
    group->code(context_of(code->newest(context_of(0))));
    code->finish();
    EXPECT_NE(group->code(context_of(code->newest(context_of(0)))), nullptr);
    EXPECT_EQ(code->counts().from_disk, process == 1);
    if (process == 1)  // damaged on disk: compiled again
      for (const auto& file : fs::directory_iterator(root + "/kernels"))
        fs::resize_file(file.path(), 20);
  }
  EXPECT_EQ(counts_.compiled, 2);
  fs::remove_all(root);
}

TEST_F(CountedCode, ServesManyThreads) {
  const auto code = make();
  const auto group = group_in(*code);
  std::vector<std::thread> threads;
  std::atomic<int> used{0};
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (int run = 0; run < 2000; ++run) {
        const KernelContext context = context_of(code->newest(context_of(0, t % 2)), t % 2);
        const bool forward = group->code(context) != nullptr;
        // What a run began with it keeps.
        EXPECT_EQ(group->code(context) != nullptr, forward);
        used += forward;
      }
    });
  for (std::thread& thread : threads) thread.join();
  code->finish();
  for (int device : {0, 1})
    EXPECT_NE(group->code(context_of(code->newest(context_of(0, device)), device)), nullptr);
  EXPECT_EQ(counts_.compiled, 2);
  EXPECT_EQ(counts_.loaded, 2);
}

}  // namespace
}  // namespace ortmodule::testing
