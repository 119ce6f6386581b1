#include "inference/search_scores.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace ortmodule {
namespace {

constexpr float kNever = std::numeric_limits<float>::lowest();

void forbid_outside(std::span<const int32_t> allowed, std::span<float> scores) {
  for (size_t i = 0; i < scores.size(); ++i)
    if (allowed[i] == 0) scores[i] = kNever;
}

/// Tokens [begin, end), as far as they are there.
void forbid_range(int64_t begin, int64_t end, std::span<float> scores) {
  const auto size = static_cast<int64_t>(scores.size());
  for (int64_t i = std::max<int64_t>(begin, 0); i < std::min(end, size); ++i)
    scores[static_cast<size_t>(i)] = kNever;
}

}  // namespace

// Times come in pairs, but for the first one: behind a single one comes another, or the end.
void TimestampRules::pair_times(const TokenRow& tokens, size_t begin,
                                std::span<float> scores) const {
  const auto size = static_cast<int64_t>(scores.size());
  const auto is_time = [&](int32_t token) { return token >= first_time; };
  const bool last = !tokens.empty() && is_time(tokens.back());
  const bool before = tokens.size() <= begin || is_time(tokens[tokens.size() - 2]);
  if (last && before) forbid_range(first_time, size, scores);
  if (last && !before) forbid_range(0, end, scores);
  const auto latest = std::find_if(tokens.rbegin(), tokens.rend(), is_time);
  if (latest == tokens.rend()) return;
  forbid_range(first_time, last && !before ? *latest : int64_t{*latest} + 1, scores);
}

void TimestampRules::apply(const TokenRow& tokens, std::span<float> scores) const {
  constexpr int64_t kLatestFirst = 50;  // in steps of 20 ms
  const auto first = std::find_if(tokens.begin(), tokens.end(),
                                  [&](int32_t token) { return token >= first_time; });
  // Behind the first time.
  const auto begin = static_cast<size_t>(first - tokens.begin()) + (first != tokens.end() ? 1 : 0);
  for (const int32_t token : never) forbid_range(token, int64_t{token} + 1, scores);
  if (tokens.size() > begin)
    for (const int32_t token : at_first) forbid_range(token, int64_t{token} + 1, scores);
  pair_times(tokens, begin, scores);
  if (tokens.size() == begin)
    forbid_range(first_time + kLatestFirst + 1, static_cast<int64_t>(scores.size()), scores);
  prefer_times(scores);
}

// If all times together are likelier than any other token, it is one of them.
void TimestampRules::prefer_times(std::span<float> scores) const {
  if (first_time <= 0 || static_cast<size_t>(first_time) >= scores.size()) return;
  const auto times = scores.subspan(static_cast<size_t>(first_time));
  const auto others = scores.first(static_cast<size_t>(first_time));
  const float most = *std::max_element(times.begin(), times.end());
  float sum = 0;
  for (const float score : times) sum += std::exp(score - most);
  const float together = most + std::log(sum);
  if (together > *std::max_element(others.begin(), others.end()))
    forbid_range(0, first_time, scores);
}

void ScoreRules::forbid_repetitions(const TokenRow& tokens, std::span<float> scores) const {
  const auto length = static_cast<size_t>(repeated_length);
  if (length == 0 || tokens.size() < length) return;
  const auto last = tokens.end() - static_cast<std::ptrdiff_t>(length - 1);
  for (size_t i = 0; i + length <= tokens.size(); ++i) {
    const auto run = tokens.begin() + static_cast<std::ptrdiff_t>(i);
    const int32_t next = tokens[i + length - 1];
    if (std::equal(last, tokens.end(), run) && next >= 0 &&
        static_cast<size_t>(next) < scores.size())
      scores[static_cast<size_t>(next)] = kNever;
  }
}

void ScoreRules::apply(const TokenRow& tokens, int64_t row, bool first,
                       std::span<float> scores) const {
  if (repetition_penalty != 1.0f) {
    TokenRow each = tokens;
    std::sort(each.begin(), each.end());
    each.erase(std::unique(each.begin(), each.end()), each.end());
    for (const int32_t token : each) {
      if (token < 0 || static_cast<size_t>(token) >= scores.size()) continue;
      float& score = scores[static_cast<size_t>(token)];
      score = score < 0 ? score * repetition_penalty : score / repetition_penalty;
    }
  }
  forbid_repetitions(tokens, scores);
  if (!allowed.empty()) forbid_outside(allowed, scores);
  const size_t begin = static_cast<size_t>(row / rows_of_text) * scores.size();
  if (first && !allowed_first.empty())
    forbid_outside(allowed_first.subspan(begin, scores.size()), scores);
  if (static_cast<int64_t>(tokens.size()) < least_length && end_token >= 0 &&
      static_cast<size_t>(end_token) < scores.size())
    scores[static_cast<size_t>(end_token)] = kNever;
  if (temperature != 1.0f)
    for (float& score : scores) score /= temperature;
  if (!present.empty())
    for (size_t i = 0; i < scores.size(); ++i)
      scores[i] -= static_cast<float>(present[begin + i]) * presence_penalty;
  if (timestamps) timestamps->apply(tokens, scores);
}

void take_log_softmax(std::span<float> scores) {
  const float most = *std::max_element(scores.begin(), scores.end());
  double sum = 0;
  for (const float score : scores) sum += std::exp(static_cast<double>(score - most));
  const auto shift = static_cast<float>(std::log(sum));
  for (float& score : scores) score = score - most - shift;
}

void SampleRules::filter(std::span<float> scores) const {
  if (top_p == 0.0f) return;
  std::vector<size_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return custom ? scores[a] > scores[b] : scores[a] < scores[b];
  });
  std::vector<float> shares(scores.begin(), scores.end());
  take_log_softmax(shares);
  std::vector<bool> filtered(scores.size(), false);
  float sum = 0.0f;
  for (size_t i = 0; i < order.size(); ++i) {
    const bool over = custom && sum > top_p;  // those before it are enough
    sum += std::exp(shares[order[i]]);
    const auto kept = static_cast<int64_t>(custom ? i : order.size() - 1 - i);
    filtered[order[i]] = kept >= least_kept && (custom ? over : sum <= 1.0f - top_p);
  }
  for (size_t i = 0; i < scores.size(); ++i)
    if (filtered[i]) scores[i] = filter_value;
}

int32_t drawn_token(std::span<const float> scores, double draw) {
  const float most = *std::max_element(scores.begin(), scores.end());
  std::vector<double> sums(scores.size());
  double sum = 0;
  for (size_t i = 0; i < scores.size(); ++i)
    sums[i] = sum += std::exp(static_cast<double>(scores[i] - most));
  const auto found = std::upper_bound(sums.begin(), sums.end(), draw * sum);
  return static_cast<int32_t>(
      std::min<std::ptrdiff_t>(found - sums.begin(), std::ssize(scores) - 1));
}

}  // namespace ortmodule
