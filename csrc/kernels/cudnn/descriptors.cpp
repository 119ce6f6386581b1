#include "kernels/cudnn/descriptors.h"

namespace ortmodule::cudnn {
namespace {

void describe(const Tensor& tensor, cudnnDataType_t type, const std::vector<int>& sizes,
              bool channels_last) {
  const std::vector<int> strides = dense_strides(sizes, channels_last);
  check(cudnnSetTensorNdDescriptor(tensor.get(), type, static_cast<int>(sizes.size()), sizes.data(),
                                   strides.data()),
        "cudnnSetTensorNdDescriptor");
}

}  // namespace

cudnnDataType_t data_type(DType dtype) {
  switch (dtype) {
    case DType::Float16: return CUDNN_DATA_HALF;
    case DType::BFloat16: return CUDNN_DATA_BFLOAT16;
    case DType::Float64: return CUDNN_DATA_DOUBLE;
    default: return CUDNN_DATA_FLOAT;
  }
}

void check(cudnnStatus_t status, const char* call) {
  if (status != CUDNN_STATUS_SUCCESS)
    throw Error(str("[convolution] cuDNN must succeed, but found ", cudnnGetErrorString(status),
                    " from ", call));
}

Descriptors::Descriptors(const ConvolutionProblem& problem) {
  const cudnnDataType_t type = data_type(problem.dtype);
  describe(x, type, problem.x, problem.channels_last);
  describe(y, type, problem.y, problem.channels_last);
  check(cudnnSetFilterNdDescriptor(w.get(), type,
                                   problem.channels_last ? CUDNN_TENSOR_NHWC : CUDNN_TENSOR_NCHW,
                                   static_cast<int>(problem.w.size()), problem.w.data()),
        "cudnnSetFilterNdDescriptor");
  check(cudnnSetConvolutionNdDescriptor(
            window.get(), static_cast<int>(problem.pads.size()), problem.pads.data(),
            problem.strides.data(), problem.dilations.data(), CUDNN_CROSS_CORRELATION,
            problem.dtype == DType::Float64 ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT),
        "cudnnSetConvolutionNdDescriptor");
  check(cudnnSetConvolutionGroupCount(window.get(), problem.groups),
        "cudnnSetConvolutionGroupCount");
}

void Descriptors::set_math(cudnnMathType_t math) const {
  check(cudnnSetConvolutionMathType(window.get(), math), "cudnnSetConvolutionMathType");
}

cudnnMathType_t wanted_math(DType dtype, bool allow_tf32) {
  if (dtype == DType::Float16 || dtype == DType::BFloat16) return CUDNN_TENSOR_OP_MATH;
  return dtype == DType::Float32 && !allow_tf32 ? CUDNN_FMA_MATH : CUDNN_DEFAULT_MATH;
}

}  // namespace ortmodule::cudnn
