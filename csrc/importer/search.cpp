// com.microsoft's searches for texts (GreedySearch, BeamSearch, Sampling): a session runs their
// decoder token by token (inference/search_steps). Here is what their subgraphs must be.
#include "base/error.h"
#include "importer/importer.h"
#include "ops/torch_call.h"

namespace ortmodule {
namespace {

bool is_number(const OnnxDim& dim) {
  const auto* size = std::get_if<int64_t>(&dim);
  return size && *size > 0 && *size < 1 << 20;
}

// Tokens, their positions and a mask, then the past of each layer [2, rows, heads, length, size];
// returns scores and the past that includes the tokens.
void check_decoder(const ControlCall& c, const OnnxGraph& decoder) {
  constexpr size_t kFirstPast = 3;
  if (decoder.inputs.size() <= kFirstPast ||
      decoder.outputs.size() != decoder.inputs.size() - kFirstPast + 1)
    c.unsupported(str("its decoder must have tokens, positions, a mask and a past for each layer, ",
                      "and return scores and as many, but found ", decoder.inputs.size(),
                      " inputs and ", decoder.outputs.size(), " outputs"));
  for (size_t i = 0; i < decoder.inputs.size(); ++i) {
    const OnnxType& type = decoder.inputs[i].type;
    const bool is_past = i >= kFirstPast;
    if (type.dtype != (is_past ? DType::Float32 : DType::Int32))
      c.unsupported(str("input '", decoder.inputs[i].name, "' of its decoder must be ",
                        is_past ? "float32" : "int32"));
    if (!is_past) continue;
    if (!type.dims || type.dims->size() != 5 || !is_number((*type.dims)[2]) ||
        !is_number((*type.dims)[4]))
      c.unsupported(
          str("the past '", decoder.inputs[i].name,
              "' must be [2, batch, heads, length, size] with numbers of heads and size"));
  }
}

std::vector<ImportedRef> import_search(const ControlCall& c) {
  if (c.integer("model_type", 0) != 0 || c.find("encoder"))
    c.unsupported("a search must be that of a decoder alone (model_type 0)");
  check_decoder(c, c.subgraph("decoder"));
  if (c.find("init_decoder")) check_decoder(c, c.subgraph("init_decoder"));
  c.run_subgraph("its tokens are made one after the other");
}

const ControlRegistrar kSearches({{"GreedySearch", import_search, "com.microsoft"},
                                  {"BeamSearch", import_search, "com.microsoft"},
                                  {"Sampling", import_search, "com.microsoft"}});

}  // namespace
}  // namespace ortmodule
