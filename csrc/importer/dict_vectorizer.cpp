// Import of ai.onnx.ml's DictVectorizer: an input that is a map comes as its keys and its values.
#include "base/error.h"
#include "importer/importer.h"
#include "ops/emit.h"

namespace ortmodule {
namespace {

// The vocabulary as numbers, of the kind that the map's keys have.
Value* vocabulary(const ControlCall& c, bool texts, int64_t& count) {
  const OnnxAttr* attr = c.find(texts ? "string_vocabulary" : "int64_vocabulary");
  if (!attr) c.refuse("its vocabulary must be of the type of the map's keys");
  std::vector<int64_t> numbers;
  if (const auto* names = std::get_if<std::vector<std::string>>(attr))
    for (const std::string& name : *names) numbers.push_back(c.importer.text_number(name));
  else if (const auto* integers = std::get_if<std::vector<int64_t>>(attr))
    numbers = *integers;
  count = static_cast<int64_t>(numbers.size());
  std::string bytes(reinterpret_cast<const char*>(numbers.data()),
                    numbers.size() * sizeof(int64_t));
  return c.importer.bind_weight({DType::Int64, {1, count}, std::move(bytes)});
}

// The values of a map by key of the vocabulary, zero for those that it lacks: [1, keys]
std::vector<ImportedRef> import_dict_vectorizer(const ControlCall& c) {
  Imported& map = c.operand(0);
  if (map.meaning != OnnxMeaning::Maps || !map.sequence || map.sequence->size() != 2)
    c.refuse("its operand must be an input that is a map");
  Graph& graph = c.importer.graph();
  Imported& keys = *map.sequence->at(0);
  int64_t count = 0;
  Value* known = vocabulary(c, keys.meaning == OnnxMeaning::Texts, count);
  if (count == 0) c.refuse("its vocabulary must not be empty");
  Value* values = c.importer.tensor_of(*map.sequence->at(1));
  const DimExpr size = values->dims.at(0);
  const Dims column{size, 1};
  if (size.is_constant() && size.value() == 0)
    return {Importer::of_tensor(
        emit(graph, "ConstantOfShape", {},
             {{"value", 0.0}, {"shape", Dims{1, count}}, {"dtype", values->dtype}}))};
  Value* given = emit(graph, "Reshape", {c.importer.tensor_of(keys)}, {{"shape", column}});
  Value* found = emit(graph, "Equal", {given, known});
  Value* each = emit(graph, "Where",
                     {found, emit(graph, "Reshape", {values}, {{"shape", column}}),
                      graph.literal(0.0, values->dtype)});
  return {
      Importer::of_tensor(emit(graph, "ReduceSum", {each}, {{"axes", Dims{0}}, {"keepdims", 1}}))};
}

const ControlRegistrar kRows({{"DictVectorizer", import_dict_vectorizer, "ai.onnx.ml"}});

}  // namespace
}  // namespace ortmodule
