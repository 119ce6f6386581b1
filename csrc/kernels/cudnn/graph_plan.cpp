#include "kernels/cudnn/graph_plan.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>

#include "kernels/graph_convolutions.h"

// Plans without a device came with 9.8.
#if CUDNN_VERSION >= 90800

namespace ortmodule::cudnn {
namespace {

/// Enough to measure: cuDNN names up to 40 engines, and its estimate is seldom far off.
constexpr size_t kMostPlans = 4;

const RegisterGraphConvolutions kRegistered;

constexpr int64_t kX = 1, kW = 2, kY = 3;  // names of tensors

// --- the graph -----------------------------------------------------------------------------------
std::vector<int64_t> widened(const std::vector<int>& numbers) {
  return {numbers.begin(), numbers.end()};
}

BackendObject describe(int64_t name, DType dtype, const std::vector<int>& sizes,
                       bool channels_last) {
  BackendObject tensor(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  tensor.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, name);
  tensor.set(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, data_type(dtype));
  tensor.set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, int64_t{kGraphAlignment});
  tensor.set(CUDNN_ATTR_TENSOR_DIMENSIONS, widened(sizes));
  tensor.set(CUDNN_ATTR_TENSOR_STRIDES, widened(dense_strides(sizes, channels_last)));
  tensor.finalize();
  return tensor;
}

BackendObject describe_window(const ConvolutionProblem& problem) {
  BackendObject window(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
  window.set(CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT);
  window.set(CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE,
             CUDNN_CROSS_CORRELATION);
  window.set(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64,
             static_cast<int64_t>(problem.pads.size()));
  window.set(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, widened(problem.pads));
  window.set(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, widened(problem.pads));
  window.set(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, widened(problem.strides));
  window.set(CUDNN_ATTR_CONVOLUTION_DILATIONS, widened(problem.dilations));
  window.finalize();
  return window;
}

/// A graph of one operation, with its parts.
struct ConvolutionGraph {
  BackendObject x, w, y, window, operation, graph;
  bool is_valid = false;

  ConvolutionGraph(const ConvolutionProblem& problem, const GraphNames& direction)
      : x(describe(kX, problem.dtype, problem.x, problem.channels_last)),
        w(describe(kW, problem.dtype, problem.w, problem.channels_last)),
        y(describe(kY, problem.dtype, problem.y, problem.channels_last)),
        window(describe_window(problem)),
        operation(direction.operation),
        graph(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR) {
    operation.set(direction.alpha, CUDNN_TYPE_FLOAT, 1.0F);
    operation.set(direction.beta, CUDNN_TYPE_FLOAT, 0.0F);
    operation.set(direction.window, window);
    operation.set(direction.x, x);
    operation.set(direction.w, w);
    operation.set(direction.y, y);
    if (!operation.finalize()) return;
    graph.set(CUDNN_ATTR_OPERATIONGRAPH_OPS, operation);
    is_valid = graph.finalize();
  }
};

// --- engines -------------------------------------------------------------------------------------
template <class Note, size_t kMost>
bool has_any(const BackendObject& engine, cudnnBackendAttributeName_t name,
             cudnnBackendAttributeType_t type, std::initializer_list<Note> unwanted) {
  std::array<Note, kMost> notes{};
  const auto count = static_cast<size_t>(engine.get(name, type, std::span<Note>(notes)));
  return std::any_of(notes.begin(), notes.begin() + std::min(count, kMost), [&](Note note) {
    return std::find(unwanted.begin(), unwanted.end(), note) != unwanted.end();
  });
}

/// Whether the engine gives the same bits in every run, sums in float, and has its code compiled;
/// Winograd and FFT are left out as among the classic algorithms (algorithm_choice.h).
bool is_wanted(const BackendObject& config) {
  const BackendObject engine(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  cudnnBackendDescriptor_t raw = engine.raw();
  if (config.get(CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, std::span(&raw, 1)) ==
      0)
    return false;
  return !has_any<cudnnBackendNumericalNote_t, CUDNN_NUMERICAL_NOTE_TYPE_COUNT>(
             engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
             {CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC,
              CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION, CUDNN_NUMERICAL_NOTE_FFT,
              CUDNN_NUMERICAL_NOTE_WINOGRAD, CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_4x4,
              CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_6x6, CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_13x13}) &&
         !has_any<cudnnBackendBehaviorNote_t, CUDNN_BEHAVIOR_NOTE_TYPE_COUNT>(
             engine, CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE, CUDNN_TYPE_BEHAVIOR_NOTE,
             {CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION});
}

/// Engines with their settings, by cuDNN's estimate.
std::vector<BackendObject> configs_of(const BackendObject& graph, const BackendObject& device,
                                      cudnnBackendHeurMode_t mode) {
  std::vector<BackendObject> configs;
  BackendObject heuristics(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  heuristics.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
  heuristics.set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, mode);
  heuristics.set(CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, device);
  if (!heuristics.finalize()) return configs;
  const int64_t count = heuristics.get(CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                       std::span<cudnnBackendDescriptor_t>());
  std::vector<cudnnBackendDescriptor_t> raw;
  for (int64_t i = 0; i < count; ++i)
    raw.push_back(configs.emplace_back(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR).raw());
  const int64_t found =
      heuristics.get(CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, std::span(raw));
  while (std::ssize(configs) > found) configs.pop_back();
  return configs;
}

GraphPlans find_plans(const ConvolutionProblem& problem, const GraphNames& direction,
                      const BackendObject& device) {
  GraphPlans plans;
  const auto made = std::make_shared<const ConvolutionGraph>(problem, direction);
  if (!made->is_valid) return plans;
  const auto most_bytes = static_cast<int64_t>(convolution_workspace_bytes(problem));
  for (const cudnnBackendHeurMode_t mode : {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK}) {
    for (BackendObject& config : configs_of(made->graph, device, mode)) {
      if (plans.size() == kMostPlans) return plans;
      if (!is_wanted(config)) continue;
      BackendObject plan(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
      plan.set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config);
      plan.set(CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, device);
      int64_t bytes = -1;
      if (!plan.finalize() || plan.get(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64,
                                       std::span(&bytes, 1)) == 0)
        continue;
      if (bytes > most_bytes) continue;
      const auto parts =
          std::make_shared<const std::pair<std::shared_ptr<const ConvolutionGraph>, BackendObject>>(
              made, std::move(config));
      plans.emplace_back(parts, std::move(plan), bytes);
    }
  }
  return plans;
}

// --- devices -------------------------------------------------------------------------------------
/// A text of properties or, if that is empty, the number of a GPU.
using DeviceKey = std::pair<std::string, int>;

std::optional<DeviceKey> wanted_device() {
  std::string properties = graph_convolution_device();
  int number = 0;
  if (properties.empty() && cudaGetDevice(&number) != cudaSuccess) {
    cudaGetLastError();  // no GPU is no error here
    return std::nullopt;
  }
  return DeviceKey{std::move(properties), number};
}

BackendObject describe(const DeviceKey& device) {
  BackendObject properties(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
  if (device.first.empty())
    properties.set(CUDNN_ATTR_DEVICEPROP_DEVICE_ID, CUDNN_TYPE_INT32,
                   static_cast<int32_t>(device.second));
  else
    properties.set(CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, device.first);
  return properties;
}

struct Known {
  using Key = std::tuple<DeviceKey, cudnnBackendDescriptorType_t, ConvolutionProblem>;
  std::mutex mutex;
  std::map<DeviceKey, std::optional<BackendObject>> devices;  // none: refused
  std::map<Key, std::shared_ptr<const GraphPlans>> plans;

  const std::optional<BackendObject>& properties_of(const DeviceKey& device) {
    const auto [found, is_new] = devices.try_emplace(device);
    if (is_new) {
      BackendObject properties = describe(device);
      if (properties.finalize()) found->second.emplace(std::move(properties));
    }
    return found->second;
  }
};

Known& known() {
  static Known all;
  return all;
}

}  // namespace

bool GraphPlan::run(cudnnHandle_t handle, const Addresses& at, void* workspace) const {
  BackendObject pack(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  const std::array<int64_t, 3> names = {kX, kW, kY};
  const std::array<void*, 3> addresses = {at.x, at.w, at.y};
  pack.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, names);
  pack.set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR,
           std::span<void* const>(addresses));
  pack.set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, workspace);
  if (!pack.finalize()) return false;
  return cudnnBackendExecute(handle, plan_.raw(), pack.raw()) == CUDNN_STATUS_SUCCESS;
}

std::shared_ptr<const GraphPlans> graph_plans(const ConvolutionProblem& problem,
                                              const GraphNames& direction) {
  if (!uses_graph_convolutions() || size_of(problem.dtype) != 2) return nullptr;
  const std::optional<DeviceKey> device = wanted_device();
  if (!device) return nullptr;
  const std::lock_guard lock(known().mutex);
  const auto [found, is_new] =
      known().plans.try_emplace({*device, direction.operation, problem}, nullptr);
  if (!is_new) return found->second;
  if (const auto& properties = known().properties_of(*device)) {
    GraphPlans plans = find_plans(problem, direction, *properties);
    if (!plans.empty()) found->second = std::make_shared<const GraphPlans>(std::move(plans));
  }
  note_graph_convolution(found->second ? std::optional(found->second->front().workspace_bytes())
                                       : std::nullopt);
  return found->second;
}

}  // namespace ortmodule::cudnn

#else

namespace ortmodule::cudnn {

bool GraphPlan::run(cudnnHandle_t, const Addresses&, void*) const { return false; }

std::shared_ptr<const GraphPlans> graph_plans(const ConvolutionProblem&, const GraphNames&) {
  return nullptr;
}

}  // namespace ortmodule::cudnn

#endif
