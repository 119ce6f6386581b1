// Loads an ONNX model, prints its inputs and what a run will take, runs it on ones, and prints the
// outputs. Neither torch nor Python is needed.
//
//   cpp_inference model.onnx [name=size ...]     for example: batch=8 seq_len=128
#include <ortmodule/inference.h>

#include <cstdint>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <map>
#include <string>
#include <vector>

namespace inference = ortmodule::inference;
using inference::ElementType;
using inference::TensorInfo;
using inference::Value;

namespace {

// The value that the command line gives to a named size; 1 for all others.
int64_t size_of(const std::string& name, const std::map<std::string, int64_t>& given) {
  const auto found = given.find(name);
  return found == given.end() ? 1 : found->second;
}

std::vector<int64_t> sizes_of(const TensorInfo& input,
                              const std::map<std::string, int64_t>& given) {
  std::vector<int64_t> sizes = input.sizes;
  for (size_t d = 0; d < sizes.size(); ++d)
    if (sizes[d] < 0) sizes[d] = size_of(input.size_names[d], given);
  return sizes;
}

template <class T>
void fill_with_ones(const Value& tensor) {
  T* elements = tensor.mutable_data<T>();
  for (int64_t i = 0; i < tensor.element_count(); ++i) elements[i] = T(1);
}

Value ones(ElementType type, const std::vector<int64_t>& sizes) {
  const Value tensor = Value::tensor(type, sizes);
  switch (type) {
    case ElementType::Float32: fill_with_ones<float>(tensor); break;
    case ElementType::Float64: fill_with_ones<double>(tensor); break;
    case ElementType::Float16: fill_with_ones<inference::Float16>(tensor); break;
    case ElementType::Int64: fill_with_ones<int64_t>(tensor); break;
    case ElementType::Int32: fill_with_ones<int32_t>(tensor); break;
    case ElementType::UInt8: fill_with_ones<uint8_t>(tensor); break;
    case ElementType::Int8: fill_with_ones<int8_t>(tensor); break;
    case ElementType::Bool: fill_with_ones<bool>(tensor); break;
    default: std::cout << "  (zeros, as the type is " << inference::name_of(type) << ")\n"; break;
  }
  return tensor;
}

std::string text_of(const std::vector<int64_t>& sizes) {
  std::string text = "[";
  for (size_t d = 0; d < sizes.size(); ++d) text += (d ? ", " : "") + std::to_string(sizes[d]);
  return text + "]";
}

void print_tensor(const std::string& name, const Value& tensor) {
  std::cout << "  " << name << ": " << inference::name_of(tensor.type()) << " "
            << text_of(tensor.sizes());
  if (tensor.type() == ElementType::Float32) {
    const float* first = tensor.data<float>();
    for (int64_t i = 0; i < tensor.element_count() && i < 5; ++i)
      std::cout << (i ? ", " : " = ") << first[i];
    if (tensor.element_count() > 5) std::cout << ", ...";
  }
  std::cout << "\n";
}

void run(const std::string& path, const std::map<std::string, int64_t>& given) {
  const inference::Session session(path);
  std::vector<std::string> names;
  std::vector<Value> values;
  std::map<std::string, Value> feeds;
  std::cout << "inputs\n";
  for (const TensorInfo& input : session.inputs()) {
    names.push_back(input.name);
    values.push_back(ones(input.type, sizes_of(input, given)));
    feeds[input.name] = values.back();
    print_tensor(input.name, values.back());
  }

  const inference::MemoryReport memory = session.memory(feeds);
  std::cout << "memory of a run: " << memory.weights_bytes << " bytes of weights, "
            << memory.peak_bytes << " bytes at the peak, " << memory.outputs_bytes
            << " of them outputs\n";

  const std::vector<Value> outputs = session.run(names, values);
  std::cout << "measured: " << session.last_peak_bytes() << " bytes at the peak\noutputs\n";
  for (size_t i = 0; i < outputs.size(); ++i)
    if (outputs[i].is_tensor()) print_tensor(session.outputs()[i].name, outputs[i]);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::cerr << "usage: cpp_inference model.onnx [name=size ...]\n";
    return 2;
  }
  std::map<std::string, int64_t> given;
  for (int i = 2; i < argc; ++i) {
    const std::string text = argv[i];
    const size_t equals = text.find('=');
    if (equals != std::string::npos)
      given[text.substr(0, equals)] = std::atoll(text.c_str() + equals + 1);
  }
  try {
    run(argv[1], given);
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
  return 0;
}
