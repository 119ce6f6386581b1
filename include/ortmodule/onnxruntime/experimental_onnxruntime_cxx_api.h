// Ort::Experimental of early versions of onnxruntime, which its samples use: names and values as
// vectors.
#pragma once

#include <ortmodule/onnxruntime_cxx_api.h>

#include <cstdint>
#include <string>
#include <vector>

namespace Ort::Experimental {

/// A session that takes strings and vectors.
struct Session : Ort::Session {
  Session(Env& env, const std::basic_string<ORTCHAR_T>& path, SessionOptions& options)
      : Ort::Session(env, path.c_str(), options) {}
  Session(Env& env, void* model, size_t bytes, SessionOptions& options)
      : Ort::Session(env, model, bytes, options) {}

  using Ort::Session::Run;
  /// Returns the outputs named.
  std::vector<Ort::Value> Run(const std::vector<std::string>& input_names,
                              const std::vector<Ort::Value>& inputs,
                              const std::vector<std::string>& output_names,
                              const RunOptions& options = RunOptions()) {
    std::vector<Ort::Value> outputs(output_names.size());
    Run(input_names, inputs, output_names, outputs, options);
    return outputs;
  }
  /// Writes into the outputs that have a value, and gives the others what the run allocates.
  void Run(const std::vector<std::string>& input_names, const std::vector<Ort::Value>& inputs,
           const std::vector<std::string>& output_names, std::vector<Ort::Value>& outputs,
           const RunOptions& options = RunOptions()) {
    if (input_names.size() != inputs.size() || output_names.size() != outputs.size())
      detail::refuse("[Run] there must be one name for each value");
    Ort::Session::Run(options, pointers(input_names).data(), inputs.data(), inputs.size(),
                      pointers(output_names).data(), outputs.data(), outputs.size());
  }

  std::vector<std::string> GetOverridableInitializerNames() const {
    return names(session().overridable_inputs());
  }
  std::vector<std::vector<int64_t>> GetInputShapes() const { return shapes(session().inputs()); }
  std::vector<std::vector<int64_t>> GetOutputShapes() const { return shapes(session().outputs()); }
  std::vector<std::vector<int64_t>> GetOverridableInitializerShapes() const {
    return shapes(session().overridable_inputs());
  }

 private:
  static std::vector<const char*> pointers(const std::vector<std::string>& names) {
    std::vector<const char*> result;
    for (const std::string& name : names) result.push_back(name.c_str());
    return result;
  }
  static std::vector<std::vector<int64_t>> shapes(const std::vector<Info>& infos) {
    std::vector<std::vector<int64_t>> result;
    for (const Info& info : infos) result.push_back(info.sizes);
    return result;
  }
};

/// Values in memory of the host.
struct Value : Ort::Value {
  template <class T>
  static Ort::Value CreateTensor(T* data, size_t count, const std::vector<int64_t>& shape) {
    const auto info = MemoryInfo::CreateCpu(OrtDeviceAllocator, OrtMemTypeDefault);
    return Ort::Value::CreateTensor<T>(info, data, count, shape.data(), shape.size());
  }
  template <class T>
  static Ort::Value CreateTensor(const std::vector<int64_t>& shape) {
    AllocatorWithDefaultOptions allocator;
    return Ort::Value::CreateTensor<T>(allocator, shape.data(), shape.size());
  }
};

}  // namespace Ort::Experimental
