// Packs the right factor of a product of integers as base/integer_panels.h lays it out.
#pragma once

#include "kernels/cpu/integer_rests.h"

namespace ortmodule {
inline namespace ORTM_ISA {

/// Panels of b, [inner, columns], xor `flip`, and the sums of its columns.
template <class Dot>
void pack_panels_and_sums(const KernelContext& context, const StridedMatrix<const int8_t>& b,
                          int8_t flip, int8_t* to) {
  const int64_t padded = padded_inner(b.rows), panels = padded_columns(b.columns) / kIntegerPanel;
  auto* sums = reinterpret_cast<int32_t*>(to + panels * kIntegerPanel * padded);
  std::fill_n(sums, panels * kIntegerPanel, 0);
  parallel_ranges(
      context, panels, grain_for(padded * kIntegerPanel), [&](int64_t begin, int64_t end) {
        const int64_t column = begin * kIntegerPanel;
        const StridedMatrix<const int8_t> part{b.data + column * b.column_stride, b.rows,
                                               std::min(b.columns, end * kIntegerPanel) - column,
                                               b.row_stride, b.column_stride};
        pack_integer_panels<Dot>(part, flip, padded, to + column * padded);
        add_integer_columns(part, flip, sums + column);
      });
}

/// The same, with what an instruction that saturates needs (integer_rests.h). `to` has
/// integer_panel_bytes().
inline void pack_integer_matrix(const KernelContext& context, const StridedMatrix<const int8_t>& b,
                                int8_t flip, int8_t* to) {
#if defined(ORTM_INTEGER_RESTS)
  const int64_t piece = IntegerProduct<IntegerDot>::piece_of(b.rows);
  pack_panels_and_sums<PairsDot>(context, b, flip, to);
  if (take_rests<2>(context, to, b.rows, b.columns, piece) ||
      take_rests<1>(context, to, b.rows, b.columns, piece))
    return;
#endif
  pack_panels_and_sums<IntegerDot>(context, b, flip, to);
}

}  // namespace ORTM_ISA
}  // namespace ortmodule
