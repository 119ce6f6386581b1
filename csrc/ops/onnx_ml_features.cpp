// Import of ai.onnx.ml's operators that choose, join and name columns.
#include "base/error.h"
#include "ops/onnx_ml.h"
#include "ops/op_def.h"

namespace ortmodule {
namespace {

// Columns of x
Values import_array_feature_extractor(OnnxCall& c) {
  Value* x = c.in(0);
  if (x->rank() == 0) c.refuse("x must have a dimension");
  if (x->rank() == 1) x = c.reshape(x, {1, x->dims.at(0)});
  Value* columns = c.reshape(c.cast(c.in(1), DType::Int64), {product(c.dims(1))});
  return {c.emit("Gather", {x, columns}, {{"axis", static_cast<int64_t>(x->rank()) - 1}})};
}

// All columns of all operands, as float32
Values import_feature_vectorizer(OnnxCall& c) {
  const std::vector<int64_t> sizes = c.integers("inputdimensions");
  Values parts;
  for (size_t i = 0; i < c.input_count(); ++i) {
    Value* x = c.in(i);
    if (x->rank() == 1) x = c.reshape(x, {1, x->dims.at(0)});
    if (x->rank() != 2) c.refuse("operands must have rank 1 or 2");
    if (i < sizes.size() && !c.sizes().equal(x->dims.at(1), sizes.at(i)))
      c.refuse(
          str("operand ", i, " must have ", sizes.at(i), " columns, but found ", x->dims.at(1)));
    parts.push_back(c.cast(x, DType::Float32));
  }
  if (parts.empty()) c.refuse("there must be an operand");
  return {parts.size() == 1 ? c.emit("Identity", parts) : c.concat(parts, 1)};
}

// A map for each row of scores. The graph keeps the scores; sessions make the maps.
Values import_zip_map(OnnxCall& c) {
  Value* x = c.cast(ml_rows(c), DType::Float32);
  auto keys = std::make_shared<OnnxMapKeys>();
  keys->integers = ml_exact_integers(c, "classlabels_int64s");
  keys->texts = c.strings("classlabels_strings");
  const auto count = static_cast<int64_t>(keys->integers.size() + keys->texts.size());
  if (keys->integers.empty() == keys->texts.empty())
    c.refuse("there must be labels, either integers or strings");
  if (!c.sizes().equal(x->dims.at(1), count))
    c.refuse(str("there must be a label for each column, but found ", count, " for ", x->dims.at(1),
                 " columns"));
  c.set_meaning(0, OnnxMeaning::Maps, std::move(keys));
  return {c.emit("Identity", {x})};
}

REGISTER_ONNX({{"ArrayFeatureExtractor", 1, import_array_feature_extractor, nullptr, kMlDomain,
                nullptr, moves_texts()},
               {"FeatureVectorizer", 1, import_feature_vectorizer, nullptr, kMlDomain},
               {"ZipMap", 1, import_zip_map, nullptr, kMlDomain}});

}  // namespace
}  // namespace ortmodule
