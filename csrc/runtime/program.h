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
  int buffer = -1;  // -1: absent
  int64_t offset_bytes = 0;
};

struct ProgramStep {
  void (*run)(const KernelArgs&) = nullptr;
  const StepFacts* facts = nullptr;
  const void* prepared = nullptr;
  std::vector<ProgramOperand> in;
  std::vector<ProgramOperand> out;
  int workspace_buffer = -1;
  int64_t workspace_offset_bytes = 0;
  int64_t library_bytes = 0;   // what the kernel's library declares to take while it runs
  bool gives_results = false;  // the kernel returns its outputs' memory
  bool inexact = false;        // the library may take more than library_bytes
  const std::vector<int>* allocate = nullptr;
  const std::vector<int>* release = nullptr;
};

struct Program {
  explicit Program(std::shared_ptr<const Plan> plan);
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  std::shared_ptr<const Plan> plan;
  std::vector<ProgramStep> steps;
  std::vector<int> argument_buffer;  // by graph input, -1: not read
  std::vector<int> argument_tensor;  // by graph input, -1: not read
  std::vector<int> output_buffer;    // by forward output
  std::vector<int> gradient_tensor;  // by graph input, -1: no gradient
  std::vector<int> range_begin;      // first step of each backward range, then the end
  size_t most_operands = 0;          // of one step, with its results
  size_t most_results = 0;           // of a step whose kernel gives them
  bool random = false;               // a step draws from the run's Philox stream
};

/// Where the buffers of a run lie at one moment, and how many bytes they are.
struct FrameContent {
  struct Held {
    int buffer = 0;
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
  void bind(int buffer, void* data) { base_[static_cast<size_t>(buffer)] = data; }
  /// Takes an engine-owned buffer out: an output or a gradient.
  Buffer take(int buffer);
  /// Takes out a gradient, which hand_over makes the caller's.
  Buffer take_gradient(int buffer);
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
  void* address(int buffer) const { return base_[static_cast<size_t>(buffer)]; }
  /// Puts memory of the frame's own in the place of what it holds.
  void replace(int buffer, Buffer memory);

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
  void begin(int buffer);
  void adopt(int buffer, Buffer result);
  void end(int buffer);

  const Program* program_;
  Allocator& allocator_;
  std::vector<Buffer> owned_;
  std::vector<void*> base_;
  int64_t live_bytes_ = 0;
  int64_t taken_gradient_bytes_ = 0;  // part of live_bytes_
  int64_t peak_bytes_ = 0;
};

/// Runs steps [begin, end). With `keep_saved`, saved segments outlive their last use
/// (retain_graph).
void execute(const Program& program, Frame& frame, KernelContext& context, int begin, int end,
             bool keep_saved);

}  // namespace ortmodule
