// The decoder of a search for texts, run token by token. A row is a text, or one of its beams.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "inference/search_node.h"
#include "inference/search_scores.h"

namespace ortmodule {

/// What a step of a search hands to its decoder: by row, one row after the other.
struct SearchInput {
  const std::vector<int32_t>& tokens;     // since the last step
  const std::vector<int32_t>& positions;  // of these tokens
  const std::vector<int32_t>& mask;       // by token so far
  const std::vector<TokenRow>& sequences;
};

class SearchDecoder {
 public:
  SearchDecoder(SegmentedRun& run, const Segment::Outcome& outcome,
                const SegmentedRun::Values& values, int64_t rows)
      : run_(run), outcome_(outcome), values_(values), rows_(rows) {}
  virtual ~SearchDecoder() = default;

  /// Computes the scores of the token behind the last of each row.
  virtual void step(const SearchInput& input) = 0;
  /// Row i goes on with the past of row rows[i].
  virtual void choose(const std::vector<int32_t>& rows) = 0;

  /// Those of a row, of the last step.
  const float* scores_of(int64_t row) const;
  /// Tokens that have scores.
  int64_t size() const { return size_; }

 protected:
  /// Runs a body of the outcome; its results are row-major tensors.
  std::vector<PassedValue> run_part(size_t which, std::vector<PassedValue> inputs);
  /// `numbers` as int32 [rows, count / rows].
  PassedValue tensor(const std::vector<int32_t>& numbers, int64_t rows);
  PassedValue zeros(DType dtype, const Sizes& sizes);
  /// Row i of the result, along dimension `axis`, is row rows[i] of the value. Throws Error unless
  /// the value has `count` rows there.
  PassedValue rows_of(const PassedValue& value, size_t axis, int64_t count,
                      const std::vector<int32_t>& rows);
  void keep_scores(PassedValue scores);
  const OnnxGraph& graph(size_t which) const { return *outcome_.bodies.at(which)->part()->graph; }

  SegmentedRun& run_;
  const Segment::Outcome& outcome_;
  const SegmentedRun::Values& values_;
  const int64_t rows_;

 private:
  PassedValue scores_;
  int64_t size_ = 0, step_length_ = 0;
};

/// One that reads the texts itself, as GPT-2 does.
std::unique_ptr<SearchDecoder> decoder_alone(SegmentedRun& run, const Segment::Outcome& outcome,
                                             const SegmentedRun::Values& values, int64_t rows);

/// What an encoder gets, and the first tokens of its decoder.
struct EncodedTexts {
  PassedValue texts;  // tokens, or features of sounds
  std::optional<std::vector<int32_t>> mask{};
  std::vector<int32_t> first_tokens;  // [count, length]
  int64_t count = 0, beams = 1;
};

/// One that reads what an encoder makes of the texts, as those of T5 (with a mask) and Whisper do.
/// The encoder runs now.
std::unique_ptr<SearchDecoder> decoder_of_encoded(SegmentedRun& run,
                                                  const Segment::Outcome& outcome,
                                                  const SegmentedRun::Values& values,
                                                  const EncodedTexts& encoded);

}  // namespace ortmodule
