#include "bindings/cuda/graph_recorder.h"

#include <ATen/cuda/CUDAEvent.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <memory>
#include <optional>

#include "bindings/device_runtime.h"

namespace ortmodule::bindings {
namespace {

/// The last work that used a memory pool that several graphs share.
struct LastUse {
  at::cuda::CUDAEvent event;
  std::optional<c10::cuda::CUDAStream> stream;
};

/// A pool of torch's allocator, shared by graphs that never run at the same time.
struct GraphPool {
  c10::MempoolId_t id = at::cuda::graph_pool_handle();
};

class CudaGraph : public RecordedSteps {
 public:
  CudaGraph(std::shared_ptr<LastUse> last_use, std::shared_ptr<GraphPool> pool)
      : last_use_(std::move(last_use)), pool_(std::move(pool)) {}
  // Its memory may go to others at once. Happens where a plan is given up, not within a step.
  ~CudaGraph() override {
    if (last_use_->stream) last_use_->event.synchronize();
  }

  at::cuda::CUDAGraph& graph() { return graph_; }
  void replay() override { graph_.replay(); }

 private:
  std::shared_ptr<LastUse> last_use_;
  std::shared_ptr<GraphPool> pool_;
  at::cuda::CUDAGraph graph_;
};

class CudaGraphRecorder : public StepRecorder {
 public:
  explicit CudaGraphRecorder(const DeviceRuntime& runtime)
      : runtime_(runtime), stream_(c10::cuda::getStreamFromPool(false, runtime.device().index())) {}

  std::unique_ptr<RecordedSteps> record(const std::function<void()>& launch) override {
    const std::shared_ptr<GraphPool> pool = living_pool();
    auto recorded = std::make_unique<CudaGraph>(last_use_, pool);
    {
      const c10::cuda::CUDAStreamGuard on(stream_);
      // Library handles allocate their workspace for this stream now, outside of the graph's pool.
      KernelContext context;
      runtime_.fill(context);
      // Thread-local mode: other threads (a data loader) may make calls that are illegal during a
      // capture.
      recorded->graph().capture_begin(pool->id, cudaStreamCaptureModeThreadLocal);
      try {
        launch();
      } catch (...) {
        abandon(recorded->graph(), pool->id);
        throw;
      }
      end(recorded->graph(), pool->id);
    }
    recorded->replay();
    return recorded;
  }

  void join() override {
    const c10::cuda::CUDAStream stream = current_stream();
    if (last_use_->stream && *last_use_->stream != stream) last_use_->event.block(stream);
  }

  void note_use() override {
    last_use_->stream = current_stream();
    last_use_->event.record(*last_use_->stream);
  }

 private:
  /// The pool of the graphs there are. torch gives up a pool with its last graph and takes no other
  /// for it, so the next graph has a new one.
  std::shared_ptr<GraphPool> living_pool() {
    std::shared_ptr<GraphPool> pool = pool_.lock();
    if (!pool) pool_ = pool = std::make_shared<GraphPool>();
    return pool;
  }

  c10::cuda::CUDAStream current_stream() const {
    return c10::cuda::getCurrentCUDAStream(runtime_.device().index());
  }

  /// A capture that steps made invalid ends with an error, after which torch's allocator would
  /// still look for it.
  void end(at::cuda::CUDAGraph& graph, c10::MempoolId_t pool) {
    try {
      graph.capture_end();
    } catch (const c10::Error&) {
      cudaGetLastError();  // reported by the exception
      try {
        c10::cuda::CUDACachingAllocator::endAllocateToPool(runtime_.device().index(), pool);
      } catch (const c10::Error&) {
        // torch has already ended it.
      }
      throw;
    }
  }

  void abandon(at::cuda::CUDAGraph& graph, c10::MempoolId_t pool) {
    try {
      end(graph, pool);
    } catch (const c10::Error&) {
      // The exception of `launch` is more useful.
    }
  }

  const DeviceRuntime& runtime_;
  c10::cuda::CUDAStream stream_;  // a capture may not be on the default stream
  std::weak_ptr<GraphPool> pool_;
  std::shared_ptr<LastUse> last_use_ = std::make_shared<LastUse>();
};

}  // namespace

std::unique_ptr<StepRecorder> cuda_graph_recorder(const DeviceRuntime& runtime) {
  return std::make_unique<CudaGraphRecorder>(runtime);
}

}  // namespace ortmodule::bindings
