#include "bindings/cpu_memory_stats.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <new>
#include <stdexcept>
#include <utility>
#include <vector>

#include "bindings/casts/sizes.h"

namespace ortmodule {
namespace {

// Where the size of a block lives: in a header in front of it.
//
//   base block:  | Header, padded to kHeaderBytes | the tensor's bytes ... |
//                                                 ^ data pointer == DataPtr context
//
// A map from address to size would need a lock on each allocation and free, and a context object
// of its own would make `data != context`, which breaks raw_allocate(), raw_deleter() and the
// copy-on-write check is_simple_data_ptr(). The header costs one cache line per block, keeps
// torch's 64-byte alignment, and lets the counters be plain relaxed atomics. Blocks allocated
// before install() have the base allocator's deleter and never come here.
constexpr std::size_t kHeaderBytes = 64;
constexpr std::uint8_t kPriority = 100;

struct Header {
  std::size_t bytes;
  // Set once the block is counted, so that a foreign pointer is noticed instead of freed wrongly.
  std::uint64_t magic;
};
constexpr std::uint64_t kMagic = 0x4f52544d43505531;  // "ORTMCPU1"
static_assert(sizeof(Header) <= kHeaderBytes);

// Process-wide counters. Each value read back from fetch_add is one that really occurred, so the
// peak is exact for any number of threads; only reset_peak() asks for a quiet moment.
struct Counters {
  std::atomic<std::int64_t> current{0};
  std::atomic<std::int64_t> peak{0};
  std::atomic<std::int64_t> allocations{0};
  std::atomic<bool> tracing{false};
  std::mutex trace_mutex;
  std::vector<std::int64_t> trace;  // guarded by trace_mutex

  void add(std::int64_t bytes) {
    const std::int64_t now = current.fetch_add(bytes, std::memory_order_relaxed) + bytes;
    allocations.fetch_add(1, std::memory_order_relaxed);
    std::int64_t seen = peak.load(std::memory_order_relaxed);
    while (seen < now && !peak.compare_exchange_weak(seen, now, std::memory_order_relaxed)) {
    }
    record(bytes);
  }

  void remove(std::int64_t bytes) {
    current.fetch_sub(bytes, std::memory_order_relaxed);
    record(-bytes);
  }

  void record(std::int64_t delta) {
    if (!tracing.load(std::memory_order_relaxed)) return;
    const std::lock_guard<std::mutex> lock(trace_mutex);
    trace.push_back(delta);
  }
};

// Never destroyed: tensors may be freed after static destructors have run.
Counters& counters() {
  static Counters* const instance = new Counters;
  return *instance;
}

class CountingAllocator final : public c10::Allocator {
 public:
  // The deleter is a plain function pointer, so the base allocator has to be reachable from it.
  static void set_base(c10::Allocator* base) {
    base_ = base;
    base_deleter_ = base->raw_deleter();
    if (base_deleter_ == nullptr) {
      throw std::runtime_error("[cpu_memory] the current CPU allocator has no raw deleter");
    }
  }

  c10::DataPtr allocate(std::size_t n) override {
    const c10::Device cpu(c10::DeviceType::CPU);
    if (n == 0) return {nullptr, nullptr, &CountingAllocator::free_block, cpu};
    if (n > SIZE_MAX - kHeaderBytes) throw std::bad_alloc();
    void* const block = base_->raw_allocate(n + kHeaderBytes);
    new (block) Header{n, kMagic};
    void* const data = static_cast<std::byte*>(block) + kHeaderBytes;
    counters().add(static_cast<std::int64_t>(n));
    return {data, data, &CountingAllocator::free_block, cpu};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &CountingAllocator::free_block; }

  void copy_data(void* dest, const void* src, std::size_t count) const override {
    default_copy_data(dest, src, count);
  }

 private:
  static void free_block(void* data) {
    if (data == nullptr) return;
    void* const block = static_cast<std::byte*>(data) - kHeaderBytes;
    auto* const header = std::launder(static_cast<Header*>(block));
    if (header->magic != kMagic) {
      // raw_allocate() before install(), raw_deallocate() after it: the base owns this block.
      base_deleter_(data);
      return;
    }
    header->magic = 0;
    counters().remove(static_cast<std::int64_t>(header->bytes));
    base_deleter_(block);
  }

  static inline c10::Allocator* base_ = nullptr;
  static inline c10::DeleterFnPtr base_deleter_ = nullptr;
};

// Idempotent. There is no uninstall: live blocks must always find their deleter, and a storage
// keeps the pointer of the allocator it was made with.
void install() {
  static std::mutex mutex;
  static CountingAllocator* allocator = nullptr;
  const std::lock_guard<std::mutex> lock(mutex);
  if (allocator == nullptr) {
    CountingAllocator::set_base(c10::GetCPUAllocator());
    allocator = new CountingAllocator;
    c10::SetCPUAllocator(allocator, kPriority);
  }
  if (c10::GetCPUAllocator() != allocator) {
    throw std::runtime_error(
        "[cpu_memory] another CPU allocator with a higher priority is in place");
  }
}

bool installed() { return dynamic_cast<CountingAllocator*>(c10::GetCPUAllocator()) != nullptr; }

void reset_peak() {
  counters().peak.store(counters().current.load(std::memory_order_relaxed),
                        std::memory_order_relaxed);
}

void start_trace() {
  Counters& c = counters();
  const std::lock_guard<std::mutex> lock(c.trace_mutex);
  c.trace.clear();
  c.tracing.store(true, std::memory_order_relaxed);
}

std::vector<std::int64_t> stop_trace() {
  Counters& c = counters();
  const std::lock_guard<std::mutex> lock(c.trace_mutex);
  c.tracing.store(false, std::memory_order_relaxed);
  return std::exchange(c.trace, {});
}

}  // namespace

void init_cpu_memory_stats(pybind11::module_& m) {
  pybind11::module_ sub = m.def_submodule(
      "cpu_memory", "Exact bytes of every CPU tensor storage made after install().");
  sub.def("install", &install, "Put the counting allocator in front of torch's own, for good.");
  sub.def("installed", &installed);
  sub.def("current_bytes", [] { return counters().current.load(std::memory_order_relaxed); });
  sub.def("peak_bytes", [] { return counters().peak.load(std::memory_order_relaxed); });
  sub.def("reset_peak", &reset_peak, "Set the peak to the bytes that are live now.");
  sub.def("allocation_count",
          [] { return counters().allocations.load(std::memory_order_relaxed); });
  sub.def("start_trace", &start_trace, "Record the size of each allocation (+) and free (-).");
  sub.def("stop_trace", &stop_trace, "Stop recording; returns the signed sizes in order.");
}

}  // namespace ortmodule
