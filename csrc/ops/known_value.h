// Contents of small tensors that are known when a model is imported: constants, sizes, and
// arithmetic on them. Reshape, Slice, Range and others carry them as attributes.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "base/dim_expr.h"
#include "base/dtype.h"
#include "onnx/onnx_model.h"

namespace ortmodule {

/// An element: an integer (or bool) as an expression of sizes, or a real number.
class KnownNumber {
 public:
  KnownNumber() = default;
  KnownNumber(DimExpr integer) : integer_(std::move(integer)) {}  // NOLINT: numbers are written so
  KnownNumber(int64_t integer) : integer_(integer) {}             // NOLINT
  static KnownNumber real(double value) {
    KnownNumber number;
    number.real_ = value;
    return number;
  }
  /// The quotient of an expression and a positive constant, as a real number.
  static KnownNumber ratio(DimExpr numerator, int64_t denominator) {
    KnownNumber number(std::move(numerator));
    number.denominator_ = denominator;
    return number;
  }

  /// A real number that depends on no size.
  bool is_real() const { return real_.has_value(); }
  double real() const { return *real_; }
  const DimExpr& numerator() const { return integer_; }
  int64_t denominator() const { return denominator_; }
  bool is_integer() const { return !real_ && denominator_ == 1; }
  bool is_constant() const { return real_ || integer_.is_constant(); }
  /// The value of a constant.
  double value() const {
    return real_ ? *real_
                 : static_cast<double>(integer_.value()) / static_cast<double>(denominator_);
  }

 private:
  DimExpr integer_;
  int64_t denominator_ = 1;
  std::optional<double> real_;
};

/// The content of a tensor, row-major.
struct KnownValue {
  DType dtype = DType::Int64;
  std::vector<int64_t> dims;
  std::vector<KnownNumber> elements;

  /// More elements are data, whose content nothing should depend on.
  static constexpr int64_t kMostElements = 1024;

  bool is_constant() const {
    for (const KnownNumber& number : elements)
      if (!number.is_constant()) return false;
    return true;
  }
};

/// The content of a constant, or nullopt if it has too many elements or another type.
std::optional<KnownValue> known_content(const OnnxTensor& tensor);

/// The least and the largest element of a constant of integers with a known content, else nullopt.
std::optional<std::pair<int64_t, int64_t>> integer_bounds(const OnnxTensor& tensor);

/// A size or bound within numbers on which arithmetic cannot overflow; all larger ones mean the
/// same: the end of an axis, or more than there is memory for.
int64_t saturated(int64_t size);

/// Whether integers of the type may be known contents: arithmetic on those is that of int64.
bool has_known_content(DType dtype);

/// Element `i` of integers or bools at any address.
int64_t integer_element(const void* data, int64_t i, DType dtype);

}  // namespace ortmodule
