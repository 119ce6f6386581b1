#include "ops/onnx_call.h"

#include <algorithm>
#include <tuple>

#include "base/error.h"
#include "base/layout.h"
#include "ops/infer_rules.h"
#include "ops/op_def.h"
#include "ops/torch_call.h"

namespace ortmodule {
namespace {

std::vector<OnnxRow>& rows() {
  static std::vector<OnnxRow> all;
  return all;
}

template <class T>
T attr_as(const OnnxCall& call, std::string_view name, const OnnxAttr& attr, const char* what) {
  if (const T* value = std::get_if<T>(&attr)) return *value;
  call.refuse(str("attribute '", name, "' must be ", what));
}

}  // namespace

OnnxRegistrar::OnnxRegistrar(std::vector<OnnxRow> added) {
  rows().insert(rows().end(), added.begin(), added.end());
}

const OnnxRow* find_onnx_row(std::string_view domain, std::string_view op, int64_t opset) {
  const OnnxRow* best = nullptr;
  for (const OnnxRow& row : rows())
    if (row.op == op && row.domain == domain && row.since <= opset &&
        (!best || row.since > best->since))
      best = &row;
  return best;
}

std::vector<const OnnxRow*> all_onnx_rows() {
  std::vector<const OnnxRow*> all;
  for (const OnnxRow& row : rows()) all.push_back(&row);
  std::sort(all.begin(), all.end(), [](const OnnxRow* a, const OnnxRow* b) {
    return std::tie(a->domain, a->op, a->since) < std::tie(b->domain, b->op, b->since);
  });
  return all;
}

// ---- operands ----------------------------------------------------------------------------------

Value* OnnxCall::in(size_t i) {
  if (!has(i)) refuse(str("operand ", i, " must be given"));
  return operands_.tensor(i);
}

Values OnnxCall::ins() {
  Values values;
  for (size_t i = 0; i < input_count(); ++i) values.push_back(in(i));
  return values;
}

DType OnnxCall::dtype(size_t i) const {
  if (!has(i)) refuse(str("operand ", i, " must be given"));
  return operands_.dtype(i);
}

Dims OnnxCall::dims(size_t i) const {
  if (!has(i)) refuse(str("operand ", i, " must be given"));
  return operands_.dims(i);
}

const KnownValue& OnnxCall::content(size_t i) const {
  if (!has(i)) refuse(str("operand ", i, " must be given"));
  const KnownValue* value = operands_.known(i, true);
  if (!value)
    throw DataNeeded(
        str("operand ", i, " ('", i < node_.inputs.size() ? node_.inputs[i] : "",
            "') must be a constant, a size, or an input, but it is computed from data"));
  return *value;
}

Dims OnnxCall::content_sizes(size_t i) const {
  Dims sizes;
  for (const KnownNumber& number : content(i).elements) {
    if (!number.is_integer()) refuse(str("operand ", i, " must have integers"));
    const DimExpr& size = number.numerator();
    sizes.push_back(size.is_constant() ? DimExpr(saturated(size.value())) : size);
  }
  return sizes;
}

Dims OnnxCall::content_places(size_t i) const {
  Dims places = content_sizes(i);
  for (DimExpr& place : places) place = operands_.place(place);
  return places;
}

std::vector<int64_t> OnnxCall::fixed_integers(size_t i) {
  std::vector<int64_t> integers;
  for (const DimExpr& size : content_places(i)) integers.push_back(sizes_.fix(size));
  return integers;
}

std::vector<double> OnnxCall::fixed_numbers(size_t i) {
  std::vector<double> numbers;
  for (const KnownNumber& number : content(i).elements)
    numbers.push_back(number.is_real() ? number.real()
                                       : static_cast<double>(sizes_.fix(number.numerator())) /
                                             static_cast<double>(number.denominator()));
  return numbers;
}

std::optional<double> OnnxCall::constant_number(size_t i) const {
  const KnownValue* value = known(i);
  if (!value || value->elements.size() != 1 || !value->is_constant()) return std::nullopt;
  return value->elements.front().value();
}

// ---- attributes --------------------------------------------------------------------------------

const OnnxAttr* OnnxCall::find(std::string_view name) const {
  for (const auto& [key, value] : node_.attrs)
    if (key == name) return &value;
  return nullptr;
}

int64_t OnnxCall::integer(std::string_view name) const {
  const OnnxAttr* attr = find(name);
  if (!attr) refuse(str("attribute '", name, "' must be given"));
  return saturated(attr_as<int64_t>(*this, name, *attr, "an integer"));
}

int64_t OnnxCall::integer(std::string_view name, int64_t fallback) const {
  return has_attr(name) ? integer(name) : fallback;
}

double OnnxCall::number(std::string_view name, double fallback) const {
  const OnnxAttr* attr = find(name);
  return attr ? attr_as<double>(*this, name, *attr, "a number") : fallback;
}

std::string OnnxCall::string(std::string_view name, std::string_view fallback) const {
  const OnnxAttr* attr = find(name);
  return attr ? attr_as<std::string>(*this, name, *attr, "a string") : std::string(fallback);
}

std::string OnnxCall::word(std::string_view name,
                           std::initializer_list<std::string_view> words) const {
  const std::string found = string(name, *words.begin());
  if (std::ranges::find(words, found) != words.end()) return found;
  std::string known;
  for (const std::string_view word : words) known += str(known.empty() ? "" : ", ", word);
  refuse(str(name, " must be one of ", known, ", but found '", found, "'"));
}

std::vector<int64_t> OnnxCall::integers(std::string_view name) const {
  const OnnxAttr* attr = find(name);
  if (!attr) return {};
  auto list = attr_as<std::vector<int64_t>>(*this, name, *attr, "a list of integers");
  for (int64_t& number : list) number = saturated(number);
  return list;
}

std::vector<double> OnnxCall::numbers(std::string_view name) const {
  const OnnxAttr* attr = find(name);
  if (!attr) return {};
  return attr_as<std::vector<double>>(*this, name, *attr, "a list of numbers");
}

std::vector<std::string> OnnxCall::strings(std::string_view name) const {
  const OnnxAttr* attr = find(name);
  if (!attr) return {};
  return attr_as<std::vector<std::string>>(*this, name, *attr, "a list of strings");
}

const OnnxTensor* OnnxCall::tensor_attr(std::string_view name) const {
  const OnnxAttr* attr = find(name);
  return attr ? std::get_if<OnnxTensor>(attr) : nullptr;
}

DType OnnxCall::dtype_attr(std::string_view name, DType fallback) const {
  if (!has_attr(name)) {
    if (fallback == DType::Undefined) refuse(str("attribute '", name, "' must be given"));
    return fallback;
  }
  const DType dtype = onnx_dtype(integer(name));
  if (dtype == DType::Undefined)
    unsupported(str("attribute '", name, "' names element type ", onnx_type_name(integer(name)),
                    ", which the engine lacks"));
  return dtype;
}

int64_t OnnxCall::axis(int64_t given, size_t rank) const {
  const auto count = static_cast<int64_t>(rank);
  if (given < -count || given >= count)
    refuse(str("an axis must be within rank ", rank, ", but found ", given));
  return given < 0 ? given + count : given;
}

std::vector<int64_t> OnnxCall::axes(size_t i, size_t rank) {
  std::vector<int64_t> axes = has(i) ? fixed_integers(i) : integers("axes");
  for (int64_t& each : axes) each = axis(each, rank);
  return axes;
}

// ---- emission ----------------------------------------------------------------------------------

std::optional<std::vector<int64_t>> OnnxCall::known_size_of(const Dims& dims) {
  std::vector<int64_t> sizes;
  for (const DimExpr& dim : dims) sizes.push_back(sizes_.fix(dim));
  return element_count(sizes) <= KnownValue::kMostElements ? std::optional(sizes) : std::nullopt;
}

KnownValue OnnxCall::known_sizes(const Dims& dims) {
  KnownValue value{DType::Int64, {static_cast<int64_t>(dims.size())}, {}};
  for (const DimExpr& dim : dims) value.elements.emplace_back(dim);
  return value;
}

Value* OnnxCall::emit(std::string_view op, Values inputs, Attrs attrs) {
  return emit_all(op, std::move(inputs), std::move(attrs)).front();
}

Values OnnxCall::emit_all(std::string_view op, Values inputs, Attrs attrs, size_t outputs) {
  const OpDef& def = op_def(op);
  for (size_t i = 0; i < def.inputs.size(); ++i) {
    const bool required = !def.inputs[i].ends_with('?') && !def.inputs[i].ends_with('*');
    if (required && (i >= inputs.size() || !inputs[i]))
      refuse(str("operand '", def.inputs[i], "' must be given"));
  }
  try {
    return emit_node(graph_, op, std::move(inputs), std::move(attrs), outputs)->outputs();
  } catch (const Error& error) {
    refuse(error.what());
  }
}

Value* OnnxCall::reshape(Value* value, const Dims& dims) {
  if (value->dims == dims) return value;
  if (!sizes_.equal(product(value->dims), product(dims)))
    refuse(str("there must be ", product(dims), " elements for ", dims_text(dims), ", but found ",
               dims_text(value->dims)));
  return emit("Reshape", {value}, {{"shape", dims}});
}

Value* OnnxCall::transpose(Value* value, const std::vector<int64_t>& permutation) {
  if (std::is_sorted(permutation.begin(), permutation.end())) return value;
  return emit("Transpose", {value}, {{"perm", Dims(permutation.begin(), permutation.end())}});
}

Value* OnnxCall::slice(Value* value, int64_t axis, const DimExpr& start, const DimExpr& end,
                       int64_t step) {
  return emit("Slice", {value}, {{"axis", axis}, {"start", start}, {"end", end}, {"step", step}});
}

Value* OnnxCall::concat(const Values& values, int64_t axis) {
  return values.size() == 1 ? values.front() : emit("Concat", values, {{"axis", axis}});
}

Value* OnnxCall::full(double value, Dims dims, DType dtype) {
  return emit("ConstantOfShape", {},
              {{"value", value}, {"shape", std::move(dims)}, {"dtype", dtype}});
}

Value* OnnxCall::reduce(std::string_view op, Value* value, const std::vector<int64_t>& axes,
                        bool keepdims) {
  return emit(op, {value},
              {{"axes", Dims(axes.begin(), axes.end())}, {"keepdims", keepdims ? 1 : 0}});
}

Values OnnxCall::broadcast(Values values) {
  size_t rank = 0;
  for (const Value* value : values)
    if (value) rank = std::max(rank, value->rank());
  for (size_t back = 1; back <= rank; ++back) {
    // The largest size in this call; the others must be it or 1.
    const DimExpr* size = nullptr;
    for (const Value* value : values)
      if (value && value->rank() >= back && (!size || sizes_.hint(*size) == 1))
        size = &value->dims.at(value->rank() - back);
    const DimExpr wanted = *size;
    for (Value*& value : values) {
      if (!value || value->rank() < back) continue;
      const DimExpr dim = value->dims.at(value->rank() - back);
      if (dim == wanted || (dim.is_constant() && dim.value() == 1)) continue;
      if (sizes_.equal(dim, wanted)) continue;
      if (sizes_.fix(dim) != 1)
        refuse(str("shapes must broadcast, but found sizes ", dim, " and ", wanted));
      Dims dims = value->dims;
      dims.at(value->rank() - back) = 1;
      value = reshape(value, dims);
    }
  }
  return values;
}

Value* OnnxCall::expand(Value* value, const Dims& shape) {
  if (value->rank() > shape.size())
    refuse(str("there must be at most ", shape.size(), " dimensions, but found ", value->rank()));
  // What the graph does not know to be 1, or to be the wanted size, is made so.
  Dims dims = value->dims;
  for (size_t back = 1; back <= dims.size(); ++back) {
    DimExpr& dim = dims.at(dims.size() - back);
    const DimExpr& wanted = shape.at(shape.size() - back);
    if (dim == wanted) continue;
    if (sizes_.hint(dim) != 1 && sizes_.equal(dim, wanted)) {
      dim = wanted;
      continue;
    }
    if (sizes_.fix(dim) != 1)
      refuse(str("a size must be 1 or ", wanted, " to be expanded, but found ", dim));
    dim = 1;
  }
  value = reshape(value, dims);
  return value->dims == shape ? value : emit("Expand", {value}, {{"shape", shape}});
}

int64_t OnnxCall::next_rng_stream() {
  int64_t next = 0;
  for (const auto& node : graph_.nodes())
    if (node->attrs.has("rng") && op_def(node->op).random)
      next = std::max(next, node->attrs.integer("rng") + 1);
  return next;
}

void OnnxCall::refuse(const std::string& why) const { throw Refused(why); }

void OnnxCall::unsupported(const std::string& why) const { throw Unsupported(why); }

}  // namespace ortmodule
