// In the style of a program that binds: inputs and outputs stay bound, some outputs are allocated by
// the run, and the options of a provider go through the C interface.
#include <onnxruntime_cxx_api.h>

#include <iostream>
#include <string>
#include <thread>
#include <vector>

static void add_cuda(Ort::SessionOptions& options) {
  const OrtApi& api = Ort::GetApi();
  OrtCUDAProviderOptionsV2* cuda_options = nullptr;
  Ort::ThrowOnError(api.CreateCUDAProviderOptions(&cuda_options));
  std::unique_ptr<OrtCUDAProviderOptionsV2, decltype(api.ReleaseCUDAProviderOptions)> released(
      cuda_options, api.ReleaseCUDAProviderOptions);
  std::vector<const char*> keys{"device_id", "gpu_mem_limit", "arena_extend_strategy"};
  std::vector<const char*> values{"0", "2147483648", "kSameAsRequested"};
  Ort::ThrowOnError(
      api.UpdateCUDAProviderOptions(cuda_options, keys.data(), values.data(), keys.size()));
  Ort::ThrowOnError(api.SessionOptionsAppendExecutionProvider_CUDA_V2(
      static_cast<OrtSessionOptions*>(options), cuda_options));
}

static void ORT_API_CALL count_messages(void* param, OrtLoggingLevel severity, const char*,
                                        const char*, const char*, const char* message) {
  if (severity >= ORT_LOGGING_LEVEL_WARNING) ++*static_cast<int*>(param);
  std::cout << "message: " << message << std::endl;
}

int main(int argc, char* argv[]) {
  if (argc != 2) return 2;
  int messages = 0;
  Ort::Env env(ORT_LOGGING_LEVEL_WARNING, "bindings", count_messages, &messages);
  Ort::SessionOptions options;
  options.SetIntraOpNumThreads(2).SetInterOpNumThreads(1);
  options.AddConfigEntry("session.intra_op.allow_spinning", "0");
  options.AddFreeDimensionOverrideByName("classes", 10);
  options.DisableCpuMemArena();
  options.DisableMemPattern();
  add_cuda(options);
  options.AppendExecutionProvider("XNNPACK", {{"intra_op_num_threads", "2"}});
  Ort::Session session(env, argv[1], options);
  if (messages != 1) return 1;

  Ort::IoBinding binding{session};
  Ort::AllocatorWithDefaultOptions allocator;
  const std::vector<int64_t> shape{3, 4};
  Ort::Value x = Ort::Value::CreateTensor<float>(allocator, shape.data(), shape.size());
  for (size_t i = 0; i < 12; ++i) x.GetTensorMutableData<float>()[i] = static_cast<float>(i);
  x.At<float>({2, 3}) = -1;
  binding.BindInput("x", x);
  Ort::MemoryInfo memory_info("Cpu", OrtDeviceAllocator, 0, OrtMemTypeDefault);
  binding.BindOutput("y", memory_info);
  std::vector<float> sums(3);
  const int64_t sums_shape[] = {3};
  Ort::Value s = Ort::Value::CreateTensor<float>(memory_info, sums.data(), sums.size(), sums_shape, 1);
  binding.BindOutput("sums", s);

  Ort::RunOptions run_options;
  run_options.SetRunTag("bound").AddConfigEntry("memory.enable_memory_arena_shrinkage", "cpu:0");
  for (int i = 0; i < 3; ++i) {
    binding.SynchronizeInputs();
    session.Run(run_options, binding);
    binding.SynchronizeOutputs();
  }
  std::vector<Ort::Value> outputs = binding.GetOutputValues();
  if (binding.GetOutputNames() != std::vector<std::string>{"y", "sums"} || outputs.size() != 2)
    return 1;
  const float* y = outputs[0].GetTensorData<float>();
  if (outputs[0].GetTensorTypeAndShapeInfo().GetElementCount() != 30) return 1;
  float sum = 0;
  for (int i = 0; i < 10; ++i) sum += y[i];
  if (sum < sums[0] - 0.001f || sum > sums[0] + 0.001f) return 1;
  binding.ClearBoundInputs();
  binding.ClearBoundOutputs();

  const char* input_names[] = {"x"};
  const char* output_names[] = {"sums", "y"};
  std::vector<std::thread> threads;
  std::vector<int> right(4, 0);
  for (size_t t = 0; t < right.size(); ++t)
    threads.emplace_back([&, t] {
      auto out = session.Run(Ort::RunOptions{nullptr}, input_names, &x, 1, output_names, 2);
      right[t] = out[0].GetTensorData<float>()[0] == sums[0];
    });
  for (auto& thread : threads) thread.join();
  for (int one : right)
    if (!one) return 1;

  Ort::ModelMetadata metadata = session.GetModelMetadata();
  std::cout << "producer: " << metadata.GetProducerNameAllocated(allocator).get() << std::endl;
  std::vector<Ort::Float16_t> halves{Ort::Float16_t(1.5f), Ort::Float16_t(-2.0f)};
  const int64_t two = 2;
  Ort::Value half =
      Ort::Value::CreateTensor<Ort::Float16_t>(memory_info, halves.data(), 2, &two, 1);
  if (half.GetTensorTypeAndShapeInfo().GetElementType() != ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16)
    return 1;
  std::cout << "half: " << half.GetTensorData<Ort::Float16_t>()[0].ToFloat() << std::endl;
  return 0;
}
