#include "base/dim_expr.h"

#include <algorithm>
#include <bit>
#include <cctype>
#include <charconv>
#include <functional>

#include "base/error.h"

namespace ortmodule {
namespace {

constexpr uint32_t kNone = static_cast<uint32_t>(-1);
constexpr int kMostNested = 2000;         // levels of a text: each takes stack space to parse
constexpr int kMostOperations = 1000;     // in a text: their operands nest
constexpr size_t kMostProducts = 10'000;  // of terms, in one multiplication

// Texts come from files, so an overflow must be an error, not undefined behavior.
int64_t checked_add(int64_t a, int64_t b) {
  int64_t sum = 0;
  ORTM_CHECK(!__builtin_add_overflow(a, b, &sum), "[shape] a size must fit 64 bits, but found ", a,
             " + ", b);
  return sum;
}

int64_t checked_multiply(int64_t a, int64_t b) {
  int64_t product = 0;
  ORTM_CHECK(!__builtin_mul_overflow(a, b, &product), "[shape] a size must fit 64 bits, but found ",
             a, " * ", b);
  return product;
}

int64_t floor_div_value(int64_t a, int64_t b) {
  ORTM_CHECK(b != 0, "[shape] division by zero in a size expression");
  if (b == -1) return checked_multiply(a, b);  // INT64_MIN / -1 overflows and traps on x86
  const int64_t q = a / b;
  return (a % b != 0 && ((a < 0) != (b < 0))) ? q - 1 : q;
}

int64_t mod_value(int64_t a, int64_t b) {
  ORTM_CHECK(b != 0, "[shape] division by zero in a size expression");
  if (b == -1) return 0;
  const int64_t rest = a % b;
  return rest != 0 && ((rest < 0) != (b < 0)) ? rest + b : rest;
}

int64_t apply(DimAtom::Kind kind, int64_t a, int64_t b) {
  switch (kind) {
    case DimAtom::Kind::FloorDiv: return floor_div_value(a, b);
    case DimAtom::Kind::Mod: return mod_value(a, b);
    case DimAtom::Kind::Max: return std::max(a, b);
    case DimAtom::Kind::Min: return std::min(a, b);
    case DimAtom::Kind::Symbol: break;
  }
  throw InternalError("a symbol is not an operation");
}

bool is_digit(char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; }

// Recursive descent: sum := product (("+"|"-") product)*; product := unary (("*"|"//"|"%") unary)*.
class DimParser {
 public:
  explicit DimParser(std::string_view text) : text_(text) {}

  DimExpr parse() {
    DimExpr result = sum();
    skip_space();
    ORTM_CHECK(at_ == text_.size(), "[shape] a size expression must end here, but found '",
               text_.substr(at_), "' in '", text_, "'");
    return result;
  }

 private:
  DimExpr sum() {
    const Level level(*this);
    DimExpr left = product();
    for (;;) {
      if (eat("+")) {
        left = left + product();
      } else if (eat("-")) {
        left = left - product();
      } else {
        return left;
      }
    }
  }

  DimExpr product() {
    DimExpr left = unary();
    for (;;) {
      if (eat("//")) {
        note_operation();
        left = DimExpr::floor_div(left, unary());
      } else if (eat("*")) {
        left = left * unary();
      } else if (eat("%")) {
        note_operation();
        left = DimExpr::mod(left, unary());
      } else {
        return left;
      }
    }
  }

  DimExpr unary() {
    const Level level(*this);
    if (eat("-")) {
      if (at_ < text_.size() && is_digit(text_[at_])) return number(true);
      return DimExpr(0) - unary();
    }
    if (eat("(")) {
      DimExpr inner = sum();
      expect(")");
      return inner;
    }
    skip_space();
    ORTM_CHECK(at_ < text_.size(), "[shape] a size expression must not end after an operator: '",
               text_, "'");
    if (is_digit(text_[at_])) return number(false);
    const std::string name = identifier();
    if (name == "max" || name == "min") {
      note_operation();
      expect("(");
      DimExpr a = sum();
      expect(",");
      DimExpr b = sum();
      expect(")");
      return name == "max" ? DimExpr::max(a, b) : DimExpr::min(a, b);
    }
    return DimExpr::symbol(name);
  }

  DimExpr number(bool negative) {
    const size_t start = at_;
    while (at_ < text_.size() && is_digit(text_[at_])) ++at_;
    const std::string digits = str(negative ? "-" : "", text_.substr(start, at_ - start));
    int64_t value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    ORTM_CHECK(error == std::errc(), "[shape] a size must fit 64 bits, but found ", digits);
    return DimExpr(value);
  }

  std::string identifier() {
    const size_t start = at_;
    auto is_word = [](char c) {
      return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '.';
    };
    if (at_ < text_.size() && text_[at_] != '.')  // .5 is not a name
      while (at_ < text_.size() && is_word(text_[at_])) ++at_;
    ORTM_CHECK(at_ > start,
               "[shape] a size expression must have a number or a name here, but found '",
               text_.substr(at_), "' in '", text_, "'");
    return std::string(text_.substr(start, at_ - start));
  }

  void skip_space() {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
  }

  bool eat(std::string_view token) {
    skip_space();
    if (text_.substr(at_, token.size()) != token) return false;
    at_ += token.size();
    return true;
  }

  void expect(std::string_view token) {
    ORTM_CHECK(eat(token), "[shape] a size expression must have '", token, "' here, but found '",
               text_.substr(at_), "' in '", text_, "'");
  }

  void note_operation() {
    ORTM_CHECK(++operations_ <= kMostOperations, "[shape] a size expression must have at most ",
               kMostOperations, " of //, %, max and min, but found more");
  }

  // Counts one level of nesting during its lifetime.
  struct Level {
    explicit Level(DimParser& parser) : parser(parser) {
      ORTM_CHECK(++parser.nested_ <= kMostNested, "[shape] a size expression must be at most ",
                 kMostNested / 2, " parentheses deep, but found more");
    }
    ~Level() { --parser.nested_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;
    DimParser& parser;
  };

  std::string_view text_;
  size_t at_ = 0;
  int nested_ = 0;
  int operations_ = 0;
};

std::string atom_text(DimAtom::Kind kind, const DimExpr& a, const DimExpr& b) {
  switch (kind) {
    case DimAtom::Kind::FloorDiv: return str("((", a, ")//(", b, "))");
    case DimAtom::Kind::Mod: return str("((", a, ")%(", b, "))");
    case DimAtom::Kind::Max: return str("max(", a, ",", b, ")");
    default: return str("min(", a, ",", b, ")");
  }
}

}  // namespace

void SymbolValues::bind(std::string_view symbol, int64_t value) {
  if (const size_t place = place_of(symbol); place != kNone) {
    ORTM_CHECK(entries_[place].second == value, "[shape] dimension ", symbol,
               " must have one size, but found ", entries_[place].second, " and ", value);
    return;
  }
  entries_.emplace_back(symbol, value);
  if (entries_.size() <= kFew) return;
  if (2 * entries_.size() <= table_.size()) return index(entries_.size() - 1);
  table_.assign(std::bit_ceil(4 * entries_.size()), kNone);
  for (size_t i = 0; i < entries_.size(); ++i) index(i);
}

const int64_t* SymbolValues::find(std::string_view symbol) const {
  const size_t place = place_of(symbol);
  return place == kNone ? nullptr : &entries_[place].second;
}

size_t SymbolValues::place_of(std::string_view symbol) const {
  if (table_.empty()) {
    for (size_t i = 0; i < entries_.size(); ++i)
      if (entries_[i].first == symbol) return i;
    return kNone;
  }
  const size_t mask = table_.size() - 1;
  size_t at = std::hash<std::string_view>()(symbol) & mask;
  while (table_[at] != kNone && entries_[table_[at]].first != symbol) at = (at + 1) & mask;
  return table_[at];
}

void SymbolValues::index(size_t place) {
  const size_t mask = table_.size() - 1;
  size_t at = std::hash<std::string_view>()(entries_[place].first) & mask;
  while (table_[at] != kNone) at = (at + 1) & mask;
  table_[at] = static_cast<uint32_t>(place);
}

DimExpr::DimExpr(int64_t value) : value_(value) {}

DimExpr DimExpr::symbol(std::string_view name) {
  auto atom = std::make_shared<DimAtom>();
  atom->symbol = name;
  atom->text = name;
  return from_atom(std::move(atom));
}

DimExpr DimExpr::from_atom(std::shared_ptr<const DimAtom> atom) {
  Term term;
  term.coefficient = 1;
  term.atoms.push_back(std::move(atom));
  return from_terms({std::move(term)});
}

DimExpr DimExpr::from_terms(std::vector<Term> terms) {
  auto key = [](const Term& t) {
    std::string k;
    for (const auto& atom : t.atoms) k += (k.empty() ? "" : "*") + atom->text;
    return k;
  };
  std::vector<std::pair<std::string, Term>> merged;
  for (Term& term : terms) {
    const std::string k = key(term);
    auto same = std::find_if(merged.begin(), merged.end(), [&](auto& m) { return m.first == k; });
    if (same == merged.end()) {
      merged.emplace_back(k, std::move(term));
    } else {
      same->second.coefficient = checked_add(same->second.coefficient, term.coefficient);
    }
  }
  std::erase_if(merged, [](const auto& m) { return m.second.coefficient == 0; });
  // Highest degree first, the constant last.
  std::sort(merged.begin(), merged.end(), [](const auto& a, const auto& b) {
    if (a.second.atoms.size() != b.second.atoms.size())
      return a.second.atoms.size() > b.second.atoms.size();
    return a.first < b.first;
  });
  DimExpr result;
  if (merged.empty()) return result;
  if (merged.size() == 1 && merged[0].second.atoms.empty())
    return DimExpr(merged[0].second.coefficient);
  auto polynomial = std::make_shared<Polynomial>();
  for (auto& [k, term] : merged) {
    const int64_t c = term.coefficient;
    std::string& text = polynomial->text;
    if (!text.empty())
      text += c < 0 ? " - " : " + ";
    else if (c < 0)
      text += "-";
    const uint64_t magnitude = c < 0 ? -static_cast<uint64_t>(c) : static_cast<uint64_t>(c);
    if (k.empty())
      text += std::to_string(magnitude);
    else
      text += magnitude == 1 ? k : std::to_string(magnitude) + "*" + k;
    polynomial->terms.push_back(std::move(term));
  }
  result.constant_ = false;
  result.polynomial_ = std::move(polynomial);
  return result;
}

std::vector<DimExpr::Term> DimExpr::terms() const {
  if (!constant_) return polynomial_->terms;
  if (value_ == 0) return {};
  Term term;
  term.coefficient = value_;
  return {term};
}

DimExpr DimExpr::operation(DimAtom::Kind kind, const DimExpr& a, const DimExpr& b) {
  if (a.is_constant() && b.is_constant()) return DimExpr(apply(kind, a.value_, b.value_));
  auto atom = std::make_shared<DimAtom>();
  atom->kind = kind;
  atom->operands = {a, b};
  atom->text = atom_text(kind, a, b);
  return from_atom(std::move(atom));
}

DimExpr DimExpr::floor_div(const DimExpr& a, const DimExpr& b) {
  if (b == DimExpr(1)) return a;
  if (a == b) return DimExpr(1);
  const std::vector<Term> divisor = b.terms();
  if (divisor.size() != 1 || divisor[0].coefficient <= 0)
    return operation(DimAtom::Kind::FloorDiv, a, b);
  // Exact if it divides each term: (n*k*x*y)//(n*x) is k*y.
  const auto divides = [&](Term& term) {
    if (term.coefficient % divisor[0].coefficient != 0) return false;
    term.coefficient /= divisor[0].coefficient;
    return std::ranges::all_of(divisor[0].atoms, [&](const auto& factor) {
      const auto same = [&](const auto& atom) { return atom->text == factor->text; };
      const auto found = std::ranges::find_if(term.atoms, same);
      if (found == term.atoms.end()) return false;
      term.atoms.erase(found);
      return true;
    });
  };
  std::vector<Term> terms = a.terms();
  if (!std::ranges::all_of(terms, divides)) return operation(DimAtom::Kind::FloorDiv, a, b);
  return from_terms(std::move(terms));
}

DimExpr DimExpr::mod(const DimExpr& a, const DimExpr& b) {
  if (b == DimExpr(1) || a == b) return DimExpr(0);
  return operation(DimAtom::Kind::Mod, a, b);
}

DimExpr DimExpr::max(const DimExpr& a, const DimExpr& b) {
  return a == b ? a : operation(DimAtom::Kind::Max, a, b);
}

DimExpr DimExpr::min(const DimExpr& a, const DimExpr& b) {
  return a == b ? a : operation(DimAtom::Kind::Min, a, b);
}

DimExpr DimExpr::simplified(DimAtom::Kind kind, const DimExpr& a, const DimExpr& b) {
  switch (kind) {
    case DimAtom::Kind::FloorDiv: return floor_div(a, b);
    case DimAtom::Kind::Mod: return mod(a, b);
    case DimAtom::Kind::Max: return max(a, b);
    case DimAtom::Kind::Min: return min(a, b);
    case DimAtom::Kind::Symbol: break;
  }
  throw InternalError("a symbol is not an operation");
}

DimExpr DimExpr::parse(std::string_view text) { return DimParser(text).parse(); }

int64_t DimExpr::value() const {
  ORTM_ASSERT(constant_, "size ", text(), " is not a constant");
  return value_;
}

bool DimExpr::is_symbol(std::string* name) const {
  if (constant_ || polynomial_->terms.size() != 1) return false;
  const Term& term = polynomial_->terms[0];
  if (term.coefficient != 1 || term.atoms.size() != 1) return false;
  if (term.atoms[0]->kind != DimAtom::Kind::Symbol) return false;
  if (name) *name = term.atoms[0]->symbol;
  return true;
}

int64_t DimExpr::evaluate(const SymbolValues& values) const {
  if (constant_) return value_;
  int64_t total = 0;
  for (const Term& term : polynomial_->terms) {
    int64_t product = term.coefficient;
    for (const auto& atom : term.atoms) {
      if (atom->kind == DimAtom::Kind::Symbol) {
        const int64_t* bound = values.find(atom->symbol);
        ORTM_CHECK(bound, "[shape] dimension ", atom->symbol, " must be the size of an input");
        product = checked_multiply(product, *bound);
      } else {
        product = checked_multiply(product, apply(atom->kind, atom->operands[0].evaluate(values),
                                                  atom->operands[1].evaluate(values)));
      }
    }
    total = checked_add(total, product);
  }
  return total;
}

void DimExpr::collect_symbols(std::vector<std::string>& names) const {
  if (constant_) return;
  for (const Term& term : polynomial_->terms)
    for (const auto& atom : term.atoms) {
      if (atom->kind == DimAtom::Kind::Symbol) {
        if (std::find(names.begin(), names.end(), atom->symbol) == names.end())
          names.push_back(atom->symbol);
      }
      for (const DimExpr& operand : atom->operands) operand.collect_symbols(names);
    }
}

DimExpr DimExpr::substitute(const std::vector<std::pair<std::string, DimExpr>>& map) const {
  if (constant_) return *this;
  DimExpr total;
  for (const Term& term : polynomial_->terms) {
    DimExpr product(term.coefficient);
    for (const auto& atom : term.atoms) {
      if (atom->kind == DimAtom::Kind::Symbol) {
        auto found = std::find_if(map.begin(), map.end(),
                                  [&](const auto& m) { return m.first == atom->symbol; });
        product = product * (found == map.end() ? from_atom(atom) : found->second);
      } else {
        const DimExpr a = atom->operands[0].substitute(map);
        const DimExpr b = atom->operands[1].substitute(map);
        product = product * simplified(atom->kind, a, b);
      }
    }
    total = total + product;
  }
  return total;
}

const std::string& DimExpr::text() const {
  if (!constant_) return polynomial_->text;
  thread_local std::string constant_text;
  constant_text = std::to_string(value_);
  return constant_text;
}

DimExpr operator+(const DimExpr& a, const DimExpr& b) {
  if (a.constant_ && b.constant_) return DimExpr(checked_add(a.value_, b.value_));
  std::vector<DimExpr::Term> terms = a.terms();
  for (auto& term : b.terms()) terms.push_back(term);
  return DimExpr::from_terms(std::move(terms));
}

DimExpr operator-(const DimExpr& a, const DimExpr& b) { return a + DimExpr(-1) * b; }

DimExpr operator*(const DimExpr& a, const DimExpr& b) {
  if (a.constant_ && b.constant_) return DimExpr(checked_multiply(a.value_, b.value_));
  const std::vector<DimExpr::Term> of_a = a.terms();
  const std::vector<DimExpr::Term> of_b = b.terms();
  ORTM_CHECK(of_a.size() * of_b.size() <= kMostProducts, "[shape] a size must be at most ",
             kMostProducts, " terms, but found ", of_a.size() * of_b.size());
  std::vector<DimExpr::Term> terms;
  for (const auto& left : of_a)
    for (const auto& right : of_b) {
      DimExpr::Term term;
      term.coefficient = checked_multiply(left.coefficient, right.coefficient);
      term.atoms = left.atoms;
      term.atoms.insert(term.atoms.end(), right.atoms.begin(), right.atoms.end());
      std::sort(term.atoms.begin(), term.atoms.end(),
                [](const auto& x, const auto& y) { return x->text < y->text; });
      terms.push_back(std::move(term));
    }
  return DimExpr::from_terms(std::move(terms));
}

bool operator==(const DimExpr& a, const DimExpr& b) {
  if (a.constant_ != b.constant_) return false;
  if (a.constant_) return a.value_ == b.value_;
  return a.polynomial_ == b.polynomial_ || a.polynomial_->text == b.polynomial_->text;
}

std::ostream& operator<<(std::ostream& out, const DimExpr& expr) { return out << expr.text(); }

DimExpr product(const Dims& dims) {
  DimExpr total(1);
  for (const DimExpr& dim : dims) total = total * dim;
  return total;
}

bool may_equal(const DimExpr& a, const DimExpr& b) {
  return !a.is_constant() || !b.is_constant() || a == b;
}

bool may_equal(const Dims& a, const Dims& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const DimExpr& x, const DimExpr& y) { return may_equal(x, y); });
}

std::vector<int64_t> evaluate(const Dims& dims, const SymbolValues& values) {
  std::vector<int64_t> sizes;
  sizes.reserve(dims.size());
  for (const DimExpr& dim : dims) sizes.push_back(dim.evaluate(values));
  return sizes;
}

}  // namespace ortmodule
