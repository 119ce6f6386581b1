// Constants and plain types that onnxruntime's C header defines, as far as C++ programs use them.
// The numbers are those of onnxruntime, because programs print and store them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

/// The names of this interface are those of onnxruntime's C++ API of this version.
#define ORT_API_VERSION 20

#define ORT_API_CALL
#define ORT_CXX_API_THROW(text, code) throw Ort::Exception(text, code)
#define ORTCHAR_T char
#define ORT_TSTR(text) text
#define ORT_FILE ORT_TSTR(__FILE__)

enum ONNXTensorElementDataType {
  ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT16,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_INT16,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT32,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT64,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_COMPLEX64,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_COMPLEX128,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT8E4M3FN,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT8E4M3FNUZ,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT8E5M2,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT8E5M2FNUZ,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT4,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_INT4,
};

enum ONNXType {
  ONNX_TYPE_UNKNOWN,
  ONNX_TYPE_TENSOR,
  ONNX_TYPE_SEQUENCE,
  ONNX_TYPE_MAP,
  ONNX_TYPE_OPAQUE,
  ONNX_TYPE_SPARSETENSOR,
  ONNX_TYPE_OPTIONAL,
};

enum OrtLoggingLevel {
  ORT_LOGGING_LEVEL_VERBOSE,
  ORT_LOGGING_LEVEL_INFO,
  ORT_LOGGING_LEVEL_WARNING,
  ORT_LOGGING_LEVEL_ERROR,
  ORT_LOGGING_LEVEL_FATAL,
};

enum OrtErrorCode {
  ORT_OK,
  ORT_FAIL,
  ORT_INVALID_ARGUMENT,
  ORT_NO_SUCHFILE,
  ORT_NO_MODEL,
  ORT_ENGINE_ERROR,
  ORT_RUNTIME_EXCEPTION,
  ORT_INVALID_PROTOBUF,
  ORT_MODEL_LOADED,
  ORT_NOT_IMPLEMENTED,
  ORT_INVALID_GRAPH,
  ORT_EP_FAIL,
};

enum GraphOptimizationLevel {
  ORT_DISABLE_ALL = 0,
  ORT_ENABLE_BASIC = 1,
  ORT_ENABLE_EXTENDED = 2,
  ORT_ENABLE_LAYOUT = 3,
  ORT_ENABLE_ALL = 99,
};

enum ExecutionMode { ORT_SEQUENTIAL = 0, ORT_PARALLEL = 1 };

enum OrtAllocatorType { OrtInvalidAllocator = -1, OrtDeviceAllocator = 0, OrtArenaAllocator = 1 };

enum OrtMemType {
  OrtMemTypeCPUInput = -2,
  OrtMemTypeCPUOutput = -1,
  OrtMemTypeCPU = OrtMemTypeCPUOutput,
  OrtMemTypeDefault = 0,
};

enum OrtMemoryInfoDeviceType {
  OrtMemoryInfoDeviceType_CPU,
  OrtMemoryInfoDeviceType_GPU,
  OrtMemoryInfoDeviceType_FPGA,
};

enum OrtCudnnConvAlgoSearch {
  OrtCudnnConvAlgoSearchExhaustive,
  OrtCudnnConvAlgoSearchHeuristic,
  OrtCudnnConvAlgoSearchDefault,
};

enum OrtSparseFormat { ORT_SPARSE_UNDEFINED = 0, ORT_SPARSE_COO = 1, ORT_SPARSE_CSRC = 2 };

/// Receives messages: severity, category, name of the environment, place in the code, and text.
using OrtLoggingFunction = void (*)(void* param, OrtLoggingLevel severity, const char* category,
                                    const char* logid, const char* code_location,
                                    const char* message);

struct OrtMemoryInfo;

/// An allocator as a table of functions, which programs may implement.
struct OrtAllocator {
  uint32_t version = ORT_API_VERSION;
  void* (*Alloc)(OrtAllocator* self, size_t bytes) = nullptr;
  void (*Free)(OrtAllocator* self, void* memory) = nullptr;
  const OrtMemoryInfo* (*Info)(const OrtAllocator* self) = nullptr;
};

struct OrtArenaCfg;
struct OrtPrepackedWeightsContainer;
struct OrtCustomOpDomain;

/// Options of NVIDIA's provider in the old form. As the provider is in no build without torch, they
/// are only kept.
struct OrtCUDAProviderOptions {
  int device_id = 0;
  OrtCudnnConvAlgoSearch cudnn_conv_algo_search = OrtCudnnConvAlgoSearchExhaustive;
  size_t gpu_mem_limit = SIZE_MAX;
  int arena_extend_strategy = 0;
  int do_copy_in_default_stream = 1;
  int has_user_compute_stream = 0;
  void* user_compute_stream = nullptr;
  OrtArenaCfg* default_memory_arena_cfg = nullptr;
  int tunable_op_enable = 0;
  int tunable_op_tuning_enable = 0;
  int tunable_op_max_tuning_duration_ms = 0;
};

struct OrtROCMProviderOptions {
  int device_id = 0;
  int miopen_conv_exhaustive_search = 0;
  size_t gpu_mem_limit = SIZE_MAX;
  int arena_extend_strategy = 0;
  int do_copy_in_default_stream = 1;
  int has_user_compute_stream = 0;
  void* user_compute_stream = nullptr;
  OrtArenaCfg* default_memory_arena_cfg = nullptr;
  int enable_hip_graph = 0;
};

struct OrtTensorRTProviderOptions {
  int device_id = 0;
  int has_user_compute_stream = 0;
  void* user_compute_stream = nullptr;
  int trt_max_partition_iterations = 1000;
  int trt_min_subgraph_size = 1;
  size_t trt_max_workspace_size = size_t{1} << 30;
  int trt_fp16_enable = 0;
  int trt_int8_enable = 0;
  const char* trt_int8_calibration_table_name = nullptr;
  int trt_int8_use_native_calibration_table = 0;
  int trt_dla_enable = 0;
  int trt_dla_core = 0;
  int trt_dump_subgraphs = 0;
  int trt_engine_cache_enable = 0;
  const char* trt_engine_cache_path = nullptr;
  int trt_engine_decryption_enable = 0;
  const char* trt_engine_decryption_lib_path = nullptr;
  int trt_force_sequential_engine_build = 0;
};

struct OrtMIGraphXProviderOptions {
  int device_id = 0;
  int migraphx_fp16_enable = 0;
  int migraphx_int8_enable = 0;
};

struct OrtOpenVINOProviderOptions {
  const char* device_type = nullptr;
  unsigned char enable_npu_fast_compile = 0;
  const char* device_id = nullptr;
  size_t num_of_threads = 0;
  const char* cache_dir = nullptr;
  void* context = nullptr;
  unsigned char enable_opencl_throttling = 0;
  unsigned char enable_dynamic_shapes = 0;
};
