// Symbolic integer expressions over the sizes of a graph's inputs. A dimension is never a tensor:
// shapes, offsets and strides are DimExpr in the graph and plain integers in a plan.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ortmodule {

class DimExpr;

/// Values of the symbols for one set of input shapes.
class SymbolValues {
 public:
  /// Binds `symbol`. Throws Error if it is bound to another value.
  void bind(std::string_view symbol, int64_t value);
  /// The value of `symbol`, or null if it is not bound.
  const int64_t* find(std::string_view symbol) const;
  const std::vector<std::pair<std::string, int64_t>>& entries() const { return entries_; }

 private:
  static constexpr size_t kFew = 16;  // of which linear search is fastest

  size_t place_of(std::string_view symbol) const;
  void index(size_t place);

  std::vector<std::pair<std::string, int64_t>> entries_;
  // Of more than a few: their places by hash, open addressing; at least half is kNone.
  std::vector<uint32_t> table_;
};

/// An atomic factor of a term: a symbol, or a non-polynomial operation.
struct DimAtom {
  enum class Kind { Symbol, FloorDiv, Mod, Max, Min };
  Kind kind = Kind::Symbol;
  std::string symbol;             // Kind::Symbol
  std::vector<DimExpr> operands;  // the two operands of the other kinds
  std::string text;               // canonical form: equal text means equal value
};

/// A polynomial with integer coefficients in normal form, so that equality is structural: a sum
/// such as `2*a*b + a` is the same in any order. Immutable and cheap to copy.
class DimExpr {
 public:
  DimExpr() : DimExpr(int64_t{0}) {}
  DimExpr(int64_t value);  // NOLINT: sizes are written as plain integers everywhere
  DimExpr(int value) : DimExpr(static_cast<int64_t>(value)) {}  // NOLINT

  static DimExpr symbol(std::string_view name);
  static DimExpr floor_div(const DimExpr& a, const DimExpr& b);
  static DimExpr mod(const DimExpr& a, const DimExpr& b);
  static DimExpr max(const DimExpr& a, const DimExpr& b);
  static DimExpr min(const DimExpr& a, const DimExpr& b);

  /// Reads `3*(s0 + 1)//2`, with + - * // % max(,) min(,) and parentheses. Throws Error.
  static DimExpr parse(std::string_view text);

  bool is_constant() const { return constant_; }
  /// The value of a constant expression. Throws InternalError if it is not constant.
  int64_t value() const;
  /// Whether the expression is a single symbol; if so, sets `name`.
  bool is_symbol(std::string* name = nullptr) const;
  /// Evaluates, with Python's `//` and `%`. Throws Error if a symbol is not bound.
  int64_t evaluate(const SymbolValues& values) const;
  /// Appends the names of all symbols in it.
  void collect_symbols(std::vector<std::string>& names) const;
  /// Replaces symbols by expressions; symbols without an entry stay.
  DimExpr substitute(const std::vector<std::pair<std::string, DimExpr>>& map) const;

  /// Rebuilds the expression in another algebra: `constant(int64_t)`, `symbol(name)`, `add(a, b)`,
  /// `multiply(a, b)` on Algebra::Result, `apply(DimAtom::Kind, a, b)` on DimExpr.
  template <class Algebra>
  typename Algebra::Result rebuild(Algebra& algebra) const;

  const std::string& text() const;

  friend DimExpr operator+(const DimExpr& a, const DimExpr& b);
  friend DimExpr operator-(const DimExpr& a, const DimExpr& b);
  friend DimExpr operator*(const DimExpr& a, const DimExpr& b);
  friend bool operator==(const DimExpr& a, const DimExpr& b);

 private:
  struct Term {
    int64_t coefficient = 0;
    std::vector<std::shared_ptr<const DimAtom>> atoms;  // sorted by text
  };
  struct Polynomial {
    std::vector<Term> terms;  // sorted, none zero, like terms merged
    std::string text;
  };

  static DimExpr from_terms(std::vector<Term> terms);
  static DimExpr from_atom(std::shared_ptr<const DimAtom> atom);
  static DimExpr operation(DimAtom::Kind kind, const DimExpr& a, const DimExpr& b);
  static DimExpr simplified(DimAtom::Kind kind, const DimExpr& a, const DimExpr& b);
  std::vector<Term> terms() const;

  bool constant_ = true;
  int64_t value_ = 0;
  std::shared_ptr<const Polynomial> polynomial_;  // null for constants
};

template <class Algebra>
typename Algebra::Result DimExpr::rebuild(Algebra& algebra) const {
  using Result = typename Algebra::Result;
  if (constant_) return algebra.constant(value_);
  std::optional<Result> sum;
  for (const Term& term : polynomial_->terms) {
    std::optional<Result> product;
    if (term.coefficient != 1 || term.atoms.empty()) product = algebra.constant(term.coefficient);
    for (const auto& atom : term.atoms) {
      Result factor = atom->kind == DimAtom::Kind::Symbol
                          ? algebra.symbol(atom->symbol)
                          : algebra.apply(atom->kind, atom->operands[0], atom->operands[1]);
      product = product ? algebra.multiply(*product, factor) : factor;
    }
    sum = sum ? algebra.add(*sum, *product) : *product;
  }
  return *sum;
}

std::ostream& operator<<(std::ostream& out, const DimExpr& expr);

using Dims = std::vector<DimExpr>;

/// Product of all dims: the number of elements.
DimExpr product(const Dims& dims);

/// False only if the sizes certainly differ. Sizes whose equality the tracer guarded may have
/// different expressions; plans check them again on numbers.
bool may_equal(const DimExpr& a, const DimExpr& b);
bool may_equal(const Dims& a, const Dims& b);

/// All dims evaluated.
std::vector<int64_t> evaluate(const Dims& dims, const SymbolValues& values);

}  // namespace ortmodule
