// How far a thread has read an operand, for a ReadProgress.
#pragma once

#include "kernels/cpu/cpu_kernel.h"

namespace ortmodule {
inline namespace ORTM_ISA {

/// parallel_ranges, with threads close to each other where a ReadProgress follows: items have
/// `item_bytes`, and what each thread writes may become resident in huge pages.
template <class Body>
inline void followed_ranges(const KernelContext& context, int64_t count, int64_t grain,
                            int64_t item_bytes, const Body& body) {
  constexpr int64_t kSlabBytes = 2 << 20;
  const int64_t slab = context.progress ? ceil_div(kSlabBytes, std::max<int64_t>(item_bytes, 1))
                                        : std::max<int64_t>(count, 1);
  for (int64_t first = 0; first < count; first += slab)
    parallel_ranges(context, std::min(slab, count - first), grain,
                    [&](int64_t begin, int64_t end) { body(first + begin, first + end); });
}

/// Reports in pieces that are worth a call of the system.
class ReadRange {
 public:
  explicit ReadRange(const KernelContext& context) : progress_(context.progress) {}
  ~ReadRange() { report(); }
  ReadRange(const ReadRange&) = delete;
  ReadRange& operator=(const ReadRange&) = delete;

  /// Bytes [first, last) will not be read again.
  void has_read(const void* first, const void* last) {
    if (!progress_) return;
    if (first != last_) {
      report();
      first_ = static_cast<const char*>(first);
    }
    last_ = static_cast<const char*>(last);
    if (last_ - first_ >= kPieceBytes) report();
  }

  /// The same for a few pages among others, whose kernel says so again for all of them.
  void has_read_now(const void* first, const void* last) const {
    if (progress_)
      progress_->has_read(first, static_cast<size_t>(static_cast<const char*>(last) -
                                                     static_cast<const char*>(first)));
  }

 private:
  static constexpr int64_t kPieceBytes = 1 << 19;

  void report() {
    if (last_ > first_) progress_->has_read(first_, static_cast<size_t>(last_ - first_));
    first_ = last_;
  }

  ReadProgress* progress_;
  const char *first_ = nullptr, *last_ = nullptr;
};

}  // namespace ORTM_ISA
}  // namespace ortmodule
