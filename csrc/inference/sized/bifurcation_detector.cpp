// BifurcationDetector of aggressive decoding: predicted tokens are taken as far as they are the
// source's, and the first that is not. Then the end of all tokens is looked for in the source:
// where its only occurrence ends, the next prediction goes on.
#include <algorithm>

#include "base/error.h"
#include "inference/sized/sized_op.h"

namespace ortmodule {
namespace {

// Behind the only place in [source, source + length) of the longest possible run of tokens that
// ends at `end`; -1 if there is none, or several.
int64_t continued_at(const int64_t* source, int64_t length, const int64_t* end, int64_t least,
                     int64_t most) {
  int64_t found = -1;
  for (int64_t size = least; size <= most; ++size) {
    const int64_t* at = std::search(source, source + length, end - size, end);
    if (at == source + length) break;
    found = at - source + size;
    if (found >= length) break;
    if (std::search(at + 1, source + length, end - size, end) != source + length) found = -1;
  }
  return found;
}

void run_bifurcation_detector(const SizedCall& call) {
  const int64_t length = call.operand(0).sizes[0], held = call.operand(1).sizes[0];
  const auto *source = call.data<int64_t>(0), *tokens = call.data<int64_t>(1);
  int64_t taken = 0;
  if (call.has(3)) {
    const int64_t from = call.integer(2, 0), predicted = call.operand(3).sizes[0];
    ORTM_CHECK(from >= 0 && from <= length, "[data] prev_suffix_match_idx must be from 0 to ",
               length, ", but found ", from);
    ORTM_CHECK(predicted == length + 1 - from, "[data] there must be ", length + 1 - from,
               " pred_tokens, but found ", predicted);
    const auto* next = call.data<int64_t>(3);
    while (taken < length - from && next[taken] == source[from + taken]) ++taken;
    ++taken;
  }
  auto* to = call.result<int64_t>(DType::Int64, {held + taken});
  std::copy_n(tokens, held, to);
  if (taken > 0) std::copy_n(call.data<int64_t>(3), taken, to + held);
  const int64_t most = std::min(call.attrs().integer("max_ngram_size"), held + taken);
  *call.result<int64_t>(DType::Int64, call.operand(2).sizes) =
      continued_at(source, length, to + held + taken, call.attrs().integer("min_ngram_size"), most);
}

std::vector<SizedResult> most_bifurcation_detector(const SizedCall& call) {
  const int64_t predicted = call.has(3) ? call.operand(3).sizes[0] : 0;
  return {{DType::Int64, {call.operand(1).sizes[0] + predicted}},
          {DType::Int64, call.operand(2).sizes}};
}

const SizedRegistrar kBifurcationDetector({"BifurcationDetector", run_bifurcation_detector,
                                           most_bifurcation_detector});

}  // namespace
}  // namespace ortmodule
