// The best sequences of a beam search for one text, as onnxruntime keeps them.
#pragma once

#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "inference/search_scores.h"

namespace ortmodule {

class BeamHypotheses {
 public:
  struct Found {
    TokenRow tokens;
    float score = 0.0f;
  };

  BeamHypotheses(size_t most, float length_penalty)
      : most_(most), length_penalty_(length_penalty) {}

  bool is_full() const { return found_.size() == most_; }
  const std::vector<Found>& found() const { return found_; }

  /// `sum`: of the logarithms of the tokens' shares.
  void add(const TokenRow& tokens, float sum) {
    const float score = penalized(sum, tokens.size());
    if (is_full() && score <= found_.back().score) return;
    if (is_full()) found_.pop_back();
    size_t place = found_.size();
    while (place > 0 && score > found_[place - 1].score) --place;
    found_.insert(found_.begin() + static_cast<std::ptrdiff_t>(place), {tokens, score});
  }
  /// Whether a sequence of that sum and length would be better than the worst one.
  bool can_improve(float sum, size_t length) const {
    return found_.back().score < penalized(sum, length);
  }

  bool done = false;

 private:
  float penalized(float sum, size_t length) const {
    return sum / std::pow(static_cast<float>(length), length_penalty_);
  }

  size_t most_;
  float length_penalty_;
  std::vector<Found> found_;  // the best first
};

}  // namespace ortmodule
