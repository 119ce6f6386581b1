// NGramRepeatBlock: scores of tokens that would repeat a run of tokens of their row become
// -infinity.
#include <algorithm>
#include <limits>

#include "base/error.h"
#include "inference/sized/sized_op.h"

namespace ortmodule {
namespace {

void run_n_gram_repeat_block(const SizedCall& call) {
  const Sizes &ids = call.operand(0).sizes, &scores = call.operand(1).sizes;
  ORTM_CHECK(ids[0] == scores[0], "[run] input_ids and scores must have one batch, but found ",
             ids[0], " and ", scores[0]);
  const int64_t length = ids[1], tokens = scores[1], size = call.attrs().integer("ngram_size");
  auto* to = call.result<float>(DType::Float32, scores);
  std::copy_n(call.data<float>(1), element_count(scores), to);
  for (int64_t row = 0; row < ids[0]; ++row, to += tokens) {
    const int64_t* begin = call.data<int64_t>(0) + row * length;
    for (int64_t i = 0; i + size <= length; ++i) {
      if (!std::equal(begin + i, begin + i + size - 1, begin + length - (size - 1))) continue;
      const int64_t token = begin[i + size - 1];
      ORTM_CHECK(token >= 0 && token < tokens, "[data] tokens must be within ", tokens,
                 ", but found ", token);
      to[token] = -std::numeric_limits<float>::infinity();
    }
  }
}

std::vector<SizedResult> most_n_gram_repeat_block(const SizedCall& call) {
  return {{DType::Float32, call.operand(1).sizes}};
}

const SizedRegistrar kNGramRepeatBlock({"NGramRepeatBlock", run_n_gram_repeat_block,
                                        most_n_gram_repeat_block});

}  // namespace
}  // namespace ortmodule
