// The torch side of a session: tensors in and out, and autograd.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "bindings/derived_gradients.h"
#include "bindings/device_runtime.h"
#include "bindings/pinned_blocks.h"
#include "bindings/step_runner.h"
#include "session.h"

namespace ortmodule::bindings {

DType to_dtype(at::ScalarType type);
at::ScalarType to_scalar_type(DType dtype);

/// A tensor of the runtime's device that owns `buffer`.
at::Tensor tensor_from(Buffer buffer, DType dtype, const Layout& layout,
                       const DeviceRuntime& runtime);

/// How a piece is compiled and run. CompiledPiece completes the session's options by facts about
/// the device.
struct PieceOptions {
  c10::Device device{c10::kCPU};  // of every tensor of the piece
  bool emulate_cuda = false;      // CPU tensors through CUDA kernels compiled for the host
  bool cuda_graph = false;        // replay steps as CUDA graphs
  bool generated_code = true;     // use code compiled at run time, where the process has it
  bool is_derived = false;        // the backward pass of another piece
  /// Not set: follows torch.backends.cudnn.benchmark when a step runs.
  std::optional<ConvolutionSearch> convolution_search;
  SessionOptions session;
};

/// The number of forward runs in this process, over all pieces.
int64_t engine_runs();

/// Counts of a piece's runs, and the peaks of the last one.
struct RunStatistics {
  int64_t forwards = 0;
  int64_t backwards = 0;
  int64_t last_run = 0;             // engine_runs() after the last forward
  int64_t planned_peak_bytes = 0;   // of the last run
  int64_t measured_peak_bytes = 0;  // engine bytes of the last finished run
};

/// A captured piece, called with the flat arguments that Dynamo passes.
class CompiledPiece : public std::enable_shared_from_this<CompiledPiece> {
 public:
  CompiledPiece(ExportedPiece piece, std::vector<at::Tensor> constants,
                const PieceOptions& options);
  ~CompiledPiece();

  /// Makes or finds the plan for tensors of these sizes and strides; data is not read. The plan
  /// becomes last_plan().
  std::shared_ptr<PlanEntry> plan(const std::vector<at::Tensor>& tensors,
                                  const std::vector<int64_t>& symbols);
  /// Runs forward. `tensors` by graph input, constants included; `symbols` in order. Returns the
  /// outputs by index. If the piece trains, records one autograd node per backward range. `sizes`,
  /// unless null, receives the values of all symbols. `seed`, unless null, is used for random
  /// numbers instead of a new one.
  std::vector<at::Tensor> run(std::vector<at::Tensor> tensors, const std::vector<int64_t>& symbols,
                              SymbolValues* sizes, const RunSeed* seed = nullptr);

  Session& session() { return *session_; }
  const Session& session() const { return *session_; }
  const PieceOptions& options() const { return options_; }
  /// Its backward passes that are pieces of their own.
  DerivedPieces& derived() { return derived_; }
  const std::vector<at::Tensor>& constants() const { return constants_; }
  RunStatistics statistics() const;
  std::shared_ptr<PlanEntry> last_plan() const;
  /// Records the peaks of a finished run: of a backward pass, or of a forward without one.
  void finished(PlanEntry& entry, int64_t planned_bytes, int64_t measured_bytes, bool backward);
  /// Records the peaks of a step with gradients of gradients, which plans of several pieces make.
  void finished_derived(int64_t planned_bytes, int64_t measured_bytes);
  const DeviceRuntime& runtime() const { return runtime_; }
  DeviceRuntime& runtime() { return runtime_; }
  /// Launches the steps of runs.
  StepRunner& runner() { return *runner_; }
  /// Where runs keep values on the host.
  PinnedBlocks& pinned_blocks() { return pinned_blocks_; }
  std::optional<ConvolutionSearch> convolution_search() const { return convolution_search_; }

 private:
  void check(const at::Tensor& tensor, const Value& expected) const;

  const PieceOptions options_;
  DeviceRuntime& runtime_;
  std::unique_ptr<Session> session_;
  std::vector<at::Tensor> constants_;
  mutable std::mutex report_mutex_;  // guards the next two: several threads may run the piece
  RunStatistics statistics_;
  std::shared_ptr<PlanEntry> last_plan_;
  std::unique_ptr<StepRunner> runner_ = std::make_unique<StepByStep>();
  std::optional<ConvolutionSearch> convolution_search_;
  PinnedBlocks pinned_blocks_{runtime_};
  DerivedPieces derived_;
};

}  // namespace ortmodule::bindings
