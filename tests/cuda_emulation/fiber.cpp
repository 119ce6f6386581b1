// On x86-64 a switch saves the registers that calls preserve and swaps stacks, some nanoseconds;
// elsewhere ucontext does it, with two system calls for the signal mask.
#include "fiber.h"

#include <sys/mman.h>

#include <cstdint>
#include <exception>
#include <new>
#include <utility>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#define ORTM_FIBER_ASAN 1
#endif

#if defined(__x86_64__)
extern "C" void ortm_switch_stack(void** save_stack, void* load_stack);
asm(R"(
.pushsection .text
.p2align 4
.type ortm_switch_stack,@function
ortm_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size ortm_switch_stack,.-ortm_switch_stack
.popsection
)");
#endif

namespace ortmodule::cuda::emulation {
namespace {

constexpr size_t kPageBytes = 4096;
constexpr size_t kStackBytes = 256 * 1024;  // mapped, not used: pages come when touched

thread_local Fiber* starting = nullptr;  // for enter(), which takes no arguments

}  // namespace

struct Fiber::Context {
  std::byte* memory = nullptr;  // a guard page, then the stack
#if defined(__x86_64__)
  void* own = nullptr;     // stack pointer while paused
  void* caller = nullptr;  // of whoever resumed it
#else
  ucontext_t own, caller;
#endif
  bool entered = false;
#if defined(ORTM_FIBER_ASAN)
  const void* caller_stack = nullptr;
  size_t caller_bytes = 0;
#endif

  Context() {
    void* mapped = mmap(nullptr, kPageBytes + kStackBytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED) throw std::bad_alloc();
    memory = static_cast<std::byte*>(mapped);
    mprotect(memory, kPageBytes, PROT_NONE);
  }
  ~Context() {
#if defined(ORTM_FIBER_ASAN)
    // Of a fiber that was never resumed frames are left; the next one may be mapped here.
    __asan_unpoison_memory_region(memory, kPageBytes + kStackBytes);
#endif
    munmap(memory, kPageBytes + kStackBytes);
  }

  std::byte* stack() const { return memory + kPageBytes; }

  void to_fiber() {
#if defined(__x86_64__)
    ortm_switch_stack(&caller, own);
#else
    swapcontext(&caller, &own);
#endif
  }
  void to_caller() {
#if defined(ORTM_FIBER_ASAN)
    void* fake = nullptr;
    __sanitizer_start_switch_fiber(&fake, caller_stack, caller_bytes);
#endif
#if defined(__x86_64__)
    ortm_switch_stack(&own, caller);
#else
    swapcontext(&own, &caller);
#endif
#if defined(ORTM_FIBER_ASAN)
    __sanitizer_finish_switch_fiber(fake, &caller_stack, &caller_bytes);
#endif
  }
};

Fiber::Fiber() : context_(std::make_unique<Context>()) {}
Fiber::~Fiber() = default;

// The bottom of every fiber's stack: runs one body after another, for ever.
void Fiber::enter() {
  Fiber* self = starting;
#if defined(ORTM_FIBER_ASAN)
  __sanitizer_finish_switch_fiber(nullptr, &self->context_->caller_stack,
                                  &self->context_->caller_bytes);
#endif
  for (;;) {
    try {
      (*self->body_)();
    } catch (...) {
      self->failure_ = std::current_exception();
    }
    self->finished_ = true;
    self->context_->to_caller();
  }
}

void Fiber::switch_in() {
  Context& c = *context_;
  if (!c.entered) {
    c.entered = true;
    starting = this;
#if defined(__x86_64__)
    // As if enter() had been called: a return address below a stack aligned to 16 bytes.
    void** top = reinterpret_cast<void**>(c.stack() + kStackBytes);
    top[-2] = reinterpret_cast<void*>(&Fiber::enter);
    for (int i = 3; i <= 8; ++i) top[-i] = nullptr;  // the registers
    top[-1] = nullptr;                               // where enter() would return to
    c.own = top - 8;
#else
    getcontext(&c.own);
    c.own.uc_stack.ss_sp = c.stack();
    c.own.uc_stack.ss_size = kStackBytes;
    c.own.uc_link = nullptr;
    makecontext(&c.own, &Fiber::enter, 0);
#endif
  }
#if defined(ORTM_FIBER_ASAN)
  void* fake = nullptr;
  __sanitizer_start_switch_fiber(&fake, c.stack(), kStackBytes);
  c.to_fiber();
  __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#else
  c.to_fiber();
#endif
}

void Fiber::start(const std::function<void()>& body) {
  body_ = &body;
  finished_ = false;
  failure_ = nullptr;
  switch_in();
}

void Fiber::resume() { switch_in(); }

void Fiber::pause() { context_->to_caller(); }

void Fiber::rethrow() {
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

}  // namespace ortmodule::cuda::emulation
