// A plan with every lookup done: flat steps that the executor only follows.
#pragma once

#include <memory>
#include <vector>

#include "base/buffer.h"
#include "plan/plan.h"

namespace ortmodule {

/// An operand: its view without address, and where the address comes from.
struct ProgramOperand {
  TensorView view;
  BufferId buffer;  // none: absent
  int64_t offset_bytes = 0;
};

struct ProgramStep {
  void (*run)(const KernelArgs&) = nullptr;
  const StepFacts* facts = nullptr;
  const void* prepared = nullptr;
  std::vector<ProgramOperand> in;
  std::vector<ProgramOperand> out;
  BufferId workspace_buffer;
  int64_t workspace_offset_bytes = 0;
  int64_t library_bytes = 0;   // what the kernel's library declares to take while it runs
  bool gives_results = false;  // the kernel returns its outputs' memory
  bool inexact = false;        // the library may take more than library_bytes
  const std::vector<BufferId>* allocate = nullptr;
  const std::vector<BufferId>* release = nullptr;
};

struct Program {
  explicit Program(std::shared_ptr<const Plan> plan);
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  std::shared_ptr<const Plan> plan;
  std::vector<ProgramStep> steps;
  std::vector<BufferId> argument_buffer;  // by graph input, none: not read
  std::vector<TensorId> argument_tensor;  // by graph input, none: not read
  std::vector<BufferId> output_buffer;    // by forward output
  std::vector<TensorId> gradient_tensor;  // by graph input, none: no gradient
  std::vector<int> range_begin;           // first step of each backward range, then the end
  size_t most_operands = 0;               // of one step, with its results
  size_t most_results = 0;                // of a step whose kernel gives them
  bool random = false;                    // a step draws from the run's Philox stream
};

/// Where the buffers of a run lie at one moment, and how many bytes they are.
struct FrameContent {
  struct Held {
    BufferId buffer;
    void* data = nullptr;
    int64_t bytes = 0;
  };
  std::vector<Held> held;
  int64_t live_bytes = 0;
  int64_t peak_bytes = 0;
};

/// The buffers of one forward run; lives until its backward has run.
class Frame {
 public:
  Frame(const Program& program, Allocator& allocator);

  /// Address of argument or output gradient `buffer`.
  void bind(BufferId buffer, void* data) { base_[buffer] = data; }
  /// Takes an engine-owned buffer out: an output or a gradient.
  Buffer take(BufferId buffer);
  /// Takes out a gradient, which hand_over makes the caller's.
  Buffer take_gradient(BufferId buffer);
  /// The same forward run under another backward plan. What a pass that did not run to its end left
  /// behind is freed.
  void switch_to(const Program& program);
  /// Frees all that is still held.
  void clear();
  /// What lies where.
  FrameContent content() const;
  /// Holds what `content` tells, which belongs to somebody else, instead of what it held.
  void borrow(const FrameContent& content);
  /// The address of a buffer that is held or bound.
  void* address(BufferId buffer) const { return base_[buffer]; }
  /// Puts memory of the frame's own in the place of what it holds.
  void replace(BufferId buffer, Buffer memory);

  /// Counts the gradients that were taken out as the caller's from now on.
  void hand_over();

  /// Counts scratch that a library takes for the length of one step.
  void count_library(int64_t bytes) {
    if (live_bytes_ + bytes > peak_bytes_) peak_bytes_ = live_bytes_ + bytes;
  }

  int64_t live_bytes() const { return live_bytes_; }
  int64_t peak_bytes() const { return peak_bytes_; }

 private:
  friend void execute(const Program&, Frame&, KernelContext&, int, int, bool);
  void begin(BufferId buffer);
  void adopt(BufferId buffer, Buffer result);
  void end(BufferId buffer);

  const Program* program_;
  Allocator& allocator_;
  IdVector<BufferId, Buffer> owned_;
  IdVector<BufferId, void*> base_;
  int64_t live_bytes_ = 0;
  int64_t taken_gradient_bytes_ = 0;  // part of live_bytes_
  int64_t peak_bytes_ = 0;
};

/// Runs steps [begin, end). With `keep_saved`, saved segments outlive their last use
/// (retain_graph).
void execute(const Program& program, Frame& frame, KernelContext& context, int begin, int end,
             bool keep_saved);

}  // namespace ortmodule
