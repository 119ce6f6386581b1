// In the style of a model explorer: prints names and shapes, runs random data through the model.
#include <algorithm>
#include <cassert>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include <onnxruntime_cxx_api.h>

std::string shape_text(const std::vector<std::int64_t>& v) {
  std::stringstream out;
  for (std::size_t i = 0; i < v.size(); i++) out << (i ? "x" : "") << v[i];
  return out.str();
}

template <typename T>
Ort::Value as_tensor(std::vector<T>& data, const std::vector<std::int64_t>& shape) {
  Ort::MemoryInfo mem_info =
      Ort::MemoryInfo::CreateCpu(OrtAllocatorType::OrtArenaAllocator, OrtMemType::OrtMemTypeDefault);
  return Ort::Value::CreateTensor<T>(mem_info, data.data(), data.size(), shape.data(), shape.size());
}

int main(int argc, ORTCHAR_T* argv[]) {
  if (argc != 2) {
    std::cout << "usage: explorer model.onnx" << std::endl;
    return -1;
  }
  std::basic_string<ORTCHAR_T> model_file = argv[1];

  Ort::Env env(ORT_LOGGING_LEVEL_WARNING, "explorer");
  Ort::SessionOptions session_options;
  Ort::Session session = Ort::Session(env, model_file.c_str(), session_options);

  Ort::AllocatorWithDefaultOptions allocator;
  std::vector<std::string> input_names;
  std::vector<std::int64_t> input_shape;
  for (std::size_t i = 0; i < session.GetInputCount(); i++) {
    input_names.emplace_back(session.GetInputNameAllocated(i, allocator).get());
    input_shape = session.GetInputTypeInfo(i).GetTensorTypeAndShapeInfo().GetShape();
    std::cout << "\t" << input_names.at(i) << " : " << shape_text(input_shape) << std::endl;
  }
  for (auto& s : input_shape)
    if (s < 0) s = 1;

  std::vector<std::string> output_names;
  for (std::size_t i = 0; i < session.GetOutputCount(); i++) {
    output_names.emplace_back(session.GetOutputNameAllocated(i, allocator).get());
    auto output_shape = session.GetOutputTypeInfo(i).GetTensorTypeAndShapeInfo().GetShape();
    std::cout << "\t" << output_names.at(i) << " : " << shape_text(output_shape) << std::endl;
  }
  assert(input_names.size() == 1);

  std::size_t total = 1;
  for (auto s : input_shape) total *= static_cast<std::size_t>(s);
  std::vector<float> values(total);
  std::generate(values.begin(), values.end(), [] { return static_cast<float>(rand() % 255); });
  std::vector<Ort::Value> input_tensors;
  input_tensors.emplace_back(as_tensor<float>(values, input_shape));
  assert(input_tensors[0].IsTensor() &&
         input_tensors[0].GetTensorTypeAndShapeInfo().GetShape() == input_shape);

  std::vector<const char*> input_chars(input_names.size(), nullptr);
  std::transform(input_names.begin(), input_names.end(), input_chars.begin(),
                 [](const std::string& name) { return name.c_str(); });
  std::vector<const char*> output_chars(output_names.size(), nullptr);
  std::transform(output_names.begin(), output_names.end(), output_chars.begin(),
                 [](const std::string& name) { return name.c_str(); });
  try {
    auto output_tensors =
        session.Run(Ort::RunOptions{nullptr}, input_chars.data(), input_tensors.data(),
                    input_chars.size(), output_chars.data(), output_chars.size());
    assert(output_tensors.size() == output_names.size() && output_tensors[0].IsTensor());
    std::cout << "ran: " << shape_text(output_tensors[0].GetTensorTypeAndShapeInfo().GetShape())
              << std::endl;
  } catch (const Ort::Exception& exception) {
    std::cout << "ERROR running model inference: " << exception.what() << std::endl;
    return -1;
  }
  return 0;
}
