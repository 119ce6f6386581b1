// Import of ai.onnx.ml's CastMap: the values of a map of integers, in the order of its keys or at
// the places that they name.
#include "base/error.h"
#include "importer/importer.h"
#include "ops/emit.h"

namespace ortmodule {
namespace {

std::string word(const ControlCall& c, std::string_view name, const std::string& fallback) {
  const OnnxAttr* attr = c.find(name);
  const auto* text = attr ? std::get_if<std::string>(attr) : nullptr;
  return text ? *text : fallback;
}

DType cast_type(const ControlCall& c) {
  const std::string to = word(c, "cast_to", "TO_FLOAT");
  if (to == "TO_STRING") c.unsupported("numbers of maps are not written as texts");
  if (to != "TO_FLOAT" && to != "TO_INT64")
    c.refuse(str("cast_to must be TO_FLOAT, TO_INT64 or TO_STRING, but found ", to));
  return to == "TO_FLOAT" ? DType::Float32 : DType::Int64;
}

// [1, keys], or [1, max_map]
std::vector<ImportedRef> import_cast_map(const ControlCall& c) {
  Imported& map = c.operand(0);
  if (map.meaning != OnnxMeaning::Maps || !map.sequence || map.sequence->size() != 2)
    c.refuse("its operand must be an input that is a map");
  if (map.sequence->at(0)->meaning == OnnxMeaning::Texts) c.refuse("its keys must be integers");
  if (map.sequence->at(1)->meaning == OnnxMeaning::Texts) c.unsupported("values that are texts");
  const DType dtype = cast_type(c);
  const std::string form = word(c, "map_form", "DENSE");
  const int64_t most = c.integer("max_map", 1);
  if (form != "DENSE" && form != "SPARSE")
    c.refuse(str("map_form must be DENSE or SPARSE, but found ", form));
  if (form == "SPARSE" && (most < 1 || most > int64_t{1} << 31))
    c.refuse(str("max_map must be from 1 to 2^31, but found ", most));
  Graph& graph = c.importer.graph();
  Value* keys = c.importer.tensor_of(*map.sequence->at(0));
  Value* values = c.importer.tensor_of(*map.sequence->at(1));
  if (values->dtype != dtype) values = emit(graph, "Cast", {values}, {{"to", dtype}});
  const DimExpr count = form == "DENSE" ? values->dims.at(0) : DimExpr(most);
  Value* y;
  if (form == "DENSE") {
    const Node* sorted = emit_node(graph, "Sort", {keys}, {{"axis", 0}});
    y = emit(graph, "Gather", {values, sorted->output(1)}, {{"axis", 0}});
  } else {
    Value* zeros = emit(graph, "ConstantOfShape", {},
                        {{"value", 0.0}, {"shape", Dims{count}}, {"dtype", dtype}});
    y = emit(graph, "ScatterElements", {zeros, keys, values}, {{"axis", 0}, {"reduction", "none"}});
  }
  return {Importer::of_tensor(emit(graph, "Reshape", {y}, {{"shape", Dims{1, count}}}))};
}

const ControlRegistrar kRows({{"CastMap", import_cast_map, "ai.onnx.ml"}});

}  // namespace
}  // namespace ortmodule
