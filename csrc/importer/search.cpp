// com.microsoft's searches for texts (GreedySearch, BeamSearch, WhisperBeamSearch, Sampling): a
// session runs their decoder token by token (inference/search_steps). Here is what their subgraphs
// must be.
#include <algorithm>

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

void check_types(const ControlCall& c, std::string_view of, const std::vector<OnnxValue>& values,
                 size_t integers) {
  for (size_t i = 0; i < values.size(); ++i) {
    const DType wanted = i < integers ? DType::Int32 : DType::Float32;
    if (values[i].type.dtype != wanted)
      c.unsupported(str("'", values[i].name, "' of its ", of, " must be ", name_of(wanted)));
  }
}

// The decoder takes tokens, the texts' mask if `masks`, perhaps what the encoder made of the texts,
// and keys and values [rows, heads, length, size] of each layer: of the tokens so far, then of the
// texts. It returns scores, and keys and values with the tokens. The encoder takes texts, perhaps
// their mask, and returns keys and values of the texts; given first tokens, too, all that a first
// step makes.
void check_encoder_and_decoder(const ControlCall& c, bool masks) {
  const OnnxGraph &encoder = c.subgraph("encoder"), &decoder = c.subgraph("decoder");
  const size_t before = masks ? 2 : 1, past = decoder.outputs.size() - 1;
  const size_t first_past = decoder.inputs.size() - std::min(decoder.inputs.size(), 2 * past);
  const bool steps = encoder.inputs.size() == before + 1;
  const size_t made = steps ? 2 + 2 * past : past;
  if (past < 2 || past % 2 != 0 || first_past < before || first_past > before + (steps ? 1 : 0) ||
      encoder.outputs.size() != made || (!steps && encoder.inputs.size() != before))
    c.unsupported(str("its encoder and decoder must have keys and values of all layers, of texts ",
                      "and of tokens, but found ", encoder.inputs.size(), " and ",
                      decoder.inputs.size(), " inputs, ", encoder.outputs.size(), " and ",
                      decoder.outputs.size(), " outputs"));
  if (masks) check_types(c, "encoder", encoder.inputs, encoder.inputs.size());
  check_types(c, "encoder", encoder.outputs, 0);
  check_types(c, "decoder", decoder.inputs, before);
  check_types(c, "decoder", decoder.outputs, 0);
  for (size_t i = first_past; i < first_past + past; ++i) {
    const OnnxType& type = decoder.inputs[i].type;
    if (!type.dims || type.dims->size() != 4 || !is_number((*type.dims)[1]) ||
        !is_number((*type.dims)[3]))
      c.unsupported(str("the past '", decoder.inputs[i].name,
                        "' must be [batch, heads, length, size] with numbers of heads and size"));
  }
}

std::vector<ImportedRef> import_search(const ControlCall& c) {
  const int64_t type = c.integer("model_type", c.node.op == "WhisperBeamSearch" ? 2 : 0);
  if ((type == 1 || type == 2) && c.node.op.ends_with("BeamSearch") && c.find("encoder")) {
    for (size_t i = 3; i < c.node.outputs.size(); ++i)
      if (!c.node.outputs[i].empty())
        c.unsupported(
            str("output '", c.node.outputs[i], "', of attention or silence, is not known"));
    check_encoder_and_decoder(c, type == 1);
    c.run_subgraph("its tokens are made one after the other");
  }
  if (type != 0 || c.find("encoder"))
    c.unsupported(
        "a search must be that of a decoder alone (model_type 0), or one for beams with an encoder "
        "(1 or 2)");
  check_decoder(c, c.subgraph("decoder"));
  if (c.find("init_decoder")) check_decoder(c, c.subgraph("init_decoder"));
  c.run_subgraph("its tokens are made one after the other");
}

const ControlRegistrar kSearches({{"GreedySearch", import_search, "com.microsoft"},
                                  {"BeamSearch", import_search, "com.microsoft"},
                                  {"WhisperBeamSearch", import_search, "com.microsoft"},
                                  {"Sampling", import_search, "com.microsoft"}});

}  // namespace
}  // namespace ortmodule
