// In the style of a number recognizer: a class whose members are the session and its tensors, with
// a wide path and outputs in arrays of the program.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <memory>
#include <vector>

#include <onnxruntime_cxx_api.h>

template <typename T>
static void softmax(T& input) {
  float rowmax = *std::max_element(input.begin(), input.end());
  float sum = 0.0f;
  for (auto& x : input) sum += x = std::exp(x - rowmax);
  for (auto& x : input) x /= sum;
}

struct Digits {
  Digits() {
    auto memory_info = Ort::MemoryInfo::CreateCpu(OrtDeviceAllocator, OrtMemTypeCPU);
    input_tensor_ = Ort::Value::CreateTensor<float>(memory_info, input_image_.data(),
                                                    input_image_.size(), input_shape_.data(),
                                                    input_shape_.size());
    output_tensor_ =
        Ort::Value::CreateTensor<float>(memory_info, results_.data(), results_.size(),
                                        output_shape_.data(), output_shape_.size());
  }

  std::ptrdiff_t Run() {
    const char* input_names[] = {"Input3"};
    const char* output_names[] = {"Plus214_Output_0"};

    Ort::RunOptions run_options;
    session_.Run(run_options, input_names, &input_tensor_, 1, output_names, &output_tensor_, 1);
    softmax(results_);
    result_ = std::distance(results_.begin(), std::max_element(results_.begin(), results_.end()));
    return result_;
  }

  static constexpr const int width_ = 28;
  static constexpr const int height_ = 28;

  std::array<float, width_ * height_> input_image_{};
  std::array<float, 10> results_{};
  int64_t result_{0};

 private:
  Ort::Env env;
  Ort::Session session_{env, L"digits.onnx", Ort::SessionOptions{nullptr}};

  Ort::Value input_tensor_{nullptr};
  std::array<int64_t, 4> input_shape_{1, 1, width_, height_};

  Ort::Value output_tensor_{nullptr};
  std::array<int64_t, 2> output_shape_{1, 10};
};

int main() {
  std::unique_ptr<Digits> digits;
  try {
    digits = std::make_unique<Digits>();
  } catch (const Ort::Exception& exception) {
    std::fprintf(stderr, "%s\n", exception.what());
    return 1;
  }
  for (int digit = 0; digit < 10; ++digit) {
    std::fill(digits->input_image_.begin(), digits->input_image_.end(), 0.f);
    digits->input_image_[static_cast<size_t>(digit)] = 5;
    if (digits->Run() != digit) return 1;
  }
  std::printf("probability %.3f\n", static_cast<double>(digits->results_[9]));
  return 0;
}
