// The three computations of a convolution, each with cuDNN's own names for the same steps: estimate
// or measure all algorithms, ask for the scratch of one, run it. kNotCaptured are those that are
// not counted on while a CUDA graph is captured. kGraph are the names of the graph API
// (graph_plan.h).
#pragma once

#include <array>

#include "kernels/cudnn/descriptors.h"

namespace ortmodule::cudnn {

/// Addresses of the tensors; one of them is written.
struct Addresses {
  void* x = nullptr;
  void* w = nullptr;
  void* y = nullptr;
};

/// A direction in the words of cuDNN's graph API. x, w and y are the tensors or their gradients.
struct GraphNames {
  cudnnBackendDescriptorType_t operation;
  cudnnBackendAttributeName_t alpha, beta, window, x, w, y;
};

/// y from x and w.
struct Forward {
  static constexpr GraphNames kGraph = {
      .operation = CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
      .alpha = CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
      .beta = CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA,
      .window = CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
      .x = CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
      .w = CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
      .y = CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y};
  using Algorithm = cudnnConvolutionFwdAlgo_t;
  using Candidate = cudnnConvolutionFwdAlgoPerf_t;
  static constexpr Algorithm kDefault = CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM;
  static constexpr const char* kName = "cudnnConvolutionForward";
  static constexpr std::array kNotCaptured = {
      CUDNN_CONVOLUTION_FWD_ALGO_FFT, CUDNN_CONVOLUTION_FWD_ALGO_FFT_TILING,
      CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD, CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD_NONFUSED};

  static cudnnStatus_t count(cudnnHandle_t handle, int* count) {
    return cudnnGetConvolutionForwardAlgorithmMaxCount(handle, count);
  }
  static cudnnStatus_t estimate(cudnnHandle_t handle, const Descriptors& d, int wanted, int* found,
                                Candidate* candidates) {
    return cudnnGetConvolutionForwardAlgorithm_v7(handle, d.x.get(), d.w.get(), d.window.get(),
                                                  d.y.get(), wanted, found, candidates);
  }
  static cudnnStatus_t measure(cudnnHandle_t handle, const Descriptors& d, const Addresses& at,
                               int wanted, int* found, Candidate* candidates, void* workspace,
                               size_t bytes) {
    return cudnnFindConvolutionForwardAlgorithmEx(handle, d.x.get(), at.x, d.w.get(), at.w,
                                                  d.window.get(), d.y.get(), at.y, wanted, found,
                                                  candidates, workspace, bytes);
  }
  static cudnnStatus_t workspace(cudnnHandle_t handle, const Descriptors& d, Algorithm algorithm,
                                 size_t* bytes) {
    return cudnnGetConvolutionForwardWorkspaceSize(handle, d.x.get(), d.w.get(), d.window.get(),
                                                   d.y.get(), algorithm, bytes);
  }
  static cudnnStatus_t run(cudnnHandle_t handle, const Descriptors& d, const Addresses& at,
                           Algorithm algorithm, void* workspace, size_t bytes, const void* one,
                           const void* zero) {
    return cudnnConvolutionForward(handle, one, d.x.get(), at.x, d.w.get(), at.w, d.window.get(),
                                   algorithm, workspace, bytes, zero, d.y.get(), at.y);
  }
};

/// x's gradient from w and y's.
struct BackwardData {
  static constexpr GraphNames kGraph = {
      .operation = CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
      .alpha = CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
      .beta = CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA,
      .window = CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
      .x = CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
      .w = CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
      .y = CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY};
  using Algorithm = cudnnConvolutionBwdDataAlgo_t;
  using Candidate = cudnnConvolutionBwdDataAlgoPerf_t;
  static constexpr Algorithm kDefault = CUDNN_CONVOLUTION_BWD_DATA_ALGO_1;
  static constexpr const char* kName = "cudnnConvolutionBackwardData";
  static constexpr std::array kNotCaptured = {
      CUDNN_CONVOLUTION_BWD_DATA_ALGO_FFT, CUDNN_CONVOLUTION_BWD_DATA_ALGO_FFT_TILING,
      CUDNN_CONVOLUTION_BWD_DATA_ALGO_WINOGRAD, CUDNN_CONVOLUTION_BWD_DATA_ALGO_WINOGRAD_NONFUSED};

  static cudnnStatus_t count(cudnnHandle_t handle, int* count) {
    return cudnnGetConvolutionBackwardDataAlgorithmMaxCount(handle, count);
  }
  static cudnnStatus_t estimate(cudnnHandle_t handle, const Descriptors& d, int wanted, int* found,
                                Candidate* candidates) {
    return cudnnGetConvolutionBackwardDataAlgorithm_v7(handle, d.w.get(), d.y.get(), d.window.get(),
                                                       d.x.get(), wanted, found, candidates);
  }
  static cudnnStatus_t measure(cudnnHandle_t handle, const Descriptors& d, const Addresses& at,
                               int wanted, int* found, Candidate* candidates, void* workspace,
                               size_t bytes) {
    return cudnnFindConvolutionBackwardDataAlgorithmEx(handle, d.w.get(), at.w, d.y.get(), at.y,
                                                       d.window.get(), d.x.get(), at.x, wanted,
                                                       found, candidates, workspace, bytes);
  }
  static cudnnStatus_t workspace(cudnnHandle_t handle, const Descriptors& d, Algorithm algorithm,
                                 size_t* bytes) {
    return cudnnGetConvolutionBackwardDataWorkspaceSize(
        handle, d.w.get(), d.y.get(), d.window.get(), d.x.get(), algorithm, bytes);
  }
  static cudnnStatus_t run(cudnnHandle_t handle, const Descriptors& d, const Addresses& at,
                           Algorithm algorithm, void* workspace, size_t bytes, const void* one,
                           const void* zero) {
    return cudnnConvolutionBackwardData(handle, one, d.w.get(), at.w, d.y.get(), at.y,
                                        d.window.get(), algorithm, workspace, bytes, zero,
                                        d.x.get(), at.x);
  }
};

/// w's gradient from x and y's.
struct BackwardFilter {
  static constexpr GraphNames kGraph = {
      .operation = CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
      .alpha = CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
      .beta = CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA,
      .window = CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
      .x = CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
      .w = CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
      .y = CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY};
  using Algorithm = cudnnConvolutionBwdFilterAlgo_t;
  using Candidate = cudnnConvolutionBwdFilterAlgoPerf_t;
  static constexpr Algorithm kDefault = CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1;
  static constexpr const char* kName = "cudnnConvolutionBackwardFilter";
  static constexpr std::array kNotCaptured = {CUDNN_CONVOLUTION_BWD_FILTER_ALGO_FFT,
                                              CUDNN_CONVOLUTION_BWD_FILTER_ALGO_FFT_TILING,
                                              CUDNN_CONVOLUTION_BWD_FILTER_ALGO_WINOGRAD,
                                              CUDNN_CONVOLUTION_BWD_FILTER_ALGO_WINOGRAD_NONFUSED};

  static cudnnStatus_t count(cudnnHandle_t handle, int* count) {
    return cudnnGetConvolutionBackwardFilterAlgorithmMaxCount(handle, count);
  }
  static cudnnStatus_t estimate(cudnnHandle_t handle, const Descriptors& d, int wanted, int* found,
                                Candidate* candidates) {
    return cudnnGetConvolutionBackwardFilterAlgorithm_v7(
        handle, d.x.get(), d.y.get(), d.window.get(), d.w.get(), wanted, found, candidates);
  }
  static cudnnStatus_t measure(cudnnHandle_t handle, const Descriptors& d, const Addresses& at,
                               int wanted, int* found, Candidate* candidates, void* workspace,
                               size_t bytes) {
    return cudnnFindConvolutionBackwardFilterAlgorithmEx(handle, d.x.get(), at.x, d.y.get(), at.y,
                                                         d.window.get(), d.w.get(), at.w, wanted,
                                                         found, candidates, workspace, bytes);
  }
  static cudnnStatus_t workspace(cudnnHandle_t handle, const Descriptors& d, Algorithm algorithm,
                                 size_t* bytes) {
    return cudnnGetConvolutionBackwardFilterWorkspaceSize(
        handle, d.x.get(), d.y.get(), d.window.get(), d.w.get(), algorithm, bytes);
  }
  static cudnnStatus_t run(cudnnHandle_t handle, const Descriptors& d, const Addresses& at,
                           Algorithm algorithm, void* workspace, size_t bytes, const void* one,
                           const void* zero) {
    return cudnnConvolutionBackwardFilter(handle, one, d.x.get(), at.x, d.y.get(), at.y,
                                          d.window.get(), algorithm, workspace, bytes, zero,
                                          d.w.get(), at.w);
  }
};

}  // namespace ortmodule::cudnn
