// StringNormalizer: the texts that are no stopwords, in another case. One empty text if none is
// left.
#include <unordered_set>

#include "inference/sized/sized_op.h"
#include "inference/sized/utf8.h"

namespace ortmodule {
namespace {

void run_string_normalizer(const SizedCall& call) {
  const Sizes& sizes = call.operand(0).sizes;
  const Attrs& attrs = call.attrs();
  const bool exactly = attrs.flag("is_case_sensitive");
  const std::string action = attrs.string("case_change_action");
  const auto folded = [&](const std::string& text) { return exactly ? text : lower_text(text); };
  std::unordered_set<std::string> stopwords;
  for (const std::string& text : call.text_attr("stopwords")) stopwords.insert(folded(text));
  std::vector<std::string> kept;
  for (int64_t k = 0; k < element_count(sizes); ++k) {
    const std::string& text = call.text(0, k);
    if (!stopwords.empty() && stopwords.count(folded(text)) > 0) continue;
    kept.push_back(action == "LOWER"   ? lower_text(text)
                   : action == "UPPER" ? upper_text(text)
                                       : text);
  }
  if (kept.empty()) kept.emplace_back();
  Sizes result(sizes.size(), 1);
  result.back() = static_cast<int64_t>(kept.size());
  int64_t* to = call.texts_result(result);
  for (const std::string& text : kept) *to++ = call.texts().number(text);
}

std::vector<SizedResult> most_string_normalizer(const SizedCall& call) {
  Sizes sizes = call.operand(0).sizes;
  sizes.back() = std::max<int64_t>(sizes.back(), 1);
  return {{DType::Int64, sizes}};
}

const SizedRegistrar kStringNormalizer({"StringNormalizer", run_string_normalizer,
                                        most_string_normalizer});

}  // namespace
}  // namespace ortmodule
