#include "ops/size_guards.h"

namespace ortmodule {

int64_t SizeGuards::fix(const DimExpr& size) {
  if (size.is_constant()) return size.value();
  const int64_t value = hint(size);
  add({size, value, value});
  return value;
}

bool SizeGuards::equal(const DimExpr& a, const DimExpr& b) {
  const DimExpr difference = a - b;
  if (difference.is_constant()) return difference.value() == 0;
  const int64_t value = hint(difference);
  if (value == 0)
    add({difference, 0, 0});
  else if (value > 0)
    add({difference, 1});
  else
    add({difference, std::numeric_limits<int64_t>::min(), -1});
  return value == 0;
}

bool SizeGuards::at_most(const DimExpr& a, const DimExpr& b) {
  const DimExpr difference = b - a;
  if (difference.is_constant()) return difference.value() >= 0;
  const bool holds = hint(difference) >= 0;
  if (holds)
    add({difference, 0});
  else
    add({difference, std::numeric_limits<int64_t>::min(), -1});
  return holds;
}

bool SizeGuards::implied(const SizeGuard& guard) const {
  for (const SizeGuard& known : guards_)
    if (known.expression == guard.expression && known.least >= guard.least &&
        known.most <= guard.most)
      return true;
  return false;
}

void SizeGuards::add(SizeGuard guard) {
  if (!implied(guard)) guards_.push_back(std::move(guard));
}

}  // namespace ortmodule
