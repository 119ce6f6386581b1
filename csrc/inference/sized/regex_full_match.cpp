// RegexFullMatch: whether an expression matches each text as a whole.
#include "inference/sized/sized_op.h"
#include "inference/sized/text_pattern.h"

namespace ortmodule {
namespace {

void run_regex_full_match(const SizedCall& call) {
  const Sizes& sizes = call.operand(0).sizes;
  TextPattern pattern(call.attrs().string("pattern"));
  auto* to = call.result<uint8_t>(DType::Bool, sizes);
  for (int64_t k = 0; k < element_count(sizes); ++k)
    to[k] = pattern.matches_whole(call.text(0, k)) ? 1 : 0;
}

std::vector<SizedResult> most_regex_full_match(const SizedCall& call) {
  return {{DType::Bool, call.operand(0).sizes}};
}

const SizedRegistrar kRegexFullMatch({"RegexFullMatch", run_regex_full_match,
                                      most_regex_full_match});

}  // namespace
}  // namespace ortmodule
