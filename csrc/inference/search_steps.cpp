// com.microsoft's GreedySearch, BeamSearch, WhisperBeamSearch and Sampling: loops over a decoder,
// which gets the tokens that the last step chose and what it returned of the past. Scores, ties and
// the end of a search are onnxruntime's.
#include <algorithm>
#include <cstring>
#include <iterator>
#include <limits>
#include <numeric>
#include <optional>
#include <random>
#include <utility>

#include "base/error.h"
#include "inference/beam_hypotheses.h"
#include "inference/search_decoder.h"

namespace ortmodule {
namespace {

class SearchStep {
 public:
  SearchStep(SegmentedRun& run, const Segment::Outcome& outcome, const SegmentedRun::Values& values)
      : run_(run),
        node_(outcome.cut->node, values),
        searches_beams_(outcome.cut->node.op.ends_with("BeamSearch")),
        beams_(searches_beams_ ? node_.integer(3, 1) : 1) {
    const bool sounds = outcome.cut->node.op == "WhisperBeamSearch";
    kind_ = static_cast<ModelKind>(node_.attr("model_type", sounds ? 2 : 0));
    const HostTensorView* given = node_.optional(0);
    if (kind_ == ModelKind::Whisper) {
      ORTM_CHECK(given && given->sizes.size() == 3 && element_count(given->sizes) > 0,
                 "[run] features of ", outcome.cut->node.op, " must be [batch, bands, frames]");
      if (has(10)) given = node_.optional(10);
    }
    const size_t rank = kind_ == ModelKind::Whisper && !has(10) ? 3 : 2;
    ORTM_CHECK(given && given->sizes.size() == rank && element_count(given->sizes) > 0,
               "[run] tokens of ", outcome.cut->node.op, " must be [batch, length]");
    texts_ = given->sizes[0];
    length_ = kind_ == ModelKind::T5 || rank == 3 ? 1 : given->sizes[1];
    ORTM_CHECK(beams_ >= 1 && beams_ <= 1024, "[run] num_beams must be from 1 to 1024, but found ",
               beams_);
    end_ = static_cast<int32_t>(node_.attr("eos_token_id", -1));
    pad_ = static_cast<int32_t>(node_.attr("pad_token_id", -1));
    most_ = node_.integer(1, 0);
    constexpr int64_t kMostTokens = 4096 * 16;
    ORTM_CHECK(most_ > length_ && most_ <= kMostTokens, "[run] max_length must be above ", length_,
               " and at most ", kMostTokens, ", but found ", most_);
    read_rules();
    read_tokens(outcome, values);
  }

  std::vector<PassedValue> run() { return searches_beams_ ? beam_search() : greedy_search(); }

 private:
  enum class ModelKind : int64_t { Gpt, T5, Whisper };

  int64_t rows() const { return texts_ * beams_; }
  bool has(size_t operand) const { return node_.optional(operand) != nullptr; }

  void read_rules() {
    rules_.repetition_penalty = node_.number(searches_beams_ ? 6 : 3, 1.0f);
    rules_.repeated_length = node_.attr("no_repeat_ngram_size", 0);
    rules_.least_length = node_.integer(2, 0);
    rules_.end_token = end_;
    rules_.rows_of_text = beams_;
    const size_t masks = searches_beams_ ? 7 : 4;
    allowed_ = node_.integers(masks);
    allowed_first_ = node_.integers(masks + 1);
    rules_.allowed = allowed_;
    rules_.allowed_first = allowed_first_;
    if (kind_ == ModelKind::Whisper) read_sound_rules();
    if (node_.node().op != "Sampling") return;
    rules_.temperature = node_.real_attr("temperature", 1.0);
    rules_.presence_penalty = node_.real_attr("presence_penalty", 0.0);
    present_ = node_.integers(masks + 3);
    rules_.present = present_;
    samples_.emplace();
    samples_->top_p = node_.real_attr("top_p", 0.0);
    samples_->filter_value = node_.real_attr("filter_value", -1e20);
    samples_->least_kept = node_.attr("min_tokens_to_keep", 0);
    samples_->custom = node_.attr("custom", 0) != 0;
    const std::vector<int32_t> seed = node_.integers(masks + 4);
    engine_.seed(seed.empty() ? std::random_device()() : static_cast<uint32_t>(seed[0]));
  }

  void read_sound_rules() {
    rules_.temperature = node_.number(14, 1.0f);
    if (node_.integer(11, 0) != 1) return;  // 1: Whisper's
    const auto token = [&](std::string_view name) {
      return static_cast<int32_t>(node_.attr(name, -1));
    };
    rules_.timestamps = {.first_time = token("beginning_timestamp_token_id"),
                         .end = end_,
                         .never = {token("no_timestamps_token_id"), token("start_of_lm_token_id")},
                         .at_first = {token("decoder_start_token_id"), token("translate_token_id"),
                                      token("transcribe_token_id")}};
    ORTM_CHECK(rules_.timestamps->first_time >= 0, "[run] rules for timestamps (logits_processor ",
               "1) must know beginning_timestamp_token_id, but found no such attribute of ",
               node_.node().op, "; write it, or pass 0");
  }

  // By token; given, or what is no padding.
  std::vector<int32_t> mask_of(const std::vector<int32_t>& ids) const {
    std::vector<int32_t> mask = node_.integers(searches_beams_ ? 9 : 6);
    ORTM_CHECK(mask.empty() || mask.size() == ids.size(),
               "[run] attention_mask must be as large as the tokens");
    const auto columns = node_.optional(0)->sizes[1];
    for (size_t i = mask.size(); i < ids.size(); ++i) {
      // Behind the first other token an encoder sees padding, as onnxruntime's does: it may be the
      // end of a text.
      const bool begins = static_cast<int64_t>(i) % columns == 0;
      const bool sees = kind_ == ModelKind::T5 && !begins && mask.back() != 0;
      mask.push_back(ids[i] == pad_ && !sees ? 0 : 1);
    }
    return mask;
  }

  void read_tokens(const Segment::Outcome& outcome, const SegmentedRun::Values& values) {
    if (kind_ != ModelKind::Gpt) return read_encoded(outcome, values);
    const std::vector<int32_t> ids = node_.integers(0), mask = mask_of(ids);
    for (int64_t row = 0; row < rows(); ++row) {
      TokenRow tokens;
      int32_t position = 0;
      for (int64_t i = 0; i < length_; ++i) {
        const auto place = static_cast<size_t>(row / beams_ * length_ + i);
        tokens.push_back(ids[place]);
        next_tokens_.push_back(ids[place]);
        mask_.push_back(mask[place]);
        positions_.push_back(ids[place] == pad_ ? 0 : position++);
      }
      tokens_.push_back(std::move(tokens));
      next_positions_.push_back(position);
    }
    decoder_ = decoder_alone(run_, outcome, values, rows());
  }

  // What an encoder reads is not part of the rows, which begin with the decoder's first tokens.
  void read_encoded(const Segment::Outcome& outcome, const SegmentedRun::Values& values) {
    EncodedTexts encoded{.texts = node_.value(0), .first_tokens = node_.integers(10)};
    if (kind_ == ModelKind::T5) encoded.mask = mask_of(node_.integers(0));
    if (kind_ == ModelKind::T5 || encoded.first_tokens.empty())
      encoded.first_tokens.assign(static_cast<size_t>(texts_),
                                  static_cast<int32_t>(node_.attr("decoder_start_token_id", -1)));
    encoded.count = texts_;
    encoded.beams = beams_;
    for (int64_t row = 0; row < rows(); ++row) {
      const auto begin = encoded.first_tokens.begin() + row / beams_ * length_;
      tokens_.emplace_back(begin, begin + length_);
      next_tokens_.insert(next_tokens_.end(), begin, begin + length_);
    }
    next_positions_.resize(tokens_.size());  // nor are a mask and positions read
    mask_.resize(tokens_.size());
    decoder_ = decoder_of_encoded(run_, outcome, values, encoded);
  }

  // Scores of all rows, after the rules; `logarithms` of their shares.
  std::vector<std::vector<float>> scores(bool logarithms) {
    run_.check_terminate(node_.node());
    const bool first = is_first_;
    is_first_ = false;
    decoder_->step({next_tokens_, positions_, mask_, tokens_});
    const int64_t size =
        std::clamp<int64_t>(node_.attr("vocab_size", decoder_->size()), 1, decoder_->size());
    const auto fits = [&](size_t count, int64_t wanted) {
      return count == 0 || static_cast<int64_t>(count) == wanted;
    };
    ORTM_CHECK(fits(allowed_.size(), size) && fits(allowed_first_.size(), texts_ * size) &&
                   fits(present_.size(), texts_ * size),
               "[run] masks of ", node_.node().op, " must have ", size, " tokens");
    std::vector<std::vector<float>> result;
    for (int64_t row = 0; row < rows(); ++row) {
      const float* from = decoder_->scores_of(row);
      std::vector<float>& to = result.emplace_back(from, from + size);
      if (logarithms) take_log_softmax(to);
      rules_.apply(tokens_[static_cast<size_t>(row)], row, first, to);
    }
    return result;
  }

  // What the decoder gets next: one token for each row.
  void append(const std::vector<int32_t>& chosen) {
    std::vector<int32_t> mask;
    const size_t before = mask_.size() / chosen.size();
    for (size_t row = 0; row < chosen.size(); ++row) {
      tokens_[row].push_back(chosen[row]);
      mask.insert(mask.end(), mask_.begin() + static_cast<std::ptrdiff_t>(row * before),
                  mask_.begin() + static_cast<std::ptrdiff_t>((row + 1) * before));
      mask.push_back(1);
    }
    mask_ = std::move(mask);
    next_tokens_ = chosen;
    positions_ = next_positions_;
    for (int32_t& position : next_positions_) ++position;
  }

  PassedValue padded(const Sizes& sizes, const std::vector<const TokenRow*>& sequences) {
    PassedTensor tensor = run_.allocate(DType::Int32, sizes);
    auto* to = static_cast<int32_t*>(const_cast<void*>(tensor.view.data));  // NOLINT: its owner's
    for (const TokenRow* sequence : sequences) {
      std::fill_n(std::copy(sequence->begin(), sequence->end(), to), most_ - std::ssize(*sequence),
                  pad_);
      to += most_;
    }
    return {ValueForm::Kind::Tensor, {std::move(tensor)}};
  }

  // --- one token for each text
  std::vector<PassedValue> greedy_search() {
    std::vector<bool> ended(static_cast<size_t>(texts_), false);
    for (int64_t length = length_; length < most_; ++length) {
      std::vector<std::vector<float>> all = scores(false);
      std::vector<int32_t> chosen;
      for (size_t row = 0; row < all.size(); ++row) {
        const int32_t token = chosen_token(all[row]);
        ended[row] = ended[row] || token == end_;
        chosen.push_back(ended[row] ? pad_ : token);
      }
      append(chosen);
      if (std::find(ended.begin(), ended.end(), false) == ended.end()) break;
    }
    std::vector<const TokenRow*> sequences;
    for (const TokenRow& tokens : tokens_) sequences.push_back(&tokens);
    std::vector<PassedValue> outputs{padded({texts_, most_}, sequences)};
    if (samples_) outputs.push_back({ValueForm::Kind::Absent, {}});  // no outcome of a CPU has it
    return outputs;
  }

  int32_t chosen_token(std::vector<float>& row) {
    if (samples_) {
      samples_->filter(row);
      return drawn_token(row, std::uniform_real_distribution<double>(0.0, 1.0)(engine_));
    }
    return static_cast<int32_t>(std::max_element(row.begin(), row.end()) - row.begin());
  }

  // --- beams
  struct Candidate {
    float score;
    int32_t beam, token;
  };

  // The best for a text, twice as many as beams.
  void add_candidates(const std::vector<std::vector<float>>& all, int64_t text,
                      std::vector<Candidate>& best) const {
    const auto first = static_cast<size_t>(text * beams_);
    const size_t size = all[first].size(), count = static_cast<size_t>(beams_) * size;
    const size_t wanted = std::min(2 * static_cast<size_t>(beams_), count);
    const auto score = [&](size_t i) { return all[first + i / size][i % size]; };
    std::vector<size_t> order(count);
    std::iota(order.begin(), order.end(), 0);
    std::partial_sort(
        order.begin(), order.begin() + static_cast<std::ptrdiff_t>(wanted), order.end(),
        [&](size_t a, size_t b) { return score(a) > score(b) || (score(a) == score(b) && a < b); });
    for (size_t i = 0; i < wanted; ++i)
      best.push_back({score(order[i]), static_cast<int32_t>(first + order[i] / size),
                      static_cast<int32_t>(order[i] % size)});
  }

  struct BeamChoice {
    std::vector<float> scores;
    std::vector<int32_t> tokens, rows;
    void add(float score, int32_t token, int32_t row) {
      scores.push_back(score);
      tokens.push_back(token);
      rows.push_back(row);
    }
  };

  // The score that a text may still reach. As onnxruntime reads it: the best of 2 * beams from
  // text * beams on, in the list of all texts' candidates.
  float reachable(const std::vector<Candidate>& all, size_t text) const {
    const auto beams = static_cast<size_t>(beams_);
    float most = std::numeric_limits<float>::lowest();
    for (size_t i = text * beams; i < std::min((text + 2) * beams, all.size()); ++i)
      most = std::max(most, all[i].score);
    return most;
  }

  // `all`: the candidates of all texts.
  void choose_beams(const std::vector<Candidate>& all, size_t text, BeamHypotheses& found,
                    BeamChoice& choice) const {
    const auto beams = static_cast<size_t>(beams_), wanted = (text + 1) * beams;
    const size_t each = all.size() / static_cast<size_t>(texts_);
    if (!found.done) {
      for (size_t i = 0; i < each && choice.rows.size() < wanted; ++i) {
        const auto& [score, row, token] = all[text * each + i];
        if (end_ < 0 || token != end_)
          choice.add(score, token, row);
        else if (i < beams)
          found.add(tokens_[static_cast<size_t>(row)], score);
      }
      const auto length = tokens_[text * beams].size();
      if (found.is_full())
        found.done = node_.attr("early_stopping", 0) != 0 ||
                     !found.can_improve(reachable(all, text), length);
    }
    while (choice.rows.size() < wanted) choice.add(0.0f, pad_, static_cast<int32_t>(text * beams));
  }

  std::vector<PassedValue> beam_search() {
    const int64_t returned = node_.integer(4, 1);
    ORTM_CHECK(returned >= 1 && returned <= beams_, "[run] num_return_sequences must be from 1 to ",
               beams_, ", but found ", returned);
    std::vector<BeamHypotheses> found(static_cast<size_t>(texts_),
                                      {static_cast<size_t>(beams_), node_.number(5, 1.0f)});
    std::vector<float> sums(static_cast<size_t>(rows()), -1e9f);
    for (size_t row = 0; row < sums.size(); row += static_cast<size_t>(beams_)) sums[row] = 0.0f;
    const auto done = [](const BeamHypotheses& each) { return each.done; };
    for (int64_t length = length_; length < most_; ++length) {
      std::vector<std::vector<float>> all = scores(true);
      for (size_t row = 0; row < all.size(); ++row)
        for (float& score : all[row]) score += sums[row];
      keep_scores(all);
      std::vector<Candidate> best;
      for (int64_t text = 0; text < texts_; ++text) add_candidates(all, text, best);
      BeamChoice choice;
      for (size_t text = 0; text < found.size(); ++text)
        choose_beams(best, text, found[text], choice);
      sums = std::move(choice.scores);
      std::vector<TokenRow> before = tokens_;
      for (size_t row = 0; row < tokens_.size(); ++row)
        tokens_[row] = before[static_cast<size_t>(choice.rows[row])];
      append(choice.tokens);
      if (std::all_of(found.begin(), found.end(), done)) break;
      if (length + 1 < most_) decoder_->choose(choice.rows);
    }
    for (size_t row = 0; row < tokens_.size(); ++row)
      if (BeamHypotheses& text = found[row / static_cast<size_t>(beams_)]; !text.done)
        text.add(tokens_[row], sums[row]);
    return beam_outputs(found, returned);
  }

  void keep_scores(const std::vector<std::vector<float>>& all) {
    if (node_.node().outputs.size() < 3 || node_.node().outputs[2].empty()) return;
    kept_size_ = static_cast<int64_t>(all[0].size());
    for (const std::vector<float>& row : all) kept_.insert(kept_.end(), row.begin(), row.end());
  }

  PassedValue floats(const Sizes& sizes, const std::vector<float>& numbers) {
    PassedTensor tensor = run_.allocate(DType::Float32, sizes);
    auto* to = static_cast<float*>(const_cast<void*>(tensor.view.data));  // NOLINT: its owner's
    std::fill_n(std::copy(numbers.begin(), numbers.end(), to),
                element_count(sizes) - std::ssize(numbers), 0.0f);
    return {ValueForm::Kind::Tensor, {std::move(tensor)}};
  }

  std::vector<PassedValue> beam_outputs(const std::vector<BeamHypotheses>& found,
                                        int64_t returned) {
    static const TokenRow kNone;
    std::vector<const TokenRow*> sequences;
    std::vector<float> best;
    for (const BeamHypotheses& text : found)
      for (size_t i = 0; i < static_cast<size_t>(returned); ++i) {
        const bool has = i < text.found().size();
        sequences.push_back(has ? &text.found()[i].tokens : &kNone);
        best.push_back(has ? text.found()[i].score : 0.0f);
      }
    return {padded({texts_, returned, most_}, sequences), floats({texts_, returned}, best),
            floats({most_ - length_, texts_, beams_, kept_size_}, kept_)};
  }

  SegmentedRun& run_;
  const SearchNode node_;
  const bool searches_beams_;
  const int64_t beams_;
  int64_t texts_ = 0, length_ = 0, most_ = 0;
  ModelKind kind_ = ModelKind::Gpt;
  std::unique_ptr<SearchDecoder> decoder_;
  int32_t end_ = -1, pad_ = -1;
  ScoreRules rules_;
  std::optional<SampleRules> samples_;
  std::minstd_rand0 engine_;
  std::vector<int32_t> allowed_, allowed_first_, present_;
  std::vector<TokenRow> tokens_;  // by row
  std::vector<int32_t> next_tokens_, positions_, next_positions_, mask_;
  bool is_first_ = true;
  std::vector<float> kept_;  // scores of all steps
  int64_t kept_size_ = 0;
};

}  // namespace

bool is_search(const OnnxNode& node) {
  return node.domain == "com.microsoft" &&
         (node.op == "GreedySearch" || node.op == "BeamSearch" || node.op == "WhisperBeamSearch" ||
          node.op == "Sampling");
}

std::vector<PassedValue> run_search(SegmentedRun& run, const Segment::Outcome& outcome,
                                    const SegmentedRun::Values& values) {
  SegmentedRun::Values dense = values;
  for (const std::string& name : outcome.cut->node.inputs)
    if (const auto value = dense.find(name); value != dense.end())
      for (PassedTensor& tensor : value->second.tensors) tensor = run.row_major(tensor);
  return SearchStep(run, outcome, dense).run();
}

}  // namespace ortmodule
