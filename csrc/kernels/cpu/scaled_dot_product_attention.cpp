// ScaledDotProductAttention and its gradient, head by head, in pieces of a few rows of scores that
// stay in cache: products by panel_product.h, what lies between them by attention_rows.h. Forward
// keeps the largest score and the inverse of the sum of each row; from them backward makes any
// piece of the probabilities again (Dao et al., "FlashAttention", 2022) and goes over blocks of
// keys. How heads are cut follows from the shape alone, so that the sums have one order, and each
// head belongs to one thread, in the gradient with all that share its keys. Masked parts of causal
// scores are left out tile by tile. 16-bit operands are widened as they are packed. Bytes moved:
// operands and results once, scores never. For so few queries as a step of generating text has,
// keys and values are read as they lie. Inference reads no key behind the last one that a mask lets
// see, so that a cache costs what it holds and its unwritten rows may be anything.
#include <array>
#include <limits>

#include "kernels/cpu/attention_rows.h"
#include "kernels/cpu/streamed_product.h"

namespace ortmodule {
inline namespace ORTM_ISA {
namespace {

/// Which operand is which, in forward and in the gradient.
struct Operands {
  size_t q, k, v, mask;
};
constexpr Operands kForward{0, 1, 2, 3}, kGradient{1, 2, 3, 6};
enum GradientOperand : size_t { kDy = 0, kY = 4, kStatistics = 5 };

/// Rows of scores that are held at a time, at most; they are fewer where rows are long.
constexpr int64_t kMostRows = 8 * kTileRows, kHeldScores = 1 << 15;
/// Keys whose gradients are summed while all queries pass by.
constexpr int64_t kKeyBlock = 256;
/// For so many queries of a head, keys and values are read as they lie.
constexpr int64_t kStreamedQueries = 3;
/// Multiplications worth a thread.
constexpr double kLeastWork = 1 << 20;

struct Shape {
  int64_t batch = 1, heads = 1, key_heads = 1, queries = 0, keys = 0, width = 0, value_width = 0;
  int64_t rows = 0;       // of a piece
  int64_t key_block = 0;  // keys of a piece
  int64_t slices = 1;     // of the heads, each with scratch of its own
  bool gradient = false;
  /// Few queries that see all keys. Not by whether their statistics are kept: with those computed
  /// again in backward, y would have other bits.
  bool streams = false;

  Shape(const StepFacts& facts, bool is_gradient) : gradient(is_gradient) {
    const Operands& at = gradient ? kGradient : kForward;
    const auto sizes = [&](size_t i) -> const Sizes& { return facts.inputs[i].layout.sizes; };
    const Sizes& q = sizes(at.q);
    const size_t rank = q.size();
    batch = rank == 4 ? q[0] : 1;
    heads = q[rank - 3];
    key_heads = sizes(at.k)[rank - 3];
    queries = q[rank - 2];
    width = q[rank - 1];
    keys = sizes(at.k)[rank - 2];
    value_width = sizes(at.v)[rank - 1];
    streams = !gradient && queries <= kStreamedQueries && !facts.node().attrs.flag("is_causal");
    // Rows of 16-bit operands take their delta from themselves, and so must be whole.
    const bool whole = !gradient || size_of(facts.inputs[at.q].dtype) == 2;
    key_block = whole ? keys : std::min(keys, kKeyBlock);
    rows = std::clamp(kHeldScores / std::max<int64_t>(key_block, 1) / kTileRows * kTileRows,
                      2 * kTileRows, kMostRows);
    rows = std::min(rows, queries);
    const double work = static_cast<double>(all_heads() * queries) *
                        static_cast<double>(keys * (width + value_width));
    const auto worth = static_cast<int64_t>(work / kLeastWork) + 1;
    slices = std::clamp<int64_t>(std::min(worth, facts.threads), 1, std::max<int64_t>(units(), 1));
  }
  int64_t all_heads() const { return batch * heads; }
  /// Heads of queries that share one of keys.
  int64_t sharers() const { return key_heads == 0 ? 1 : heads / key_heads; }
  /// What slices are made of: heads of queries, or in the gradient of keys, whose sums are over
  /// their queries.
  int64_t units() const { return gradient ? batch * key_heads : all_heads(); }
  bool has_key_blocks() const { return key_block < keys; }
};

/// Places of the scratch of a slice, in elements.
template <class C>
struct Places {
  int64_t end = 0;
  int64_t scores = 0, dscores = 0, q = 0, dy = 0, rows = 0;
  int64_t k_columns = 0, v_columns = 0, k_panels = 0, v_panels = 0, q_panels = 0, dy_panels = 0;
  int64_t dq = 0, dk = 0, dv = 0;

  explicit Places(const Shape& s) {
    const int64_t keys = s.key_block;
    const int64_t width = whole_vectors<C>(s.width), value_width = whole_vectors<C>(s.value_width);
    scores = take(s.rows * whole_vectors<C>(keys));
    q = take(s.rows * s.width);
    rows = take(s.rows * value_width);
    if (s.streams) return;
    k_columns = take(panel_elements<C>(s.width, keys));
    if (!s.gradient) {
      v_panels = take(panel_elements<C>(keys, s.value_width));
      return;
    }
    dscores = take(s.rows * whole_vectors<C>(keys));
    dy = take(s.rows * s.value_width);
    v_columns = take(panel_elements<C>(s.value_width, keys));
    k_panels = take(panel_elements<C>(keys, s.width));
    q_panels = take(panel_elements<C>(s.rows, s.width));
    dy_panels = take(panel_elements<C>(s.rows, s.value_width));
    dq = take((s.has_key_blocks() ? s.sharers() * s.queries : s.rows) * width);
    dk = take(keys * width);
    dv = take(keys * value_width);
  }

 private:
  int64_t take(int64_t count) {
    const int64_t at = end, line = 64 / static_cast<int64_t>(sizeof(C));
    end += (count + line - 1) / line * line;
    return at;
  }
};

struct Prepared {
  Shape shape;
  AttentionSettings settings;
  Prepared(const StepFacts& facts, bool gradient)
      : shape(facts, gradient), settings(facts.node().attrs) {}
};

/// Head `head` of all batches' in a tensor [.., heads, rows, columns].
template <class T>
StridedMatrix<T> head_of(const TensorView& x, int64_t head) {
  const int d = x.rank - 3;
  const int64_t heads = x.sizes[d];
  const int64_t offset = (d ? head / heads * x.strides[0] : 0) + head % heads * x.strides[d];
  return {x.as<std::remove_const_t<T>>() + offset, x.sizes[d + 1], x.sizes[d + 2], x.strides[d + 1],
          x.strides[d + 2]};
}

/// What forward and gradient of one slice of heads share.
template <class T>
class Slice {
 public:
  using C = ComputeOf<T>;
  using Matrix = StridedMatrix<const T>;

  Slice(const KernelArgs& args, const Operands& at, int64_t slice)
      : args_(args),
        at_(at),
        s_(static_cast<const Prepared*>(args.prepared)->shape),
        settings_(static_cast<const Prepared*>(args.prepared)->settings),
        places_(s_),
        scratch_(static_cast<C*>(args.workspace) + slice * places_.end),
        seed_(settings_.drops ? seed_of(args.context.seed) : 0) {}

 protected:
  C* at(int64_t place) const { return scratch_ + place; }
  Matrix operand(size_t i, int64_t head) const { return head_of<const T>(args_.in[i], head); }
  StridedMatrix<T> result(size_t i, int64_t head) const { return head_of<T>(args_.out[i], head); }
  Band band(Band causal) const { return settings_.causal ? causal : Band::None; }
  C scale() const {
    return static_cast<C>(settings_.softcap > 0 ? settings_.scale / settings_.softcap
                                                : settings_.scale);
  }

  /// Of `count` keys from `key` on, how many row `row` of the queries sees.
  int64_t seen(int64_t row, int64_t key, int64_t count) const {
    return settings_.causal ? std::clamp<int64_t>(row - key + 1, 0, count) : count;
  }
  /// Tiles read a few scores behind the last that a row sees.
  static void hide(int64_t seen, int64_t count, C* x) {
    std::fill(x + seen, x + std::min(count, seen + kTileRows), C(0));
  }
  /// Null data where there is no mask.
  MaskRow mask_row(int64_t head, int64_t row, int64_t key) const {
    if (!has_mask()) return {};
    const TensorView& mask = args_.in[at_.mask];
    const auto strides = mask_strides();
    const int64_t offset = head / s_.heads * strides[0] + head % s_.heads * strides[1] +
                           row * strides[2] + key * strides[3];
    const char* data = mask.as<char>() + offset * static_cast<int64_t>(size_of(mask.dtype));
    return {data, mask.dtype, strides[3]};
  }
  void mask(int64_t head, int64_t row, int64_t key, int64_t count, C* x) const {
    if (has_mask()) add_mask(mask_row(head, row, key), count, x);
  }
  bool has_mask() const { return at_.mask < args_.in.size() && args_.in[at_.mask].data; }
  /// Of batch, head, row and column, 0 where the mask is broadcast.
  std::array<int64_t, 4> mask_strides() const {
    const TensorView& mask = args_.in[at_.mask];
    std::array<int64_t, 4> strides{};
    for (int d = 0; d < mask.rank; ++d)
      if (mask.sizes[d] != 1) strides[static_cast<size_t>(d + 4 - mask.rank)] = mask.strides[d];
    return strides;
  }
  RowWords words(int64_t head, int64_t row, int64_t key) const {
    return {seed_, settings_.rng, static_cast<uint64_t>((head * s_.queries + row) * s_.keys + key)};
  }

  const KernelArgs& args_;
  const Operands& at_;
  const Shape& s_;
  const AttentionSettings& settings_;
  const Places<C> places_;
  C* scratch_;
  uint64_t seed_;
};

template <class T>
class ForwardSlice : Slice<T> {
  using Base = Slice<T>;
  using Base::s_, Base::places_, Base::at;
  using typename Base::C;

 public:
  ForwardSlice(const KernelArgs& args, int64_t slice) : Base(args, kForward, slice) {}

  /// Heads [begin, end) of the queries.
  void run(int64_t begin, int64_t end) const {
    int64_t packed = -1, packed_keys = 0;
    KeyRange keys{0, s_.keys};
    for (int64_t head = begin; head < end; ++head) {
      if (head == begin || !shares_keys_with_last(head)) keys = visible(head);
      const int64_t key_head = head / s_.sharers();
      const auto k = this->operand(kForward.k, key_head), v = this->operand(kForward.v, key_head);
      if (s_.streams) {
        stream(head, keys, k.row_range(keys.begin, keys.count()),
               v.row_range(keys.begin, keys.count()));
        continue;
      }
      if (key_head != packed || keys.end != packed_keys) {
        pack_panels<C>(k.row_range(0, keys.end).transposed(), at(places_.k_columns));
        if (gives_y()) pack_panels<C>(v.row_range(0, keys.end), at(places_.v_panels));
        packed = key_head;
        packed_keys = keys.end;
      }
      for (int64_t row = 0; row < s_.queries; row += s_.rows)
        piece(head, row, std::min(s_.rows, s_.queries - row), keys.end);
    }
  }

 private:
  /// A clone that is there for the statistics alone leaves y out.
  bool gives_y() const { return this->args_.out[0].data != nullptr; }

  /// Whether the mask lets a head see the keys that the head before it sees.
  bool shares_keys_with_last(int64_t head) const {
    return !this->has_mask() || (head % s_.heads != 0 && this->mask_strides()[1] == 0);
  }
  /// What some query sees; all keys where backward will read them, or if none is seen, which
  /// `exponentials` tells from a NaN.
  KeyRange visible(int64_t head) const {
    const KeyRange all{0, s_.keys};
    if (!this->has_mask() || this->args_.out[1].data) return all;
    KeyRange range{s_.keys, 0};
    const int64_t rows =
        this->mask_strides()[2] == 0 ? std::min<int64_t>(s_.queries, 1) : s_.queries;
    // The last row of a causal mask sees all that others see.
    for (int64_t row = rows - 1; row >= 0 && range.count() < s_.keys; --row)
      widen_by_mask(this->mask_row(head, row, 0), s_.keys, range);
    return range.count() > 0 ? range : all;
  }

  void piece(int64_t head, int64_t row, int64_t rows, int64_t keys) const {
    const int64_t stride = whole_vectors<C>(keys), y_stride = whole_vectors<C>(s_.value_width);
    C *q = at(places_.q), *scores = at(places_.scores), *y = at(places_.rows);
    copy_rows<C>(this->operand(kForward.q, head).row_range(row, rows), this->scale(), q, s_.width);
    panel_product<C>({q, s_.width}, at(places_.k_columns), rows, keys, s_.width, scores, stride,
                     false, this->band(Band::Columns), row);
    C inverses[kMostRows];
    for (int64_t i = 0; i < rows; ++i)
      inverses[i] = exponentials_of(head, row + i, {0, keys}, scores + i * stride);
    if (!gives_y()) return;
    panel_product<C>({scores, stride}, at(places_.v_panels), rows, s_.value_width, keys, y,
                     y_stride, false, this->band(Band::Inner), row);
    write_rows<C>(y, y_stride, this->result(0, head).row_range(row, rows),
                  [&](int64_t i) { return inverses[i]; });
  }

  void stream(int64_t head, KeyRange keys, const typename Base::Matrix& k,
              const typename Base::Matrix& v) const {
    const int64_t count = keys.count();
    using Product = StreamedProduct<T, C>;
    C *q = at(places_.q), *scores = at(places_.scores), *y = at(places_.rows);
    copy_rows<C>(this->operand(kForward.q, head), this->scale(), q, s_.width);
    const Product to_keys(s_.queries, count, s_.width);
    to_keys.run(0, to_keys.units(), {q, s_.queries, s_.width, s_.width}, k.transposed(), C(1),
                false, scores);
    C inverses[kStreamedQueries];
    for (int64_t i = 0; i < s_.queries; ++i)
      inverses[i] = exponentials_of(head, i, keys, scores + i * count);
    if (!gives_y()) return;
    const Product to_values(s_.queries, s_.value_width, count);
    to_values.run(0, to_values.units(), {scores, s_.queries, count, count}, v, C(1), false, y);
    write_rows<C>(y, s_.value_width, this->result(0, head), [&](int64_t i) { return inverses[i]; });
  }

  /// Of scores over `keys`; returns the factor that makes them probabilities.
  C exponentials_of(int64_t head, int64_t row, KeyRange keys, C* x) const {
    const int64_t seen = this->seen(row, keys.begin, keys.count());
    if (this->settings_.softcap > 0) cap_scores(this->settings_.softcap, seen, x);
    this->mask(head, row, keys.begin, seen, x);
    RowStatistics<C> statistics = exponentials(seen, x);
    if (this->settings_.nan_if_blind && statistics.inverse == 0 && seen > 0)
      statistics.inverse = std::numeric_limits<C>::quiet_NaN();
    if (this->settings_.drops)
      drop_row(this->settings_, this->words(head, row, keys.begin), seen, x);
    this->hide(seen, keys.count(), x);
    if (this->args_.out[1].data) {
      const StridedMatrix<C> out = head_of<C>(this->args_.out[1], head).row_range(row, 1);
      out.data[0] = statistics.most;
      out.data[out.column_stride] = statistics.inverse;
    }
    return statistics.inverse;
  }
};

template <class T>
class GradientSlice : Slice<T> {
  using Base = Slice<T>;
  using Base::s_, Base::places_, Base::at;
  using typename Base::C;

 public:
  GradientSlice(const KernelArgs& args, int64_t slice) : Base(args, kGradient, slice) {}

  /// Heads [begin, end) of the keys.
  void run(int64_t begin, int64_t end) const {
    for (int64_t key_head = begin; key_head < end; ++key_head) {
      for (int64_t key = 0; key < s_.keys; key += s_.key_block)
        key_block(key_head, key, std::min(s_.key_block, s_.keys - key));
      for (int64_t i = 0; i < s_.sharers(); ++i) {
        const int64_t head = key_head * s_.sharers() + i;
        if (s_.has_key_blocks()) write_dq(head, 0, s_.queries, summed_dq(head));
        if (s_.keys == 0 && s_.queries > 0) clear_dq(head);
      }
    }
  }

 private:
  int64_t width() const { return whole_vectors<C>(s_.width); }
  int64_t value_width() const { return whole_vectors<C>(s_.value_width); }
  static void clear(C* x, int64_t count) { std::fill(x, x + count, C(0)); }
  /// Where the blocks of keys add up.
  C* summed_dq(int64_t head) const {
    return at(places_.dq) + head % s_.sharers() * s_.queries * width();
  }
  void clear_dq(int64_t head) const {
    clear(at(places_.dq), width());
    for (int64_t row = 0; row < s_.queries; ++row) write_dq(head, row, 1, at(places_.dq));
  }
  void write_dq(int64_t head, int64_t row, int64_t rows, const C* dq) const {
    write_rows<C>(dq, width(), this->result(0, head).row_range(row, rows),
                  [&](int64_t) { return this->scale(); });
  }

  void key_block(int64_t key_head, int64_t key, int64_t keys) const {
    const auto k = this->operand(kGradient.k, key_head).row_range(key, keys);
    const auto v = this->operand(kGradient.v, key_head).row_range(key, keys);
    pack_panels<C>(k.transposed(), at(places_.k_columns));
    pack_panels<C>(v.transposed(), at(places_.v_columns));
    pack_panels<C>(k, at(places_.k_panels));
    clear(at(places_.dk), keys * width());
    clear(at(places_.dv), keys * value_width());
    const int64_t head = key_head * s_.sharers();
    for (int64_t i = 0; i < s_.sharers(); ++i)
      for (int64_t row = 0; row < s_.queries; row += s_.rows)
        piece(head + i, row, std::min(s_.rows, s_.queries - row), key, keys);
    const auto one = [](int64_t) { return C(1); };
    const auto dk = this->result(1, key_head), dv = this->result(2, key_head);
    write_rows<C>(at(places_.dk), width(), dk.row_range(key, keys), one);
    write_rows<C>(at(places_.dv), value_width(), dv.row_range(key, keys), one);
  }

  void piece(int64_t head, int64_t row, int64_t rows, int64_t key, int64_t keys) const {
    const int64_t stride = whole_vectors<C>(keys), diagonal = row - key;
    C *x = at(places_.scores), *d = at(places_.dscores), *q = at(places_.q), *dy = at(places_.dy);
    C* dq = s_.has_key_blocks() ? summed_dq(head) + row * width() : at(places_.dq);
    const bool hidden = this->settings_.causal && diagonal + rows <= 0 && key > 0;
    if (hidden) return;
    const auto dy_rows = this->operand(kDy, head).row_range(row, rows);
    copy_rows<C>(this->operand(kGradient.q, head).row_range(row, rows), this->scale(), q, s_.width);
    copy_rows<C>(dy_rows, C(1), dy, s_.value_width);
    pack_panels<C>(StridedMatrix<const C>{q, rows, s_.width, s_.width}, at(places_.q_panels));
    pack_panels<C>(dy_rows, at(places_.dy_panels));
    const Band columns = this->band(Band::Columns), inner = this->band(Band::Inner);
    const Band transposed = this->band(Band::InnerOfTransposed);
    panel_product<C>({q, s_.width}, at(places_.k_columns), rows, keys, s_.width, x, stride, false,
                     columns, diagonal);
    panel_product<C>({dy, s_.value_width}, at(places_.v_columns), rows, keys, s_.value_width, d,
                     stride, false, columns, diagonal);
    for (int64_t i = 0; i < rows; ++i)
      scores_gradient(head, row + i, dy + i * s_.value_width, key, keys, x + i * stride,
                      d + i * stride);
    panel_product<C>({x, 1, stride}, at(places_.dy_panels), keys, s_.value_width, rows,
                     at(places_.dv), value_width(), true, transposed, diagonal);
    panel_product<C>({d, 1, stride}, at(places_.q_panels), keys, s_.width, rows, at(places_.dk),
                     width(), true, transposed, diagonal);
    panel_product<C>({d, stride}, at(places_.k_panels), rows, s_.width, keys, dq, width(), key > 0,
                     inner, diagonal);
    if (!s_.has_key_blocks()) write_dq(head, row, rows, dq);
  }

  void scores_gradient(int64_t head, int64_t row, const C* dy, int64_t key, int64_t keys, C* x,
                       C* d) const {
    const int64_t seen = this->seen(row, key, keys);
    this->mask(head, row, key, seen, x);
    const auto from = head_of<const C>(this->args_.in[kStatistics], head).row_range(row, 1);
    const RowStatistics<C> statistics{from.data[0], from.data[from.column_stride]};
    const RowWords words = this->words(head, row, key);
    if constexpr (kIsHalf<T>) {
      gradient_row(this->settings_, words, statistics, seen, x, d);
    } else {
      C* y = at(places_.rows);
      copy_rows<C>(this->operand(kY, head).row_range(row, 1), C(1), y, s_.value_width);
      const auto delta = static_cast<C>(row_sum(
          s_.value_width, [](auto a, auto b) { return a * b; }, dy, static_cast<const C*>(y)));
      gradient_row(this->settings_, words, statistics, delta, seen, x, d);
    }
    this->hide(seen, keys, x);
    this->hide(seen, keys, d);
  }
};

template <template <class> class SliceOf>
void run_attention(const KernelArgs& args) {
  const Shape& s = static_cast<const Prepared*>(args.prepared)->shape;
  dispatch_float(args.in[kForward.q].dtype, [&]<class T> {
    parallel_ranges(args.context, s.slices, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const SliceOf<T> slice(args, i);
        slice.run(s.units() * i / s.slices, s.units() * (i + 1) / s.slices);
      }
    });
  });
}

template <bool gradient>
std::shared_ptr<const void> prepare_attention(const StepFacts& facts) {
  return std::make_shared<const Prepared>(facts, gradient);
}
template <bool gradient>
size_t attention_workspace(const StepFacts& facts) {
  const Shape s(facts, gradient);
  return dispatch_float(facts.inputs[0].dtype, [&]<class T> {
    using C = ComputeOf<T>;
    return static_cast<size_t>(s.slices * Places<C>(s).end) * sizeof(C);
  });
}

/// [batch, L, H, V] in memory, which is how the heads are joined next.
std::vector<Sizes> joined_heads(const StepFacts& facts) {
  const Sizes &y = facts.node().output_sizes[0], &statistics = facts.node().output_sizes[1];
  if (y.size() != 4) return {contiguous_strides(y), contiguous_strides(statistics)};
  return {{y[2] * y[1] * y[3], y[3], y[1] * y[3], 1}, contiguous_strides(statistics)};
}

// On CUDA torch has fused kernels.
REGISTER_CPU_KERNEL({.op = "ScaledDotProductAttention",
                     .name = "attention_cpu",
                     .dtypes = kAllFloats,
                     .run = run_attention<ForwardSlice>,
                     .workspace_bytes = attention_workspace<false>,
                     .output_strides = joined_heads,
                     .prepare = prepare_attention<false>,
                     .layout = LayoutRule::Any,
                     .leaves_out_unused = true});
REGISTER_CPU_KERNEL({.op = "ScaledDotProductAttentionGrad",
                     .name = "attention_grad_cpu",
                     .dtypes = kAllFloats,
                     .run = run_attention<GradientSlice>,
                     .workspace_bytes = attention_workspace<true>,
                     .prepare = prepare_attention<true>,
                     .layout = LayoutRule::Any});

}  // namespace
}  // namespace ORTM_ISA
}  // namespace ortmodule
