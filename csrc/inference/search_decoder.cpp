#include "inference/search_decoder.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "inference/check_feeds.h"

namespace ortmodule {

const float* SearchDecoder::scores_of(int64_t row) const {
  const auto* all = static_cast<const float*>(scores_.tensors.at(0).view.data);
  return all + ((row + 1) * step_length_ - 1) * size_;
}

std::vector<PassedValue> SearchDecoder::run_part(size_t which, std::vector<PassedValue> inputs) {
  std::vector<PassedValue> outputs = run_body(run_, outcome_, values_, which, std::move(inputs));
  for (PassedValue& output : outputs) {
    ORTM_CHECK(output.kind == ValueForm::Kind::Tensor,
               "[run] encoders and decoders of a search must return tensors");
    output.tensors.at(0) = run_.row_major(std::move(output.tensors.at(0)));
  }
  return outputs;
}

PassedValue SearchDecoder::tensor(const std::vector<int32_t>& numbers, int64_t rows) {
  PassedTensor made =
      run_.allocate(DType::Int32, {rows, static_cast<int64_t>(numbers.size()) / rows});
  std::memcpy(const_cast<void*>(made.view.data), numbers.data(),  // NOLINT: its owner's
              numbers.size() * sizeof(int32_t));
  return {ValueForm::Kind::Tensor, {std::move(made)}};
}

PassedValue SearchDecoder::zeros(DType dtype, const Sizes& sizes) {
  PassedTensor made = run_.allocate(dtype, sizes);
  std::memset(const_cast<void*>(made.view.data), 0,  // NOLINT: its owner's
              static_cast<size_t>(element_count(sizes)) * size_of(dtype));
  return {ValueForm::Kind::Tensor, {std::move(made)}};
}

PassedValue SearchDecoder::rows_of(const PassedValue& value, size_t axis, int64_t count,
                                   const std::vector<int32_t>& rows) {
  const HostTensorView from = value.tensors.at(0).view;
  ORTM_CHECK(from.sizes.size() > axis && from.sizes[axis] == count && from.strides.empty(),
             "[run] what goes into and comes out of an encoder or decoder of a search must have ",
             count, " rows in dimension ", axis, ", but found sizes ", sizes_text(from.sizes));
  Sizes sizes = from.sizes;
  sizes[axis] = static_cast<int64_t>(rows.size());
  PassedTensor chosen = run_.allocate(from.dtype, sizes);
  size_t outer = 1, row = size_of(from.dtype);
  for (size_t d = 0; d < axis; ++d) outer *= static_cast<size_t>(sizes[d]);
  for (size_t d = axis + 1; d < sizes.size(); ++d) row *= static_cast<size_t>(sizes[d]);
  auto* to = static_cast<char*>(const_cast<void*>(chosen.view.data));  // NOLINT: its owner's
  const auto* data = static_cast<const char*>(from.data);
  for (size_t part = 0; part < outer; ++part)
    for (const int32_t source : rows) {
      const size_t place = part * static_cast<size_t>(count) + static_cast<size_t>(source);
      std::memcpy(to, data + place * row, row);
      to += row;
    }
  return {ValueForm::Kind::Tensor, {std::move(chosen)}};
}

void SearchDecoder::keep_scores(PassedValue scores) {
  scores_ = std::move(scores);
  const HostTensorView& view = scores_.tensors.at(0).view;
  ORTM_CHECK(view.dtype == DType::Float32 && view.sizes.size() == 3 && view.sizes[0] == rows_ &&
                 view.sizes[1] > 0 && view.sizes[2] > 0 && view.strides.empty(),
             "[run] scores of a decoder must be float32 [", rows_, ", length, tokens], but found ",
             name_of(view.dtype), " with ", view.sizes.size(), " dimensions");
  step_length_ = view.sizes[1];
  size_ = view.sizes[2];
}

namespace {

class DecoderAlone : public SearchDecoder {
 public:
  using SearchDecoder::SearchDecoder;

  void step(const SearchInput& input) override {
    const bool first = past_.empty();
    const size_t which = first && outcome_.bodies.size() > 1 ? 1 : 0;
    if (first) start(which);
    std::vector<PassedValue> inputs{tensor(input.tokens, rows_), tensor(input.positions, rows_),
                                    tensor(input.mask, rows_)};
    std::move(past_.begin(), past_.end(), std::back_inserter(inputs));
    std::vector<PassedValue> outputs = run_part(which, std::move(inputs));
    past_.assign(std::make_move_iterator(outputs.begin() + 1),
                 std::make_move_iterator(outputs.end()));
    keep_scores(std::move(outputs.at(0)));
  }

  void choose(const std::vector<int32_t>& rows) override {
    for (PassedValue& value : past_) value = rows_of(value, 1, rows_, rows);
  }

 private:
  static constexpr size_t kFirstPast = 3;  // of the decoder's inputs

  // An empty past.
  void start(size_t which) {
    for (size_t i = kFirstPast; i < graph(which).inputs.size(); ++i) {
      const OnnxType& type = graph(which).inputs[i].type;
      const auto size = [&](size_t axis) { return std::get<int64_t>(type.dims->at(axis)); };
      past_.push_back(zeros(type.dtype, {2, rows_, size(2), 0, size(4)}));
    }
  }

  std::vector<PassedValue> past_;
};

// Inputs of the decoder: tokens, the texts' mask if there is one, perhaps what the encoder made of
// the texts, keys and values of the tokens so far by layer, then those of the texts. An encoder
// that gets the first tokens, too, makes the first step itself.
class DecoderOfEncoded : public SearchDecoder {
 public:
  using SearchDecoder::SearchDecoder;

  void encode(const EncodedTexts& encoded) {
    std::vector<PassedValue> inputs{encoded.texts};
    std::vector<int32_t> of_beams;
    for (int64_t row = 0; row < rows_; ++row)
      of_beams.push_back(static_cast<int32_t>(row / encoded.beams));
    if (encoded.mask) {
      inputs.push_back(tensor(*encoded.mask, encoded.count));
      mask_ = rows_of(inputs.back(), 0, encoded.count, of_beams);
    }
    const bool steps = graph(kEncoder).inputs.size() > inputs.size();
    if (steps) inputs.push_back(tensor(encoded.first_tokens, encoded.count));
    std::vector<PassedValue> outputs = run_part(kEncoder, std::move(inputs));
    for (PassedValue& output : outputs) output = rows_of(output, 0, encoded.count, of_beams);
    auto next = outputs.begin();
    if (steps) {
      first_scores_ = std::move(*next++);
      hidden_ = std::move(*next++);
      for (size_t i = 0; i < past_count(); ++i) past_.push_back(std::move(*next++));
    } else {
      start();
    }
    of_texts_.assign(std::make_move_iterator(next), std::make_move_iterator(outputs.end()));
  }

  void step(const SearchInput& input) override {
    if (first_scores_) {
      keep_scores(std::move(*first_scores_));
      first_scores_.reset();
      return;
    }
    std::vector<PassedValue> inputs{takes_one_token() ? tensor(input.tokens, rows_)
                                                      : whole_sequences(input)};
    if (mask_) inputs.push_back(*mask_);
    if (first_past() > inputs.size()) inputs.push_back(hidden_);
    std::move(past_.begin(), past_.end(), std::back_inserter(inputs));
    inputs.insert(inputs.end(), of_texts_.begin(), of_texts_.end());
    std::vector<PassedValue> outputs = run_part(kDecoder, std::move(inputs));
    past_.assign(std::make_move_iterator(outputs.begin() + 1),
                 std::make_move_iterator(outputs.end()));
    keep_scores(std::move(outputs.at(0)));
  }

  // Beams of one text share what the encoder made of it.
  void choose(const std::vector<int32_t>& rows) override {
    for (PassedValue& value : past_) value = rows_of(value, 0, rows_, rows);
  }

 private:
  static constexpr size_t kDecoder = 0, kEncoder = 1;  // of the outcome's bodies

  size_t past_count() const { return graph(kDecoder).outputs.size() - 1; }
  size_t first_past() const { return graph(kDecoder).inputs.size() - 2 * past_count(); }
  bool takes_one_token() const {
    const OnnxType& type = graph(kDecoder).inputs[0].type;
    if (!type.dims || type.dims->size() != 2) return false;
    const auto* length = std::get_if<int64_t>(&type.dims->back());
    return length && *length == 1;
  }

  PassedValue whole_sequences(const SearchInput& input) {
    std::vector<int32_t> tokens;
    for (const TokenRow& row : input.sequences) tokens.insert(tokens.end(), row.begin(), row.end());
    return tensor(tokens, rows_);
  }

  void start() {
    for (size_t i = first_past(); i < first_past() + past_count(); ++i) {
      const OnnxType& type = graph(kDecoder).inputs[i].type;
      const auto size = [&](size_t axis) { return std::get<int64_t>(type.dims->at(axis)); };
      past_.push_back(zeros(type.dtype, {rows_, size(1), 0, size(3)}));
    }
  }

  std::optional<PassedValue> first_scores_, mask_;
  PassedValue hidden_;
  std::vector<PassedValue> past_, of_texts_;
};

}  // namespace

std::unique_ptr<SearchDecoder> decoder_alone(SegmentedRun& run, const Segment::Outcome& outcome,
                                             const SegmentedRun::Values& values, int64_t rows) {
  return std::make_unique<DecoderAlone>(run, outcome, values, rows);
}

std::unique_ptr<SearchDecoder> decoder_of_encoded(SegmentedRun& run,
                                                  const Segment::Outcome& outcome,
                                                  const SegmentedRun::Values& values,
                                                  const EncodedTexts& encoded) {
  auto decoder =
      std::make_unique<DecoderOfEncoded>(run, outcome, values, encoded.count * encoded.beams);
  decoder->encode(encoded);
  return decoder;
}

}  // namespace ortmodule
