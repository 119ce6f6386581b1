// Plans prepared for execution: all lookups are done, and steps run one after the other.
#pragma once

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/buffer.h"
#include "plan/plan.h"

namespace ortmodule {

/// An operand: its view without address, and the buffer and offset that give the address.
struct ProgramOperand {
  TensorView view;
  BufferId buffer;  // none: absent
  int64_t offset_bytes = 0;
};

struct ProgramStep {
  void (*run)(const KernelArgs&) = nullptr;
  const StepFacts* facts = nullptr;
  const void* prepared = nullptr;
  std::span<const ProgramOperand> in;
  std::span<const ProgramOperand> out;
  BufferId workspace_buffer;
  int64_t workspace_offset_bytes = 0;
  int64_t library_bytes = 0;  // scratch memory that the kernel's library is declared to allocate
  bool allocates_outputs = false;      // the kernel allocates its outputs
  bool inexact = false;                // the library may allocate more than library_bytes
  std::span<const BufferId> allocate;  // before the step
  std::span<const BufferId> release;   // after it
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
  size_t most_operands = 0;               // of one step, inputs and outputs
  size_t most_results = 0;                // of one step whose kernel allocates its outputs
  bool random = false;                    // a step draws random numbers

 private:
  /// A buffer begins before or ends after a step.
  struct Event {
    size_t step = 0;
    BufferId buffer;
  };

  void add_step(const PlannedStep& planned);
  void list_buffers();
  void list(std::vector<Event> events, std::vector<BufferId>& all,
            std::span<const BufferId> ProgramStep::*of_step);

  // Of all steps, in their order: a vector for each would take longer to make than all else.
  std::vector<ProgramOperand> operands_;
  std::vector<BufferId> allocated_, released_;
};

/// The buffers that a frame holds at some point of a run.
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

/// The buffers of one run, from its forward to the end of its backward pass.
class Frame {
 public:
  Frame(const Program& program, Allocator& allocator);

  /// Where the buffer of values on the host comes from, for plans that have one. Its bytes count as
  /// none of the frame.
  void keep_on_host(Allocator& allocator) { host_allocator_ = &allocator; }
  /// Sets the address of an argument or output gradient.
  void bind(BufferId buffer, void* data) { base_[buffer] = data; }
  /// Has an output written to memory of the caller, which counts as no byte of the frame. Not for
  /// buffers that kernels allocate.
  void lend(BufferId buffer, void* data);
  /// Gives a buffer its memory before its first step, where it is not to come from the allocator.
  void provide(BufferId buffer, Buffer memory) { owned_[buffer] = std::move(memory); }
  /// Moves an output or a gradient out of the frame.
  Buffer take(BufferId buffer);
  /// Moves a gradient out. It counts as live until hand_over().
  Buffer take_gradient(BufferId buffer);
  /// Continues after forward with another backward plan of the same forward. Frees what an
  /// unfinished backward pass has left.
  void switch_to(const Program& program);
  /// Frees all buffers that are still held.
  void clear();
  /// The buffers that are held now.
  FrameContent content() const;
  /// Replaces what is held by the buffers of `content`, which the frame does not own.
  void borrow(const FrameContent& content);
  /// Gives a buffer of saved activations memory again, after clear().
  void restore(BufferId buffer, Buffer memory);
  /// The address of a buffer that is held or bound.
  void* address(BufferId buffer) const { return base_[buffer]; }
  /// Replaces the memory of a buffer by memory that the frame owns.
  void replace(BufferId buffer, Buffer memory);

  /// From now on the gradients that were moved out count as the caller's.
  void hand_over();

  /// Counts scratch memory that a library allocates during one step.
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
  Allocator* host_allocator_ = nullptr;
  IdVector<BufferId, Buffer> owned_;
  IdVector<BufferId, void*> base_;
  int64_t live_bytes_ = 0;
  int64_t taken_gradient_bytes_ = 0;  // part of live_bytes_
  int64_t peak_bytes_ = 0;
};

/// Runs steps [begin, end). With `keep_saved` (retain_graph), saved segments are not freed.
void execute(const Program& program, Frame& frame, KernelContext& context, int begin, int end,
             bool keep_saved);

}  // namespace ortmodule
