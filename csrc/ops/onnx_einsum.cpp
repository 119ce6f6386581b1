// Import of Einsum: diagonals, sums and products of two operands at a time.
#include <algorithm>
#include <cctype>
#include <map>

#include "base/error.h"
#include "ops/onnx_call.h"
#include "ops/op_def.h"

namespace ortmodule {
namespace {

// A letter of the equation, or -1, -2, ... for the dimensions of an ellipsis from the right.
using Label = int;
using Labels = std::vector<Label>;

/// An operand whose dimensions have these labels.
struct Term {
  Value* value = nullptr;
  Labels labels;
};

constexpr Label kEllipsis = 0;

bool contains(const Labels& labels, Label label) {
  return std::find(labels.begin(), labels.end(), label) != labels.end();
}

std::vector<Labels> read_terms(OnnxCall& c, std::string_view text) {
  std::vector<Labels> terms(1);
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == ',') {
      terms.emplace_back();
    } else if (text.substr(i, 3) == "...") {
      if (contains(terms.back(), kEllipsis)) c.refuse("a term may have one ellipsis");
      terms.back().push_back(kEllipsis);
      i += 2;
    } else if (std::isalpha(static_cast<unsigned char>(text[i]))) {
      terms.back().push_back(text[i]);
    } else {
      c.refuse(str("the equation must have letters and '...', but found '", text, "'"));
    }
  }
  return terms;
}

// The labels with those of `count` dimensions in place of the ellipsis.
Labels without_ellipsis(const Labels& labels, size_t count) {
  Labels result;
  for (Label label : labels) {
    if (label != kEllipsis) {
      result.push_back(label);
      continue;
    }
    for (size_t back = count; back > 0; --back) result.push_back(-static_cast<Label>(back));
  }
  return result;
}

struct Equation {
  std::vector<Labels> operands;
  Labels result;
};

// Without an arrow, the result has the letters that occur once, in alphabetical order.
Labels implied_result(const std::vector<Labels>& operands) {
  std::map<Label, int> counts;
  bool any = false;
  for (const Labels& labels : operands)
    for (Label label : labels) {
      if (label == kEllipsis)
        any = true;
      else
        ++counts[label];
    }
  Labels result;
  if (any) result.push_back(kEllipsis);
  for (const auto& [label, count] : counts)
    if (count == 1) result.push_back(label);
  return result;
}

Equation read_equation(OnnxCall& c) {
  std::string text = c.string("equation", "");
  std::erase_if(text, [](char letter) { return std::isspace(static_cast<unsigned char>(letter)); });
  const size_t arrow = text.find("->");
  Equation equation{read_terms(c, std::string_view(text).substr(0, arrow)), {}};
  if (equation.operands.size() != c.input_count())
    c.refuse(str("the equation must have a term for each of ", c.input_count(),
                 " operands, but found ", equation.operands.size()));
  if (arrow == std::string::npos) {
    equation.result = implied_result(equation.operands);
  } else {
    const std::vector<Labels> results = read_terms(c, std::string_view(text).substr(arrow + 2));
    if (results.size() != 1) c.refuse("the equation must have one result");
    equation.result = results.front();
  }
  size_t most = 0;
  for (size_t i = 0; i < c.input_count(); ++i) {
    Labels& labels = equation.operands.at(i);
    const bool open = contains(labels, kEllipsis);
    const size_t named = labels.size() - (open ? 1 : 0), rank = c.rank(i);
    if (open ? rank < named : rank != named)
      c.refuse(str("operand ", i, " must have a dimension for each letter, but found rank ", rank));
    most = std::max(most, rank - named);
    labels = without_ellipsis(labels, rank - named);
  }
  if (most > 0 && !contains(equation.result, kEllipsis))
    c.refuse("the result must have the ellipsis of the operands");
  equation.result = without_ellipsis(equation.result, most);
  for (size_t i = 0; i < equation.result.size(); ++i)
    for (size_t j = 0; j < i; ++j)
      if (equation.result.at(i) == equation.result.at(j))
        c.refuse("letters of the result must differ");
  return equation;
}

// ---- one operand -------------------------------------------------------------------------------

// The elements whose indices of dimensions `first` and `second` agree, without the second.
Value* diagonal(OnnxCall& c, Value* x, size_t first, size_t second) {
  const DimExpr size = x->dims.at(first);
  if (!c.sizes().equal(size, x->dims.at(second)))
    c.refuse(str("sizes of one letter must agree, but found ", size, " and ", x->dims.at(second)));
  Dims along(x->rank(), DimExpr(1)), places = x->dims, result = x->dims;
  along.at(first) = size;
  places[second] = 1;
  Value* index = c.emit(
      "Range", {},
      {{"start", DimExpr(0)}, {"limit", size}, {"delta", DimExpr(1)}, {"dtype", DType::Int64}});
  index = c.emit("Expand", {c.reshape(index, along)}, {{"shape", places}});
  result.erase(result.begin() + static_cast<int64_t>(second));
  Value* picked = c.emit("GatherElements", {x, index}, {{"axis", static_cast<int64_t>(second)}});
  return c.reshape(picked, result);
}

void take_diagonals(OnnxCall& c, Term& term) {
  for (size_t second = term.labels.size(); second-- > 1;) {
    const auto first = std::find(term.labels.begin(), term.labels.end(), term.labels[second]);
    const auto at = static_cast<size_t>(first - term.labels.begin());
    if (at == second) continue;
    term.value = diagonal(c, term.value, at, second);
    term.labels.erase(term.labels.begin() + static_cast<int64_t>(second));
  }
}

// Sums over the labels that nothing else needs. Small integers are summed in a wider type, which
// the result does not show.
void sum_others(OnnxCall& c, Term& term, const Labels& kept) {
  std::vector<int64_t> axes;
  for (size_t i = 0; i < term.labels.size(); ++i)
    if (!contains(kept, term.labels[i])) axes.push_back(static_cast<int64_t>(i));
  if (axes.empty()) return;
  const DType dtype = term.value->dtype;
  const bool narrow = is_integral(dtype) && size_of(dtype) < 4;
  Value* x = narrow ? c.cast(term.value, DType::Int32) : term.value;
  term.value = c.cast(c.reduce("ReduceSum", x, axes, false), dtype);
  std::erase_if(term.labels, [&](Label label) { return !contains(kept, label); });
}

Value* arranged(OnnxCall& c, const Term& term, const Labels& order) {
  std::vector<int64_t> permutation;
  for (Label label : order)
    permutation.push_back(std::find(term.labels.begin(), term.labels.end(), label) -
                          term.labels.begin());
  return c.transpose(term.value, permutation);
}

// ---- two operands ------------------------------------------------------------------------------

size_t place(const Term& term, Label label) {
  return static_cast<size_t>(std::find(term.labels.begin(), term.labels.end(), label) -
                             term.labels.begin());
}

void drop_one(OnnxCall& c, Term& term, Label label) {
  const auto at = static_cast<int64_t>(place(term, label));
  Dims dims = term.value->dims;
  dims.erase(dims.begin() + at);
  term.value = c.reshape(term.value, dims);
  term.labels.erase(term.labels.begin() + at);
}

// A label's size 1 in one operand broadcasts: it loses the label.
void drop_broadcast(OnnxCall& c, Term& a, Term& b) {
  const Labels labels = a.labels;
  for (Label label : labels) {
    if (!contains(b.labels, label)) continue;
    const DimExpr in_a = a.value->dims.at(place(a, label)),
                  in_b = b.value->dims.at(place(b, label));
    if (c.sizes().equal(in_a, in_b)) continue;
    if (c.sizes().hint(in_a) == 1 && c.sizes().fix(in_a) == 1)
      drop_one(c, a, label);
    else if (c.sizes().hint(in_b) == 1 && c.sizes().fix(in_b) == 1)
      drop_one(c, b, label);
    else
      c.refuse(str("sizes of one letter must agree, but found ", in_a, " and ", in_b));
  }
}

Labels joined(Labels a, const Labels& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

Dims dims_of(const Term& term, const Labels& labels) {
  Dims dims;
  for (Label label : labels) dims.push_back(term.value->dims.at(place(term, label)));
  return dims;
}

// The product of a and b, summed over the labels of both that are not kept.
Term product_of(OnnxCall& c, Term a, Term b, const Labels& kept) {
  drop_broadcast(c, a, b);
  sum_others(c, a, joined(kept, b.labels));
  sum_others(c, b, joined(kept, a.labels));
  Labels batch, summed, rows, columns;
  for (Label label : a.labels) {
    if (!contains(b.labels, label))
      rows.push_back(label);
    else
      (contains(kept, label) ? batch : summed).push_back(label);
  }
  for (Label label : b.labels)
    if (!contains(a.labels, label)) columns.push_back(label);
  const Dims batch_dims = dims_of(a, batch), row_dims = dims_of(a, rows),
             column_dims = dims_of(b, columns), summed_dims = dims_of(a, summed);
  Term result{nullptr, joined(joined(batch, rows), columns)};
  Dims dims = batch_dims;
  dims.insert(dims.end(), row_dims.begin(), row_dims.end());
  Value *left = arranged(c, a, joined(joined(batch, rows), summed)), *right;
  if (summed.empty()) {  // each element of one by each of the other
    Dims wide = dims, spread = batch_dims;
    wide.resize(result.labels.size(), DimExpr(1));
    spread.resize(dims.size(), DimExpr(1));
    spread.insert(spread.end(), column_dims.begin(), column_dims.end());
    right = c.reshape(arranged(c, b, joined(batch, columns)), spread);
    result.value = c.pointwise("Mul", {c.reshape(left, wide), right});
    return result;
  }
  const DimExpr batches = product(batch_dims), depth = product(summed_dims);
  left = c.reshape(left, {batches, product(row_dims), depth});
  right = arranged(c, b, joined(joined(batch, summed), columns));
  right = c.reshape(right, {batches, depth, product(column_dims)});
  dims.insert(dims.end(), column_dims.begin(), column_dims.end());
  result.value = c.reshape(c.emit("MatMul", {left, right}), dims);
  return result;
}

Values import_einsum(OnnxCall& c) {
  const Equation equation = read_equation(c);
  std::vector<Term> terms;
  Labels all;
  for (size_t i = 0; i < equation.operands.size(); ++i) {
    terms.push_back({c.in(i), equation.operands.at(i)});
    take_diagonals(c, terms.back());
    all = joined(all, terms.back().labels);
  }
  for (Label label : equation.result)
    if (!contains(all, label)) c.refuse("each letter of the result must be one of an operand");
  Term term = terms.front();
  for (size_t i = 1; i < terms.size(); ++i) {
    Labels kept = equation.result;
    for (size_t later = i + 1; later < terms.size(); ++later)
      kept = joined(kept, terms[later].labels);
    term = product_of(c, term, terms[i], kept);
  }
  sum_others(c, term, equation.result);
  Value* y = arranged(c, term, equation.result);
  return {y == c.in(0) ? c.emit("Identity", {y}) : y};
}

REGISTER_ONNX({{"Einsum", 12, import_einsum}});

}  // namespace
}  // namespace ortmodule
