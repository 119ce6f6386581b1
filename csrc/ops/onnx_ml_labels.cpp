// Import of ai.onnx.ml's encoders: LabelEncoder, CategoryMapper, OneHotEncoder. Categories are
// found by LookUp; texts are their numbers.
#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <optional>

#include "base/error.h"
#include "onnx/onnx_builder.h"
#include "ops/onnx_ml.h"
#include "ops/op_def.h"

namespace ortmodule {
namespace {

/// A list of numbers or texts.
struct Categories {
  DType dtype = DType::Int64;
  std::vector<int64_t> integers;  // or numbers of texts
  std::vector<double> reals;
  bool texts = false;
  size_t size() const { return integers.size() + reals.size(); }
};

Categories of_texts(OnnxCall& c, const std::vector<std::string>& texts) {
  return {DType::Int64, ml_text_numbers(c, texts), {}, true};
}

Categories of_tensor(OnnxCall& c, const OnnxTensor& tensor) {
  if (!tensor.strings.empty()) return of_texts(c, tensor.strings);
  Categories found{tensor.dtype, {}, {}, false};
  const auto count =
      static_cast<int64_t>(tensor.bytes.size() / std::max<size_t>(size_of(tensor.dtype), 1));
  if (is_integral(tensor.dtype) || tensor.dtype == DType::Bool)
    for (int64_t i = 0; i < count; ++i)
      found.integers.push_back(integer_element(tensor.bytes.data(), i, tensor.dtype));
  else if (tensor.dtype == DType::Float32 || tensor.dtype == DType::Float64)
    found.reals = ml_tensor_numbers(c, tensor);
  else
    c.refuse(str("categories must be integers, float32, float64 or strings, but found ",
                 name_of(tensor.dtype)));
  return found;
}

// From <stem>_strings, _int64s, _floats or _tensor; nullopt if there is none.
std::optional<Categories> categories(OnnxCall& c, const std::string& stem) {
  if (c.has_attr(stem + "_strings")) return of_texts(c, c.strings(stem + "_strings"));
  if (c.has_attr(stem + "_int64s"))
    return Categories{DType::Int64, ml_exact_integers(c, stem + "_int64s"), {}, false};
  if (c.has_attr(stem + "_floats"))
    return Categories{DType::Float32, {}, c.numbers(stem + "_floats"), false};
  const OnnxTensor* tensor = c.tensor_attr(stem + "_tensor");
  return tensor ? std::optional(of_tensor(c, *tensor)) : std::nullopt;
}

Value* weight_of(OnnxCall& c, const Categories& list) {
  if (list.dtype == DType::Int64) return ml_integers(c, list.integers);
  const auto count = static_cast<int64_t>(list.size());
  if (list.integers.empty()) return ml_numbers(c, list.reals, {count}, list.dtype);
  return c.cast(ml_integers(c, list.integers), list.dtype);
}

// As in LookUp: NaN comes last, and equals itself.
bool is_before(double a, double b) { return a < b || (!std::isnan(a) && std::isnan(b)); }

/// Sorted keys, the first of equal ones only, and where each came from.
struct SortedKeys {
  Categories keys;
  std::vector<int64_t> places;
};

template <class T, class Before>
void sort_keys(const std::vector<T>& given, const Before& before, std::vector<T>& keys,
               std::vector<int64_t>& places) {
  std::vector<int64_t> order(given.size());
  std::iota(order.begin(), order.end(), int64_t{0});
  const auto at = [&](int64_t i) { return given[static_cast<size_t>(i)]; };
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return before(at(a), at(b)); });
  for (int64_t i : order) {
    if (!keys.empty() && !before(keys.back(), at(i))) continue;
    keys.push_back(at(i));
    places.push_back(i);
  }
}

SortedKeys sorted(const Categories& given) {
  SortedKeys s{{given.dtype, {}, {}, given.texts}, {}};
  sort_keys(given.integers, std::less<int64_t>(), s.keys.integers, s.places);
  sort_keys(given.reals, is_before, s.keys.reals, s.places);
  return s;
}

// `list` in the order of places, with the default behind.
Categories arranged(const Categories& list, const std::vector<int64_t>& places,
                    const Categories& fallback) {
  Categories result{list.dtype, {}, {}, list.texts};
  for (int64_t place : places) {
    const auto i = static_cast<size_t>(place);
    if (list.reals.empty())
      result.integers.push_back(list.integers[i]);
    else
      result.reals.push_back(list.reals[i]);
  }
  result.integers.insert(result.integers.end(), fallback.integers.begin(), fallback.integers.end());
  result.reals.insert(result.reals.end(), fallback.reals.begin(), fallback.reals.end());
  return result;
}

// What a key that is none gives, of the type of the values.
Categories default_value(OnnxCall& c, const Categories& values) {
  if (const OnnxTensor* tensor = c.tensor_attr("default_tensor")) {
    Categories given = of_tensor(c, *tensor);
    if (given.size() != 1 || given.dtype != values.dtype || given.texts != values.texts)
      c.refuse("default_tensor must have one element of the type of the values");
    return given;
  }
  if (values.texts) return of_texts(c, {c.string("default_string", "_Unused")});
  if (is_floating(values.dtype))
    return {values.dtype, {}, {c.number("default_float", -0.0)}, false};
  return {values.dtype, {ml_exact_integer(c, "default_int64", -1)}, {}, false};
}

// values[i] where x is keys[i]
Value* mapped(OnnxCall& c, const Categories& keys, const Categories& values) {
  if (keys.size() != values.size() || keys.size() == 0)
    c.refuse(str("there must be a value for each key, but found ", keys.size(), " keys and ",
                 values.size(), " values"));
  Value* x = c.in(0);
  if (keys.texts != c.has_texts(0) || (!keys.texts && keys.dtype != x->dtype))
    c.refuse(str("keys must have the type of x, but found ",
                 keys.texts ? "strings" : name_of(keys.dtype)));
  const SortedKeys found = sorted(keys);
  Value* place = c.emit("LookUp", {x, weight_of(c, found.keys)});
  const Categories list = arranged(values, found.places, default_value(c, values));
  if (values.texts) c.set_meaning(0, OnnxMeaning::Texts);
  return c.emit("Gather", {weight_of(c, list), place}, {{"axis", 0}});
}

Values import_label_encoder(OnnxCall& c) {
  const std::optional<Categories> keys = categories(c, "keys"), values = categories(c, "values");
  if (!keys || !values) c.refuse("there must be keys and values");
  return {mapped(c, *keys, *values)};
}

// Operator set 1: between texts and their places in a list
Values import_label_encoder_1(OnnxCall& c) {
  const Categories texts = of_texts(c, c.strings("classes_strings"));
  Categories places{DType::Int64, std::vector<int64_t>(texts.size()), {}, false};
  std::iota(places.integers.begin(), places.integers.end(), int64_t{0});
  return {c.has_texts(0) ? mapped(c, texts, places) : mapped(c, places, texts)};
}

Values import_category_mapper(OnnxCall& c) {
  const Categories texts = of_texts(c, c.strings("cats_strings"));
  const Categories integers{DType::Int64, ml_exact_integers(c, "cats_int64s"), {}, false};
  return {c.has_texts(0) ? mapped(c, texts, integers) : mapped(c, integers, texts)};
}

// 1 where x is the category, in one more dimension
Values import_one_hot_encoder(OnnxCall& c) {
  const bool texts = c.has_texts(0);
  const Categories given =
      texts ? of_texts(c, c.strings("cats_strings"))
            : Categories{DType::Int64, ml_exact_integers(c, "cats_int64s"), {}, false};
  if (given.size() == 0)
    c.refuse(str("there must be categories of the type of x in cats_int64s or cats_strings"));
  const SortedKeys keys = sorted(given);
  Value* x = c.in(0);
  Value* place = c.emit("LookUp", {c.cast(x, DType::Int64), weight_of(c, keys.keys)},
                        {{"must_find", c.flag("zeros", true) ? 0 : 1}});
  std::vector<int64_t> columns = keys.places;
  columns.push_back(-1);  // no category
  Dims dims = x->dims;
  dims.push_back(1);
  Value* column =
      c.reshape(c.emit("Gather", {ml_integers(c, columns), place}, {{"axis", 0}}), dims);
  std::vector<int64_t> all(given.size());
  std::iota(all.begin(), all.end(), int64_t{0});
  return {c.cast(c.pointwise("Equal", {column, ml_integers(c, all)}), DType::Float32)};
}

REGISTER_ONNX(
    {{"LabelEncoder", 1, import_label_encoder_1, nullptr, kMlDomain, nullptr, reads_texts()},
     {"LabelEncoder", 2, import_label_encoder, nullptr, kMlDomain, nullptr, reads_texts()},
     {"CategoryMapper", 1, import_category_mapper, nullptr, kMlDomain, nullptr, reads_texts()},
     {"OneHotEncoder", 1, import_one_hot_encoder, nullptr, kMlDomain, nullptr, reads_texts()}});

}  // namespace
}  // namespace ortmodule
