// Import of operators that make texts of texts. All are SizedOps: texts are numbers, and only a run
// has a table that it can add to.
#include <algorithm>

#include "base/error.h"
#include "ops/onnx_call.h"
#include "ops/op_def.h"

namespace ortmodule {
namespace {

// Those of an attribute, by their numbers.
Attr text_numbers(OnnxCall& c, std::string_view name) {
  Dims numbers;
  for (const std::string& text : c.strings(name)) numbers.emplace_back(c.text_number(text));
  return numbers;
}

void require_texts(OnnxCall& c, size_t operand) {
  if (!c.has_texts(operand)) c.refuse(str("operand ", operand, " must be a tensor of strings"));
}

Attrs sized_string_normalizer(OnnxCall& c) {
  require_texts(c, 0);
  const Dims dims = c.dims(0);
  if ((dims.size() != 1 && dims.size() != 2) ||
      (dims.size() == 2 && !c.sizes().equal(dims[0], DimExpr(1))))
    c.refuse("its operand must be [C] or [1, C]");
  return {{"case_change_action", c.word("case_change_action", {"NONE", "LOWER", "UPPER"})},
          {"is_case_sensitive", c.integer("is_case_sensitive", 0)},
          {"stopwords", text_numbers(c, "stopwords")}};
}

Attrs sized_tokenizer(OnnxCall& c) {
  require_texts(c, 0);
  const size_t rank = c.rank(0);
  if (rank != 1 && rank != 2) c.refuse("its operand must be [C] or [N, C]");
  const int64_t least = c.integer("mincharnum");
  if (least < 1) c.refuse(str("mincharnum must be positive, but found ", least));
  Attrs attrs{
      {"mark", c.integer("mark")}, {"pad_value", c.string("pad_value", "")}, {"mincharnum", least}};
  const std::vector<std::string> separators = c.strings("separators");
  const std::string token = c.string("tokenexp", "");
  if (separators.empty() && token.empty())
    c.refuse("there must be separators or an expression of tokens that is not empty");
  const bool by_character =
      separators.empty() ? token == "." : separators.size() == 1 && separators[0].empty();
  if (by_character && least > 1)
    c.refuse(str("mincharnum must be 1 for single characters, but found ", least));
  if (separators.empty())
    attrs.set("tokenexp", token);
  else
    attrs.set("separators", text_numbers(c, "separators"));
  return attrs;
}

Attrs sized_string_concat(OnnxCall& c) {
  require_texts(c, 0);
  require_texts(c, 1);
  return {};
}

Attrs sized_string_split(OnnxCall& c) {
  require_texts(c, 0);
  const int64_t most = c.integer("maxsplit", -1);
  return {{"delimiter", c.string("delimiter", "")}, {"maxsplit", std::max<int64_t>(most, -1)}};
}

Attrs sized_regex_full_match(OnnxCall& c) {
  require_texts(c, 0);
  return {{"pattern", c.string("pattern", "")}};
}

Attrs sized_murmur_hash3(OnnxCall& c) {
  const DType dtype = c.in(0)->dtype;
  if (!c.has_texts(0) && dtype != DType::Int32 && dtype != DType::UInt32 && dtype != DType::Int64 &&
      dtype != DType::UInt64 && dtype != DType::Float32 && dtype != DType::Float64)
    c.refuse("its operand must be strings or numbers of 32 or 64 bits");
  return {{"positive", c.integer("positive", 1)}, {"seed", c.integer("seed", 0)}};
}

REGISTER_ONNX(
    {{"StringNormalizer", 10, nullptr, nullptr, "", sized_string_normalizer, reads_texts()},
     {"StringConcat", 20, nullptr, nullptr, "", sized_string_concat, reads_texts(3)},
     {"StringSplit", 20, nullptr, nullptr, "", sized_string_split, reads_texts()},
     {"RegexFullMatch", 20, nullptr, nullptr, "", sized_regex_full_match, reads_texts()},
     {"Tokenizer", 1, nullptr, nullptr, "com.microsoft", sized_tokenizer, reads_texts()},
     {"MurmurHash3", 1, nullptr, nullptr, "com.microsoft", sized_murmur_hash3, reads_texts()}});

}  // namespace
}  // namespace ortmodule
