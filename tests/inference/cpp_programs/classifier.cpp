// In the style of an image classifier: every query of types, providers with a fallback, outputs in
// vectors, and errors by code.
#include <cassert>
#include <chrono>
#include <fstream>
#include <iostream>
#include <iterator>
#include <numeric>
#include <string>
#include <vector>

#include <onnxruntime_cxx_api.h>

template <typename T>
T vectorProduct(const std::vector<T>& v) {
  return std::accumulate(v.begin(), v.end(), T(1), std::multiplies<T>());
}

static std::ostream& operator<<(std::ostream& os, const ONNXTensorElementDataType& type) {
  switch (type) {
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT: return os << "float";
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64: return os << "int64_t";
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING: return os << "std::string";
    default: return os << "another";
  }
}

int main(int argc, char* argv[]) {
  if (argc != 2) return 2;
  std::string modelFilepath{argv[1]};

  for (const auto& provider : Ort::GetAvailableProviders())
    std::cout << "Provider: " << provider << std::endl;
  Ort::Env env(OrtLoggingLevel::ORT_LOGGING_LEVEL_WARNING, "image-classification-inference");
  Ort::SessionOptions sessionOptions;
  sessionOptions.SetIntraOpNumThreads(1);
  OrtCUDAProviderOptions cuda_options;
  cuda_options.device_id = 0;
  cuda_options.arena_extend_strategy = 0;
  cuda_options.gpu_mem_limit = static_cast<size_t>(2) * 1024 * 1024 * 1024;
  cuda_options.cudnn_conv_algo_search = OrtCudnnConvAlgoSearchExhaustive;
  cuda_options.do_copy_in_default_stream = 1;
  sessionOptions.AppendExecutionProvider_CUDA(cuda_options);
  Ort::ThrowOnError(OrtSessionOptionsAppendExecutionProvider_CPU(sessionOptions, 1));
  sessionOptions.SetGraphOptimizationLevel(GraphOptimizationLevel::ORT_ENABLE_EXTENDED);
  sessionOptions.SetExecutionMode(ExecutionMode::ORT_SEQUENTIAL);

  Ort::Session session(env, modelFilepath.c_str(), sessionOptions);
  Ort::AllocatorWithDefaultOptions allocator;
  std::cout << "Number of Input Nodes: " << session.GetInputCount() << std::endl;
  Ort::AllocatedStringPtr inputName = session.GetInputNameAllocated(0, allocator);
  Ort::AllocatedStringPtr outputName = session.GetOutputNameAllocated(0, allocator);

  Ort::TypeInfo inputTypeInfo = session.GetInputTypeInfo(0);
  assert(inputTypeInfo.GetONNXType() == ONNX_TYPE_TENSOR);
  auto inputTensorInfo = inputTypeInfo.GetTensorTypeAndShapeInfo();
  std::cout << "Input Type: " << inputTensorInfo.GetElementType() << std::endl;
  std::vector<int64_t> inputDims = inputTensorInfo.GetShape();
  std::vector<const char*> symbols(inputTensorInfo.GetDimensionsCount());
  inputTensorInfo.GetSymbolicDimensions(symbols.data(), symbols.size());
  for (size_t d = 0; d < inputDims.size(); ++d) {
    std::cout << "  " << inputDims[d] << " '" << symbols[d] << "'" << std::endl;
    if (inputDims.at(d) < 0) inputDims.at(d) = 2;
  }
  std::vector<int64_t> outputDims =
      session.GetOutputTypeInfo(0).GetTensorTypeAndShapeInfo().GetShape();
  outputDims.at(0) = inputDims.at(0);
  if (outputDims.at(1) < 0) outputDims.at(1) = 10;

  size_t inputTensorSize = static_cast<size_t>(vectorProduct(inputDims));
  std::vector<float> inputTensorValues(inputTensorSize, 0.25f);
  size_t outputTensorSize = static_cast<size_t>(vectorProduct(outputDims));
  std::vector<float> outputTensorValues(outputTensorSize);

  std::vector<const char*> inputNames{inputName.get()};
  std::vector<const char*> outputNames{outputName.get()};
  std::vector<Ort::Value> inputTensors;
  std::vector<Ort::Value> outputTensors;
  Ort::MemoryInfo memoryInfo = Ort::MemoryInfo::CreateCpu(OrtAllocatorType::OrtArenaAllocator,
                                                          OrtMemType::OrtMemTypeDefault);
  inputTensors.push_back(Ort::Value::CreateTensor<float>(memoryInfo, inputTensorValues.data(),
                                                         inputTensorSize, inputDims.data(),
                                                         inputDims.size()));
  outputTensors.push_back(Ort::Value::CreateTensor<float>(memoryInfo, outputTensorValues.data(),
                                                          outputTensorSize, outputDims.data(),
                                                          outputDims.size()));

  std::chrono::steady_clock::time_point begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 10; i++)
    session.Run(Ort::RunOptions{nullptr}, inputNames.data(), inputTensors.data(), 1,
                outputNames.data(), outputTensors.data(), 1);
  std::chrono::steady_clock::time_point end = std::chrono::steady_clock::now();
  if (end < begin) return 1;
  std::cout << "First output: " << outputTensorValues.at(0) << std::endl;

  // The same model from memory, and a mistake.
  std::ifstream file(modelFilepath, std::ios::binary);
  std::vector<char> bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  Ort::Session from_memory{nullptr};
  from_memory = Ort::Session(env, bytes.data(), bytes.size(), sessionOptions);
  bytes.clear();
  auto outputs = from_memory.Run(Ort::RunOptions{nullptr}, inputNames.data(), &inputTensors.front(),
                                 1, outputNames.data(), 1);
  if (outputs.front().GetTensorMutableData<float>()[0] != outputTensorValues[0]) return 1;
  const char* wrong[] = {"no such input"};
  try {
    from_memory.Run(Ort::RunOptions{nullptr}, wrong, inputTensors.data(), 1, outputNames.data(), 1);
    return 1;
  } catch (const Ort::Exception& e) {
    std::cout << "Error code: " << e.GetOrtErrorCode() << std::endl;
    return e.GetOrtErrorCode() == ORT_INVALID_ARGUMENT ? 0 : 1;
  }
}
