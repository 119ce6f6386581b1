// com.microsoft's GreedySearch, BeamSearch and Sampling: loops over a decoder, which gets the
// tokens that the last step chose and what it returned of the past. Scores, ties and the end of a
// search are onnxruntime's.
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
#include "inference/segmented_run.h"

namespace ortmodule {
namespace {

constexpr size_t kFirstPast = 3;  // of the decoder's inputs

/// Operands and attributes of a search.
class SearchNode {
 public:
  SearchNode(const OnnxNode& node, const SegmentedRun::Values& values)
      : node_(node), values_(values) {}

  const OnnxNode& node() const { return node_; }
  const HostTensorView* optional(size_t i) const {
    if (i >= node_.inputs.size() || node_.inputs[i].empty()) return nullptr;
    const auto value = values_.find(node_.inputs[i]);
    ORTM_CHECK(value != values_.end() && value->second.tensors.size() == 1, "[run] ", node_.op,
               " '", node_.name, "' must have a tensor as operand ", i);
    return &value->second.tensors[0].view;
  }
  template <class T>
  std::vector<T> list(size_t i, DType dtype) const {
    const HostTensorView* view = optional(i);
    if (!view) return {};
    ORTM_CHECK(view->dtype == dtype, "[run] operand ", i, " of ", node_.op, " '", node_.name,
               "' must be ", name_of(dtype), ", but found ", name_of(view->dtype));
    const T* data = static_cast<const T*>(view->data);
    return {data, data + element_count(view->sizes)};
  }
  std::vector<int32_t> integers(size_t i) const { return list<int32_t>(i, DType::Int32); }
  template <class T>
  T first(const std::vector<T>& values, T fallback) const {
    return values.empty() ? fallback : values.front();
  }
  int64_t integer(size_t i, int32_t fallback) const { return first(integers(i), fallback); }
  float number(size_t i, float fallback) const {
    return first(list<float>(i, DType::Float32), fallback);
  }
  int64_t attr(std::string_view name, int64_t fallback) const {
    for (const auto& [key, value] : node_.attrs)
      if (const auto* number = std::get_if<int64_t>(&value); number && key == name) return *number;
    return fallback;
  }
  float real_attr(std::string_view name, double fallback) const {
    for (const auto& [key, value] : node_.attrs)
      if (const auto* number = std::get_if<double>(&value); number && key == name)
        return static_cast<float>(*number);
    return static_cast<float>(fallback);
  }

 private:
  const OnnxNode& node_;
  const SegmentedRun::Values& values_;
};

/// The decoder with what it keeps from step to step. A row is a text, or one of its beams.
class SearchDecoder {
 public:
  SearchDecoder(SegmentedRun& run, const Segment::Outcome& outcome,
                const SegmentedRun::Values& values, int64_t rows)
      : run_(run), outcome_(outcome), values_(values), rows_(rows) {}

  /// Scores [rows, size] of the token behind the last of each row; `tokens` [rows, count]. `mask`:
  /// by token so far; `positions` [rows, count].
  const float* step(const std::vector<int32_t>& tokens, const std::vector<int32_t>& positions,
                    const std::vector<int32_t>& mask) {
    const auto count = static_cast<int64_t>(tokens.size()) / rows_;
    const bool first = past_.empty();
    const size_t which = first && outcome_.bodies.size() > 1 ? 1 : 0;
    if (first) start(which);
    std::vector<PassedValue> inputs{tensor(tokens, count), tensor(positions, count),
                                    tensor(mask, static_cast<int64_t>(mask.size()) / rows_)};
    std::move(past_.begin(), past_.end(), std::back_inserter(inputs));
    std::vector<PassedValue> outputs = run_body(run_, outcome_, values_, which, std::move(inputs));
    for (const PassedValue& output : outputs)
      ORTM_CHECK(output.kind == ValueForm::Kind::Tensor, "[run] a decoder must return tensors");
    past_.assign(std::make_move_iterator(outputs.begin() + 1),
                 std::make_move_iterator(outputs.end()));
    scores_ = std::move(outputs.at(0));
    const HostTensorView& view = scores_.tensors.at(0).view;
    ORTM_CHECK(view.dtype == DType::Float32 && view.sizes.size() == 3 && view.sizes[0] == rows_ &&
                   view.sizes[1] == count && view.sizes[2] > 0 && view.strides.empty(),
               "[run] scores of a decoder must be float32 [", rows_, ", ", count,
               ", tokens], but found ", name_of(view.dtype), " with ", view.sizes.size(),
               " dimensions");
    size_ = view.sizes[2];
    step_length_ = count;
    return static_cast<const float*>(view.data);
  }
  /// Those of a row, of the last step.
  const float* scores_of(const float* all, int64_t row) const {
    return all + ((row + 1) * step_length_ - 1) * size_;
  }
  int64_t size() const { return size_; }

  /// Row i goes on with the past of row rows[i].
  void choose(const std::vector<int32_t>& rows) {
    for (PassedValue& value : past_) {
      const HostTensorView from = value.tensors.at(0).view;
      ORTM_CHECK(from.sizes.size() == 5 && from.sizes[1] == rows_ && from.strides.empty(),
                 "[run] what a decoder returns of the past must be [2, ", rows_,
                 ", heads, length, size]");
      PassedTensor chosen = run_.allocate(from.dtype, from.sizes);
      const auto row =
          static_cast<size_t>(element_count(from.sizes) / 2 / rows_) * size_of(from.dtype);
      auto* to = static_cast<char*>(const_cast<void*>(chosen.view.data));  // NOLINT: its owner's
      const auto* data = static_cast<const char*>(from.data);
      for (size_t half = 0; half < 2; ++half)
        for (const int32_t source : rows) {
          std::memcpy(to, data + (half * rows.size() + static_cast<size_t>(source)) * row, row);
          to += row;
        }
      value.tensors[0] = std::move(chosen);
    }
  }

 private:
  PassedValue tensor(const std::vector<int32_t>& numbers, int64_t columns) {
    PassedTensor made = run_.allocate(DType::Int32, {rows_, columns});
    std::memcpy(const_cast<void*>(made.view.data), numbers.data(),  // NOLINT: its owner's
                numbers.size() * sizeof(int32_t));
    return {ValueForm::Kind::Tensor, {std::move(made)}};
  }

  // An empty past.
  void start(size_t which) {
    const OnnxGraph& graph = *outcome_.bodies.at(which)->part()->graph;
    for (size_t i = kFirstPast; i < graph.inputs.size(); ++i) {
      const OnnxType& type = graph.inputs[i].type;
      const auto size = [&](size_t axis) { return std::get<int64_t>(type.dims->at(axis)); };
      past_.push_back(
          {ValueForm::Kind::Tensor, {run_.allocate(type.dtype, {2, rows_, size(2), 0, size(4)})}});
    }
  }

  SegmentedRun& run_;
  const Segment::Outcome& outcome_;
  const SegmentedRun::Values& values_;
  int64_t rows_, size_ = 0, step_length_ = 0;
  std::vector<PassedValue> past_;
  PassedValue scores_;
};

class SearchStep {
 public:
  SearchStep(SegmentedRun& run, const Segment::Outcome& outcome, const SegmentedRun::Values& values)
      : run_(run),
        node_(outcome.cut->node, values),
        searches_beams_(outcome.cut->node.op == "BeamSearch"),
        beams_(searches_beams_ ? node_.integer(3, 1) : 1) {
    const HostTensorView* ids = node_.optional(0);
    ORTM_CHECK(ids && ids->sizes.size() == 2 && element_count(ids->sizes) > 0, "[run] tokens of ",
               outcome.cut->node.op, " must be [batch, length]");
    texts_ = ids->sizes[0];
    length_ = ids->sizes[1];
    ORTM_CHECK(beams_ >= 1 && beams_ <= 1024, "[run] num_beams must be from 1 to 1024, but found ",
               beams_);
    decoder_.emplace(run, outcome, values, texts_ * beams_);
    end_ = static_cast<int32_t>(node_.attr("eos_token_id", -1));
    pad_ = static_cast<int32_t>(node_.attr("pad_token_id", -1));
    most_ = node_.integer(1, 0);
    constexpr int64_t kMostTokens = 4096 * 16;
    ORTM_CHECK(most_ > length_ && most_ <= kMostTokens, "[run] max_length must be above ", length_,
               " and at most ", kMostTokens, ", but found ", most_);
    read_rules();
    read_tokens();
  }

  std::vector<PassedValue> run() { return searches_beams_ ? beam_search() : greedy_search(); }

 private:
  int64_t rows() const { return texts_ * beams_; }

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

  // The tokens of each row, their positions, which padding has none of, and a mask: given, or of
  // what is no padding.
  void read_tokens() {
    const std::vector<int32_t> ids = node_.integers(0);
    std::vector<int32_t> mask = node_.integers(searches_beams_ ? 9 : 6);
    ORTM_CHECK(mask.empty() || mask.size() == ids.size(),
               "[run] attention_mask must be as large as the tokens");
    if (mask.empty())
      for (const int32_t id : ids) mask.push_back(id == pad_ ? 0 : 1);
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
  }

  // Scores of all rows, after the rules; `logarithms` of their shares.
  std::vector<std::vector<float>> scores(bool logarithms) {
    run_.check_terminate(node_.node());
    const bool first = is_first_;
    is_first_ = false;
    const float* all = decoder_->step(next_tokens_, positions_, mask_);
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
      const float* from = decoder_->scores_of(all, row);
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
  std::optional<SearchDecoder> decoder_;
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
         (node.op == "GreedySearch" || node.op == "BeamSearch" || node.op == "Sampling");
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
