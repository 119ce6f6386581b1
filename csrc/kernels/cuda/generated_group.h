// Pointwise groups whose code is compiled at run time, in the background, while the interpreter
// runs them. Off until enable_generated_code() is called.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "kernels/cuda/code_cache.h"
#include "kernels/cuda/pointwise_source.h"
#include "kernels/kernel.h"
#include "kernels/step_compiler.h"

namespace ortmodule::cuda {

/// Code that a device can run.
class LoadedCode {
 public:
  virtual ~LoadedCode() = default;
  virtual void launch(const PointwiseLaunch& launch, int64_t blocks,
                      const KernelContext& context) const = 0;
};

/// Compiles and loads: NVRTC and CUDA's driver, or the C++ compiler in the tests' emulation.
class CodeMaker {
 public:
  virtual ~CodeMaker() = default;
  /// What code for the device depends on beside its text.
  virtual std::string environment(int device) const = 0;
  /// Called in the background. Throws Error.
  virtual std::string compile(const PointwiseSource& source, int device) const = 0;
  /// Called by a thread that is about to run steps on the device. Throws Error.
  virtual std::unique_ptr<LoadedCode> load(const std::string& code, const PointwiseSource& source,
                                           int device) const = 0;
  /// Whether the calling thread may load code now: not while it captures a CUDA graph.
  virtual bool may_load(const KernelContext& context) const = 0;
};

class GeneratedCode;

/// The code of one text, shared by all steps that have it, by device.
class GeneratedGroup : public std::enable_shared_from_this<GeneratedGroup> {
 public:
  GeneratedGroup(GeneratedCode& owner, PointwiseSource source)
      : owner_(owner), source_(std::move(source)) {}

  const PointwiseSource& source() const { return source_; }
  /// The code that a run of this context uses, or null: the interpreter does. The first call for a
  /// device asks for the code.
  const LoadedCode* code(const KernelContext& context);
  /// Counts a launch of it.
  void note_launch() const;

 private:
  friend class GeneratedCode;
  static constexpr int kMostDevices = 16;
  struct Slot {
    std::atomic<bool> requested{false};
    std::atomic<uint64_t> number{0};  // 0: not there yet; set after `loaded`
    std::unique_ptr<LoadedCode> loaded;
  };

  GeneratedCode& owner_;
  PointwiseSource source_;
  Slot slots_[kMostDevices];
};

/// All groups, the thread that compiles them and the cache on disk.
class GeneratedCode : public StepCompiler {
 public:
  /// `folder` is that of the cache; empty: none. Throws Error if it may not be used.
  GeneratedCode(std::unique_ptr<CodeMaker> maker, const std::string& folder);
  ~GeneratedCode() override;
  GeneratedCode(const GeneratedCode&) = delete;
  GeneratedCode& operator=(const GeneratedCode&) = delete;

  /// The shared code of a program, or null if it stays interpreted.
  std::shared_ptr<GeneratedGroup> group(const PointwiseProgram& program);
  uint64_t newest(const KernelContext& context) override;
  void finish() override;
  StepCompilerCounts counts() override;

 private:
  friend class GeneratedGroup;
  struct Request {
    std::shared_ptr<GeneratedGroup> group;
    int device = 0;
    std::string code;
  };

  void request(std::shared_ptr<GeneratedGroup> group, int device);
  void compile_all();
  bool compile(Request& request);
  void load_compiled(int device);
  void load(const Request& request);
  void note_failure(const std::string& failure);

  const std::unique_ptr<CodeMaker> maker_;
  std::unique_ptr<CodeCache> cache_;
  std::atomic<uint64_t> newest_{1};
  std::atomic<bool> has_compiled_{false};
  std::atomic<int64_t> launches_{0};

  std::mutex loading_;  // one thread loads at a time
  std::mutex mutex_;    // of what follows
  std::condition_variable changed_;
  // By text. They stay to the end: a recorded CUDA graph may launch their code.
  std::map<std::string, std::shared_ptr<GeneratedGroup>> groups_;
  std::deque<Request> waiting_;
  std::vector<Request> compiled_;
  bool busy_ = false, ending_ = false;
  StepCompilerCounts counts_;
  std::thread thread_;
};

/// From now on the groups of new plans are compiled. A second call changes nothing.
void enable_generated_code(std::unique_ptr<CodeMaker> maker, const std::string& folder);
/// Of this process; null while it is off.
GeneratedCode* generated_code();

}  // namespace ortmodule::cuda
