// Scores of the next token in a search: what changes them before one is chosen.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace ortmodule {

using TokenRow = std::vector<int32_t>;

/// Whisper's rules for tokens that say a time (A. Radford et al., "Robust speech recognition via
/// large-scale weak supervision", 2022; openai/whisper, decoding.py), as onnxruntime applies them:
/// those from `first_time` on, later times larger. Tokens that are not there are -1.
struct TimestampRules {
  int32_t first_time = -1, end = -1;
  int32_t never[2] = {-1, -1};         // "no timestamps", the start of a model of language
  int32_t at_first[3] = {-1, -1, -1};  // only until a first time: start, translate, transcribe

  /// Changes the scores behind `tokens`.
  void apply(const TokenRow& tokens, std::span<float> scores) const;

 private:
  void pair_times(const TokenRow& tokens, size_t begin, std::span<float> scores) const;
  void prefer_times(std::span<float> scores) const;
};

/// The options of a search that change scores, and the tokens of each row so far.
struct ScoreRules {
  float repetition_penalty = 1.0f, temperature = 1.0f, presence_penalty = 0.0f;
  int64_t repeated_length = 0;  // of a run of tokens that may not occur twice; 0: any may
  int64_t least_length = 0;
  int32_t end_token = -1;
  int64_t rows_of_text = 1;                             // that search for one text
  std::span<const int32_t> allowed{};                   // by token; empty: all
  std::span<const int32_t> allowed_first{}, present{};  // by text and token
  std::optional<TimestampRules> timestamps{};

  /// Changes the scores of row `row`, whose tokens so far are `tokens`.
  void apply(const TokenRow& tokens, int64_t row, bool first, std::span<float> scores) const;

 private:
  void forbid_repetitions(const TokenRow& tokens, std::span<float> scores) const;
};

/// scores = the logarithm of their softmax.
void take_log_softmax(std::span<float> scores);

/// Sampling's options.
struct SampleRules {
  float top_p = 0.0f, filter_value = -1e20f;
  int64_t least_kept = 0;
  bool custom = false;

  /// Gives all but the likeliest scores the filter's value.
  void filter(std::span<float> scores) const;
};

/// The place among the scores' shares of their softmax that `draw`, from 0 to 1, falls on.
int32_t drawn_token(std::span<const float> scores, double draw);

}  // namespace ortmodule
