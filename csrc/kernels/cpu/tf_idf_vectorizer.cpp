// TfIdfVectorizer: counts of n-grams, by a tree of their elements that is made once. Bytes moved: x
// once for each start of an n-gram, y once.
#include <unordered_map>

#include "kernels/cpu/cpu_kernel.h"

namespace ortmodule {
inline namespace ORTM_ISA {
namespace {

struct GramNode {
  int64_t column = -1;  // of the n-gram that ends here
  std::unordered_map<int64_t, int32_t> next;
};

struct Grams {
  std::vector<GramNode> nodes{GramNode()};  // the first is the root
  int64_t shortest = 1, longest = 1, skips = 0;
  bool counts = true;          // else whether there is one
  std::vector<float> weights;  // by column; empty: ones

  explicit Grams(const Attrs& attrs)
      : shortest(attrs.integer("min_gram_length")),
        longest(attrs.integer("max_gram_length")),
        skips(attrs.integer("max_skip_count")),
        counts(attrs.string("mode", "TF") != "IDF") {
    const std::vector<int64_t> pool = attrs.integers("pool_int64s"),
                               starts = attrs.integers("ngram_counts"),
                               columns = attrs.integers("ngram_indexes");
    if (attrs.string("mode", "TF") != "TF" && attrs.has("weights")) {
      const std::vector<double> by_gram = attrs.numbers("weights");
      weights.resize(static_cast<size_t>(attrs.integer("size")));
      for (size_t i = 0; i < columns.size(); ++i)
        weights[static_cast<size_t>(columns[i])] = static_cast<float>(by_gram[i]);
    }
    size_t gram = 0;
    for (size_t n = 1; n <= starts.size(); ++n) {
      const auto first = static_cast<size_t>(starts[n - 1]);
      const auto end = n < starts.size() ? static_cast<size_t>(starts[n]) : pool.size();
      for (size_t at = first; at + n <= end; at += n, ++gram)
        if (static_cast<int64_t>(n) >= shortest && static_cast<int64_t>(n) <= longest)
          add(pool.data() + at, n, columns[gram]);
    }
  }

  void add(const int64_t* elements, size_t n, int64_t column) {
    size_t node = 0;
    for (size_t i = 0; i < n; ++i) {
      const auto [place, is_new] =
          nodes[node].next.try_emplace(elements[i], static_cast<int32_t>(nodes.size()));
      node = static_cast<size_t>(place->second);
      if (is_new) nodes.emplace_back();  // may move the nodes
    }
    nodes[node].column = column;
  }

  void count_from(const int64_t* row, int64_t length, int64_t start, int64_t step, int64_t least,
                  float* y) const {
    size_t node = 0;
    int64_t n = 1;
    for (int64_t at = start; at < length && n <= longest; at += step, ++n) {
      const auto found = nodes[node].next.find(row[at]);
      if (found == nodes[node].next.end()) return;
      node = static_cast<size_t>(found->second);
      const int64_t column = nodes[node].column;
      if (n >= least && column >= 0) y[column] = counts ? y[column] + 1 : 1;
    }
  }

  void run(const int64_t* row, int64_t length, float* y, int64_t size) const {
    std::fill_n(y, size, 0.0f);
    int64_t least = shortest;
    for (int64_t step = 1; step <= skips + 1 && step <= std::max<int64_t>(length, 1); ++step) {
      for (int64_t start = 0; start + step * (least - 1) < length; ++start)
        count_from(row, length, start, step, least, y);
      // Steps do not matter to n-grams of one element, which are counted once.
      if (least == 1 && ++least > longest) break;
    }
    for (int64_t i = 0; i < size && !weights.empty(); ++i) y[i] *= weights[static_cast<size_t>(i)];
  }
};

void run_tf_idf(const KernelArgs& args) {
  const Grams& grams = *static_cast<const Grams*>(args.prepared);
  const TensorView &x = args.in[0], &y = args.out[0];
  const int64_t rows = x.rank == 2 ? x.sizes[0] : 1, size = y.sizes[y.rank - 1];
  const int64_t length = x.rank == 0 ? 1 : x.sizes[x.rank - 1];
  parallel_ranges(
      args.context, rows, grain_for(16 * (length + size)), [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row)
          grams.run(x.as<int64_t>() + row * length, length, y.as<float>() + row * size, size);
      });
}

REGISTER_CPU_KERNEL({.op = "TfIdfVectorizer",
                     .name = "tf_idf_vectorizer_cpu",
                     .dtypes = {DType::Int64},
                     .run = run_tf_idf,
                     .prepare = [](const StepFacts& facts) -> std::shared_ptr<const void> {
                       return std::make_shared<Grams>(facts.node().attrs);
                     }});

}  // namespace
}  // namespace ORTM_ISA
}  // namespace ortmodule
