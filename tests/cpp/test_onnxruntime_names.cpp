// The names of onnxruntime's C++ API on the C++ interface: handles, errors, types, sequences.
#include <gtest/gtest.h>
#include <ortmodule/onnxruntime/experimental_onnxruntime_cxx_api.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <future>
#include <limits>
#include <stdexcept>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "small_onnx_models.h"

namespace {

using namespace ortmodule::testing;  // NOLINT: the models

static_assert(!std::is_copy_constructible_v<Ort::Value> &&
              std::is_move_constructible_v<Ort::Value>);
static_assert(!std::is_copy_constructible_v<Ort::Session>);
static_assert(std::is_copy_constructible_v<Ort::ConstValue>);

Ort::MemoryInfo host() { return Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault); }

/// A quiet environment and a session.
struct Opened {
  explicit Opened(const std::string& model, const Ort::SessionOptions& options = {})
      : session(env, model.data(), model.size(), options) {}
  Ort::Env env{ORT_LOGGING_LEVEL_FATAL, "test"};
  Ort::Session session;
};

template <class Body>
OrtErrorCode code_of(const Body& body) {
  try {
    body();
  } catch (const Ort::Exception& error) {
    EXPECT_NE(std::string(error.what()), "");
    return error.GetOrtErrorCode();
  }
  return ORT_OK;
}

Ort::Value floats(std::vector<float>& data, const std::vector<int64_t>& shape) {
  return Ort::Value::CreateTensor<float>(host(), data.data(), data.size(), shape.data(),
                                         shape.size());
}

TEST(OnnxruntimeNames, EmptyHandlesAreErrorsNotCrashes) {
  const Ort::Session session{nullptr};
  EXPECT_EQ(code_of([&] { session.GetInputCount(); }), ORT_INVALID_ARGUMENT);
  EXPECT_EQ(code_of([] { Ort::Value(nullptr).IsTensor(); }), ORT_INVALID_ARGUMENT);
  EXPECT_EQ(code_of([] { Ort::SessionOptions(nullptr).SetIntraOpNumThreads(1); }),
            ORT_INVALID_ARGUMENT);
  EXPECT_EQ(code_of([] { Ort::MemoryInfo(nullptr).GetDeviceId(); }), ORT_INVALID_ARGUMENT);
  EXPECT_EQ(code_of([] { Ort::Session(Ort::Env(nullptr), "model", Ort::SessionOptions()); }),
            ORT_INVALID_ARGUMENT);
  Opened opened(sum_model());
  const char* names[] = {"x"};
  const char* outputs[] = {"sum"};
  const Ort::Value none{nullptr};
  EXPECT_EQ(
      code_of([&] { opened.session.Run(Ort::RunOptions{nullptr}, names, &none, 1, outputs, 1); }),
      ORT_INVALID_ARGUMENT);
  EXPECT_EQ(code_of([&] { opened.session.GetInputTypeInfo(1); }), ORT_INVALID_ARGUMENT);
}

// A callback that takes its time, and then throws.
void end_late(void* user_data, OrtValue**, size_t, OrtStatusPtr status) {
  const Ort::Status owned(status);
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  ++*static_cast<std::atomic<int>*>(user_data);
  throw std::runtime_error("late");
}

TEST(OnnxruntimeNames, TheEndOfAnEnvironmentWaitsForAsynchronousRuns) {
  constexpr int kRuns = 6;  // more than there are threads, perhaps
  std::atomic<int> ended = 0;
  std::vector<float> data = {1, 2, 3, 4};
  std::vector<Ort::Value> results;
  for (int i = 0; i < kRuns; ++i) results.emplace_back(nullptr);
  ::testing::internal::CaptureStderr();
  {
    Opened opened(sum_model());
    const Ort::Value x = floats(data, {2, 2});
    const char *inputs[] = {"x"}, *outputs[] = {"sum"};
    for (Ort::Value& result : results)
      opened.session.RunAsync(Ort::RunOptions(), inputs, &x, 1, outputs, &result, 1, end_late,
                              &ended);
  }
  EXPECT_EQ(ended, kRuns);
  EXPECT_NE(::testing::internal::GetCapturedStderr().find("must not throw, but threw: late"),
            std::string::npos);
  for (const Ort::Value& result : results) EXPECT_TRUE(result.IsTensor());
}

TEST(OnnxruntimeNames, AChildOfAForkEndsWithoutTheThreadsOfAsynchronousRuns) {
  Opened opened(sum_model());
  std::vector<float> data = {1, 2};
  const Ort::Value x = floats(data, {1, 2});
  Ort::Value result{nullptr};
  const char *inputs[] = {"x"}, *outputs[] = {"sum"};
  std::promise<void> ended;
  opened.session.RunAsync(
      Ort::RunOptions(), inputs, &x, 1, outputs, &result, 1,
      [](void* user_data, OrtValue**, size_t, OrtStatusPtr status) {
        const Ort::Status owned(status);
        static_cast<std::promise<void>*>(user_data)->set_value();
      },
      &ended);
  ended.get_future().wait();
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(10);  // in place of waiting forever
    { const Ort::Env env; }
    std::exit(0);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
}

TEST(OnnxruntimeNames, CodesOfErrors) {
  const Ort::Env env;
  const Ort::SessionOptions options;
  EXPECT_EQ(code_of([&] { Ort::Session(env, "/nowhere/a.onnx", options); }), ORT_NO_SUCHFILE);
  EXPECT_EQ(code_of([&] { Ort::Session(env, L"/nowhere/\u00e9.onnx", options); }), ORT_NO_SUCHFILE);
  EXPECT_EQ(code_of([&] { Ort::Session(env, "not a model", 11, options); }), ORT_INVALID_PROTOBUF);
  std::vector<float> data(6);
  EXPECT_EQ(code_of([&] { floats(data, {7}); }), ORT_INVALID_ARGUMENT);
  const Ort::MemoryInfo gpu("Cuda", OrtDeviceAllocator, 0, OrtMemTypeDefault);
  const int64_t shape = 6;
  EXPECT_EQ(gpu.GetDeviceType(), OrtMemoryInfoDeviceType_GPU);
  EXPECT_EQ(code_of([&] { Ort::Value::CreateTensor<float>(gpu, data.data(), 6, &shape, 1); }),
            ORT_INVALID_ARGUMENT);
  EXPECT_EQ(code_of([] { Ort::ThrowOnError(Ort::GetApi().CreateStatus(ORT_EP_FAIL, "why")); }),
            ORT_EP_FAIL);
  EXPECT_EQ(code_of([] { Ort::SessionOptions().AppendExecutionProvider("Nonsense"); }),
            ORT_INVALID_ARGUMENT);
  EXPECT_EQ(Ort::Status(nullptr).GetErrorCode(), ORT_OK);
  EXPECT_EQ(OrtGetApiBase()->GetApi(ORT_API_VERSION + 1), nullptr);
}

TEST(OnnxruntimeNames, RunsIntoValuesOfTheProgram) {
  Opened opened(sum_model());
  std::vector<float> x = {1, 2, 3, 4}, sum(4), small(2, -1);
  const Ort::Value input = floats(x, {2, 2});
  const char* names[] = {"x"};
  const char* outputs[] = {"positive", "sum"};
  std::array<Ort::Value, 2> values = {Ort::Value(nullptr), floats(sum, {2, 2})};
  opened.session.Run(Ort::RunOptions(), names, &input, 1, outputs, values.data(), 2);
  EXPECT_EQ(sum, (std::vector<float>{11, -18, 13, -16}));
  EXPECT_EQ(values[0].At<float>({1, 0}), 13);
  EXPECT_EQ(code_of([&] { values[0].At<float>({2, 0}); }), ORT_INVALID_ARGUMENT);
  EXPECT_EQ(code_of([&] { values[0].GetTensorData<double>(); }), ORT_INVALID_ARGUMENT);
  EXPECT_EQ(values[0].GetTensorSizeInBytes(), 16u);
  values[0] = floats(small, {1, 2});
  EXPECT_EQ(code_of([&] {
              opened.session.Run(Ort::RunOptions(), names, &input, 1, outputs, values.data(), 2);
            }),
            ORT_INVALID_ARGUMENT);
  EXPECT_EQ(small, (std::vector<float>{-1, -1}));
}

TEST(OnnxruntimeNames, RefusesToGiveAnOutputTwice) {
  Opened opened(sum_model());
  std::vector<float> x = {1, 2, 3, 4};
  const Ort::Value input = floats(x, {2, 2});
  const char* names[] = {"x"};
  const char* outputs[] = {"sum", "sum"};
  std::array<Ort::Value, 2> values = {Ort::Value(nullptr), Ort::Value(nullptr)};
  EXPECT_EQ(code_of([&] {
              opened.session.Run(Ort::RunOptions(), names, &input, 1, outputs, values.data(), 2);
            }),
            ORT_INVALID_ARGUMENT);
}

TEST(OnnxruntimeNames, DescribesTypesThatOutliveTheirSource) {
  Opened opened(sequence_model());
  const auto sequence = opened.session.GetInputTypeInfo(0);
  EXPECT_EQ(sequence.GetONNXType(), ONNX_TYPE_SEQUENCE);
  const auto element =
      sequence.GetSequenceTypeInfo().GetSequenceElementType().GetTensorTypeAndShapeInfo();
  EXPECT_EQ(element.GetElementType(), ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT);
  EXPECT_EQ(element.GetShape(), (std::vector<int64_t>{-1, 2}));
  EXPECT_EQ(element.GetSymbolicDimensions()[0], std::string("n"));
  EXPECT_EQ(code_of([&] { element.GetElementCount(); }), ORT_FAIL);
  EXPECT_EQ(code_of([&] { sequence.GetTensorTypeAndShapeInfo(); }), ORT_INVALID_ARGUMENT);
  const Ort::ConstSession seen = opened.session;
  EXPECT_EQ(seen.GetInputNames(), (std::vector<std::string>{"parts", "last"}));
  Opened optional(optional_model());
  const auto type = optional.session.GetInputTypeInfo(0);
  EXPECT_EQ(type.GetONNXType(), ONNX_TYPE_OPTIONAL);
  EXPECT_EQ(type.GetOptionalTypeInfo().GetOptionalElementType().GetONNXType(), ONNX_TYPE_TENSOR);
}

TEST(OnnxruntimeNames, SequencesInAndOut) {
  Opened opened(sequence_model());
  std::vector<float> a = {1, 2}, b = {3, 4, 5, 6};
  std::vector<Ort::Value> parts;
  parts.push_back(floats(a, {1, 2}));
  parts.push_back(floats(b, {2, 2}));
  std::vector<Ort::Value> inputs;
  inputs.push_back(Ort::Value::CreateSequence(parts));
  inputs.push_back(floats(a, {1, 2}));
  const char* names[] = {"parts", "last"};
  const char* outputs[] = {"all", "rows"};
  auto results = opened.session.Run(Ort::RunOptions{nullptr}, names, inputs.data(), 2, outputs, 2);
  EXPECT_FALSE(results[0].IsTensor());
  EXPECT_EQ(results[0].GetTypeInfo().GetONNXType(), ONNX_TYPE_SEQUENCE);
  ASSERT_EQ(results[0].GetCount(), 3u);
  Ort::AllocatorWithDefaultOptions allocator;
  EXPECT_EQ(results[0].GetValue(1, allocator).At<float>({1, 1}), 6);
  EXPECT_EQ(code_of([&] { results[0].GetValue(3, allocator); }), ORT_INVALID_ARGUMENT);
  EXPECT_EQ(results[1].GetTensorTypeAndShapeInfo().GetShape(), (std::vector<int64_t>{3, 2}));
}

TEST(OnnxruntimeNames, AllocatorsOfTheProgram) {
  struct Counting : OrtAllocator {
    int live = 0;
    Counting() {
      Alloc = [](OrtAllocator* self, size_t bytes) {
        ++static_cast<Counting*>(self)->live;
        return ::operator new(bytes);
      };
      Free = [](OrtAllocator* self, void* memory) {
        --static_cast<Counting*>(self)->live;
        ::operator delete(memory);
      };
    }
  } allocator;
  {
    const int64_t shape[] = {2, 3};
    Ort::Value value = Ort::Value::CreateTensor<double>(&allocator, shape, 2);
    value.GetTensorMutableData<double>()[5] = 1;
    Opened opened(sum_model());
    const auto name = opened.session.GetInputNameAllocated(0, &allocator);
    EXPECT_EQ(std::string(name.get()), "x");
    EXPECT_EQ(allocator.live, 2);
  }
  EXPECT_EQ(allocator.live, 0);
  Ort::AllocatorWithDefaultOptions host_allocator;
  EXPECT_EQ(host_allocator.GetInfo().GetAllocatorName(), "Cpu");
  EXPECT_EQ(host_allocator.GetAllocation(100).size(), 100u);
}

TEST(OnnxruntimeNames, OptionsAndMetadata) {
  Ort::SessionOptions options;
  options.AddConfigEntry("key", "value").SetIntraOpNumThreads(1);
  const Ort::SessionOptions copy = options.Clone();
  options.AddConfigEntry("key", "other");
  EXPECT_EQ(copy.GetConfigEntry("key"), "value");
  EXPECT_EQ(options.GetConfigEntryOrDefault("none", "default"), "default");
  EXPECT_EQ(code_of([&] { options.GetConfigEntry("none"); }), ORT_FAIL);
  Opened opened(sum_model(), options);
  const Ort::ModelMetadata metadata = opened.session.GetModelMetadata();
  Ort::AllocatorWithDefaultOptions allocator;
  EXPECT_EQ(std::string(metadata.GetProducerNameAllocated(allocator).get()), "a test");
  EXPECT_EQ(metadata.GetCustomMetadataMapKeysAllocated(allocator).size(), 1u);
  EXPECT_EQ(std::string(metadata.LookupCustomMetadataMapAllocated("color", allocator).get()),
            "red");
  EXPECT_FALSE(metadata.LookupCustomMetadataMapAllocated("none", allocator));
  EXPECT_FALSE(Ort::Float16_t(std::numeric_limits<float>::quiet_NaN()).IsFinite());
  EXPECT_EQ(Ort::BFloat16_t(2.5f).ToFloat(), 2.5f);
}

TEST(OnnxruntimeNames, WhatNewerProgramsAskFor) {
  Ort::Env env(ORT_LOGGING_LEVEL_FATAL, "test");
  const Ort::ArenaCfg arena(0, -1, -1, -1);
  env.CreateAndRegisterAllocator(host(), arena);
  const Ort::MemoryInfo gpu("Cuda", OrtDeviceAllocator, 0, OrtMemTypeDefault);
  EXPECT_EQ(code_of([&] { env.CreateAndRegisterAllocator(gpu, arena); }), ORT_INVALID_ARGUMENT);
  std::vector<float> weights = {1, 2};
  const int64_t shape[] = {2};
  std::vector<Ort::Value> given;
  given.push_back(Ort::Value::CreateTensor<float>(host(), weights.data(), 2, shape, 1));
  Ort::SessionOptions options;
  options.AddExternalInitializers(std::vector<std::string>{"w"}, given);
  EXPECT_EQ(code_of([&] {
              options.AddExternalInitializers({"w", "v"}, given);
            }),
            ORT_INVALID_ARGUMENT);
  const std::string model = sum_model();
  Ort::Session session(env, model.data(), model.size(), options);
  const auto inputs = session.GetInputs();
  ASSERT_EQ(inputs.size(), 1u);
  EXPECT_EQ(inputs[0].GetName(), "x");
  EXPECT_EQ(inputs[0].TypeInfo().GetTensorTypeAndShapeInfo().GetShape()[1], 2);
  EXPECT_EQ(session.GetOutputs()[1].GetName(), "positive");
  EXPECT_TRUE(session.GetOverridableInitializerNames().empty());
  EXPECT_EQ(session.GetMemoryInfoForOutputs().at(1).GetAllocatorName(), "Cpu");
  Ort::Allocator allocator(session, host());
  EXPECT_EQ(allocator.GetAllocation(100).size(), 100u);
  EXPECT_EQ(code_of([&] { Ort::Allocator(session, gpu); }), ORT_INVALID_ARGUMENT);
  std::vector<float> x = {3, 4};
  const int64_t rows[] = {1, 2};
  const Ort::Value value = Ort::Value::CreateTensor<float>(host(), x.data(), 2, rows, 2);
  const char *in = "x", *out = "sum";
  auto sums = session.Run(Ort::RunOptions{nullptr}, &in, &value, 1, &out, 1);
  EXPECT_EQ(sums[0].At<float>({0, 1}), 6);
}

TEST(OnnxruntimeNames, ThreadsProvidersAndNumbersOfEightBits) {
  const OrtApi& api = Ort::GetApi();
  OrtThreadingOptions* threads = nullptr;
  Ort::ThrowOnError(api.CreateThreadingOptions(&threads));
  Ort::ThrowOnError(api.SetGlobalIntraOpNumThreads(threads, 1));
  const Ort::Env env(threads, ORT_LOGGING_LEVEL_FATAL, "test");
  EXPECT_EQ(static_cast<OrtEnv*>(env)->threads, 1);
  api.ReleaseThreadingOptions(threads);
  Ort::CUDAProviderOptions provider;
  provider.Update({{"device_id", "1"}, {"arena_extend_strategy", "kNextPowerOfTwo"}});
  EXPECT_EQ(provider.GetCUDAProviderOptionsAsString(),
            "arena_extend_strategy=kNextPowerOfTwo;device_id=1");
  Ort::SessionOptions().AppendExecutionProvider_CUDA_V2(*provider);
  EXPECT_TRUE(Ort::Status().IsOK());
  EXPECT_TRUE(Ort::Float16_t::FromBits(1).IsSubnormal());
  EXPECT_FALSE(Ort::Float16_t::FromBits(1).IsNormal());  // though it is a normal float
  EXPECT_FALSE(Ort::Float16_t(1.0f).IsSubnormal());
  EXPECT_TRUE(Ort::BFloat16_t(1.0f).IsNormal());
  EXPECT_FALSE(Ort::BFloat16_t::FromBits(0x7f80).IsNormal());
  EXPECT_EQ(Ort::TypeToTensorType<Ort::Float8E5M2_t>::type,
            ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT8E5M2);
  EXPECT_EQ(Ort::Float8E4M3FN_t(0x38), Ort::Float8E4M3FN_t(0x38));
}

TEST(OnnxruntimeNames, TheExperimentalFormTakesVectors) {
  Ort::Env env(ORT_LOGGING_LEVEL_FATAL, "test");
  Ort::SessionOptions options;
  std::string model = sum_model();
  Ort::Experimental::Session session(env, model.data(), model.size(), options);
  EXPECT_EQ(session.GetInputShapes()[0], (std::vector<int64_t>{-1, 2}));
  std::vector<float> x = {1, 2};
  std::vector<Ort::Value> inputs;
  inputs.push_back(Ort::Experimental::Value::CreateTensor<float>(x.data(), x.size(), {1, 2}));
  const auto outputs = session.Run(session.GetInputNames(), inputs, session.GetOutputNames());
  ASSERT_EQ(outputs.size(), 2u);
  EXPECT_EQ(outputs[0].At<float>({0, 1}), -18);
  EXPECT_EQ(code_of([&] { session.Run({}, inputs, {"sum"}); }), ORT_INVALID_ARGUMENT);
}

}  // namespace
