// The groups of rows that GroupedMatMul and GroupedOuterProduct multiply.
#pragma once

#include <cstdint>

#include "base/error.h"
#include "kernels/kernel.h"

namespace ortmodule {

/// Calls group(e, first, count) for each of `groups`, whose rows end at ends[e], and returns where
/// the last one ends. Throws Error if ends do not ascend or are beyond `rows`.
template <class Index, class Group>
int64_t for_each_group(const Index* ends, int64_t groups, int64_t rows, const Group& group) {
  int64_t first = 0;
  for (int64_t e = 0; e < groups; ++e) {
    const auto end = static_cast<int64_t>(ends[e]);
    ORTM_CHECK(end >= first && end <= rows,
               "[grouped product] the ends of groups must ascend within ", rows,
               " rows, but found ", end, " after ", first,
               "; sort the rows by group and give the running sum of the groups' rows");
    group(e, first, end - first);
    first = end;
  }
  return first;
}

/// The same for ends that are in memory of the host.
template <class Group>
int64_t for_each_group(const TensorView& ends, int64_t rows, const Group& group) {
  const int64_t groups = ends.sizes[0];
  if (ends.dtype == DType::Int32) return for_each_group(ends.as<int32_t>(), groups, rows, group);
  return for_each_group(ends.as<int64_t>(), groups, rows, group);
}

}  // namespace ortmodule
