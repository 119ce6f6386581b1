// Bisection for sizes that fit in a limit.
#pragma once

#include <algorithm>
#include <cstdint>

namespace ortmodule {

/// Bisects for the largest n in [1, most] that fits; 0 if none does. Small values come first, since
/// what does not fit may be too large to be planned.
template <class Fits>
int64_t largest_that(const Fits& fits, int64_t most) {
  int64_t good = 0, bad = most + 1;
  for (int64_t n = std::min<int64_t>(2, most); n >= 1 && bad > most;) {
    if (!fits(n)) {
      bad = n;
    } else {
      good = n;
      if (n == most) return n;
      n = n > most / 2 ? most : 2 * n;
    }
  }
  while (bad - good > 1) {
    const int64_t middle = good + (bad - good) / 2;
    (fits(middle) ? good : bad) = middle;
  }
  return good;
}

}  // namespace ortmodule
