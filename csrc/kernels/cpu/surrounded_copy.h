// A copy into a part of a tensor whose other elements get one value (Pad, SliceGrad).
#pragma once

#include "kernels/copy_geometry.h"
#include "kernels/cpu/fill.h"
#include "kernels/cpu/strided_copy.h"

namespace ortmodule {
inline namespace ORTM_ISA {

/// Writes the elements that the copy leaves out, which lie between its rows: runs of neighbours in
/// increasing order. Where rows are short the whole tensor is filled first.
class SurroundedCopy {
 public:
  /// From operand 0 of the step into its result, which is contiguous.
  SurroundedCopy(const StepFacts& facts, const CopyGeometry& geometry)
      : copy_(geometry, facts.inputs[0].dtype, make_copy),
        first_(geometry.to_offset),
        count_(element_count(facts.outputs[0].layout.sizes)) {
    size_t outer = geometry.sizes.size();
    for (; outer > 0; --outer) {
      const int64_t size = geometry.sizes[outer - 1];
      if (size != 1 && geometry.to[outer - 1] != row_) break;
      row_ *= size;
    }
    for (size_t d = 0; d < outer; ++d) {
      sizes_.push_back(geometry.sizes[d]);
      strides_.push_back(geometry.to[d]);
      rows_ *= geometry.sizes[d];
    }
  }

  void run(const KernelArgs& args, double value) const {
    fill(args.context, args.out[0], value);
    copy_.run(run_copy, args.out[0], args.in[0], args.context);
  }

 private:
  static constexpr int64_t kLeastRow = 64, kGrain = 65536;  // elements

  void fill(const KernelContext& context, const TensorView& to, double value) const {
    if (row_ < kLeastRow || rows_ == 0) return fill_all(context, to, value);
    parallel_ranges(context, rows_ + 1, std::max<int64_t>(1, kGrain / (count_ / rows_)),
                    [&](int64_t begin, int64_t end) { fill_before(begin, end, to, value); });
  }

  /// The gaps before rows [begin, end); row `rows_` is the end of the tensor.
  void fill_before(int64_t begin, int64_t end, const TensorView& to, double value) const {
    fill_ranges(to, value, [&](const auto& fill) {
      int64_t from = begin == 0 ? 0 : place_of(begin - 1) + row_;
      for (int64_t row = begin; row < end; ++row) {
        const int64_t place = row == rows_ ? count_ : place_of(row);
        if (from < place) fill(from, place);
        from = place + row_;
      }
    });
  }

  int64_t place_of(int64_t row) const {
    int64_t place = first_;
    for (size_t d = sizes_.size(); d-- > 0; row /= sizes_[d])
      place += row % sizes_[d] * strides_[d];
    return place;
  }

  PlacedCopy<StridedCopy> copy_;
  int64_t first_, count_, row_ = 1, rows_ = 1;
  Sizes sizes_, strides_;
};

}  // namespace ORTM_ISA
}  // namespace ortmodule
