// The rows of a loss head that can matter: those whose label is not ignored. In masked language
// models seven of eight labels are.
#pragma once

#include "kernels/kernel.h"

namespace ortmodule::loss_head {

/// Rows of x [rows, channels], which is dense and on the host, in their order.
class CountedRows {
 public:
  CountedRows(const TensorView& x, const TensorView& labels, int64_t ignore_index);

  int64_t count() const { return count_; }

  /// Copies the next `count` of them and their labels, densely; behind the last one rows are 0 and
  /// ignored.
  void gather(int64_t count, void* x, void* labels);

  /// Dense rows of these at the front of `dx` move to their places; all others become 0.
  void spread(const TensorView& dx) const;

 private:
  bool counts(int64_t row) const;
  int64_t label(int64_t row) const;

  TensorView x_, labels_;
  int64_t ignore_index_, count_ = 0;
  int64_t next_ = 0;  // row that is looked at next
};

}  // namespace ortmodule::loss_head
