// TfIdfVectorizer: how often each n-gram of a pool occurs in each row of integers, or a weight of
// it. ONNX's operators document has the meaning of the attributes; an n-gram may skip elements.

#include <algorithm>

#include "base/error.h"
#include "ops/infer_rules.h"
#include "ops/onnx_ml.h"
#include "ops/op_def.h"

namespace ortmodule {
namespace {

void infer_tf_idf(InferContext& c) {
  Dims dims = c.input(0).dims;
  if (dims.size() > 2) c.fail(str("x must have rank 0, 1 or 2, but found ", dims.size()));
  const DimExpr size = c.attrs().dim("size");
  c.set(0, DType::Float32, dims.size() == 2 ? Dims{dims.at(0), size} : Dims{size});
}

void export_tf_idf(const OnnxRuleContext& c) {
  c.set(0, "TfIdfVectorizer", {c.in(0)},
        c.pick({"mode", "min_gram_length", "max_gram_length", "max_skip_count", "ngram_counts",
                "ngram_indexes", "pool_int64s", "weights"}));
}

REGISTER_OP(TfIdfVectorizer, {.inputs = {"x"},
                              .outputs = {"y"},
                              .kind = OpKind::Data,
                              .infer = infer_tf_idf,
                              .onnx = {export_tf_idf}});

// Where the n-grams of each length begin in the pool, the end of the pool behind them.
std::vector<int64_t> pool_starts(OnnxCall& c, int64_t pool) {
  std::vector<int64_t> starts = c.integers("ngram_counts");
  starts.push_back(pool);
  for (size_t i = 0; i < starts.size(); ++i)
    if (starts[i] < 0 || starts[i] > pool || (i > 0 && starts[i] < starts[i - 1]))
      c.refuse(
          str("ngram_counts must ascend within the pool of ", pool, ", but found ", starts[i]));
  return starts;
}

Attr number_list(const std::vector<int64_t>& values) { return Dims(values.begin(), values.end()); }

// The grams' elements; texts by their numbers.
std::vector<int64_t> pool_of(OnnxCall& c) {
  const std::vector<std::string> texts = c.strings("pool_strings");
  if (texts.empty() == c.has_texts(0)) c.refuse("x and the pool must both be strings, or integers");
  if (texts.empty()) return ml_exact_integers(c, "pool_int64s");
  std::vector<int64_t> pool;
  for (const std::string& text : texts) pool.push_back(c.text_number(text));
  return pool;
}

Values import_tf_idf(OnnxCall& c) {
  Value* x = c.in(0);
  if (x->dtype != DType::Int64 && x->dtype != DType::Int32) c.refuse("x must be int32 or int64");
  const std::vector<int64_t> pool = pool_of(c), indices = c.integers("ngram_indexes");
  const std::vector<int64_t> starts = pool_starts(c, static_cast<int64_t>(pool.size()));
  int64_t grams = 0;
  for (size_t n = 1; n < starts.size(); ++n)
    grams += (starts[n] - starts[n - 1]) / static_cast<int64_t>(n);
  constexpr int64_t kMostSize = int64_t{1} << 26;
  const auto [least, most] = std::minmax_element(indices.begin(), indices.end());
  if (static_cast<int64_t>(indices.size()) != grams || grams == 0 || *least < 0 ||
      *most >= kMostSize)
    c.refuse(str("ngram_indexes must have a place below 2^26 for each of ", grams,
                 " n-grams, but found ", indices.size()));
  const int64_t size = *most + 1;
  const std::vector<double> weights = c.numbers("weights");
  if (!weights.empty() && weights.size() != indices.size())
    c.refuse(str("weights must be ", indices.size(), ", but found ", weights.size()));
  const std::string mode = c.string("mode", "");
  if (mode != "TF" && mode != "IDF" && mode != "TFIDF")
    c.refuse(str("mode must be TF, IDF or TFIDF, but found '", mode, "'"));
  const int64_t shortest = c.integer("min_gram_length"), longest = c.integer("max_gram_length"),
                skip = c.integer("max_skip_count");
  if (shortest < 1 || longest < shortest || skip < 0)
    c.refuse("lengths and skips of n-grams must be positive");
  Attrs attrs{{"mode", mode},
              {"size", DimExpr(size)},
              {"min_gram_length", shortest},
              {"max_gram_length", longest},
              {"max_skip_count", skip},
              {"ngram_counts", number_list({starts.begin(), starts.end() - 1})},
              {"ngram_indexes", number_list(indices)},
              {"pool_int64s", number_list(pool)}};
  if (!weights.empty()) attrs.set("weights", weights);
  return {c.emit("TfIdfVectorizer", {c.cast(x, DType::Int64)}, std::move(attrs))};
}

REGISTER_ONNX({{"TfIdfVectorizer", 9, import_tf_idf, nullptr, "", nullptr, reads_texts()}});

}  // namespace
}  // namespace ortmodule
