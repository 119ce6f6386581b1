// ScaledDotProductAttention in strips of query rows of a few heads: scores by torch's batched GEMM,
// probabilities by the row kernels, products with v; backward computes a strip's scores again. One
// strip exists at a time. Its size follows from the shape alone, so the sums have one order.
// 16-bit operands are widened strip by strip: the sums are those of torch's composite, in float.
#include <ATen/ops/baddbmm.h>
#include <ATen/ops/bmm.h>

#include <algorithm>
#include <array>

#include "kernels/aten/aten_views.h"
#include "kernels/attention_strip.h"

namespace ortmodule {
namespace {

/// Which operand is which, in forward and in the gradient.
struct Operands {
  size_t q, k, v, mask;
};
constexpr Operands kForward{0, 1, 2, 3}, kGradient{1, 2, 3, 4};

struct AttentionShape {
  int64_t batch = 1, heads = 1, queries = 0, keys = 0, width = 0, value_width = 0;
  int64_t strip_heads = 1, strip_rows = 1;
  bool causal = false;
  DType dtype = DType::Undefined;  // of q, k and v
  DType wide = DType::Undefined;   // in which a strip is computed

  AttentionShape(const StepFacts& facts, const Operands& at)
      : causal(facts.node().attrs.flag("is_causal")),
        dtype(facts.inputs[at.q].dtype),
        wide(compute_dtype(dtype)) {
    const Sizes& q = facts.inputs[at.q].layout.sizes;
    const size_t rank = q.size();
    batch = rank == 4 ? q[0] : 1;
    heads = q[rank - 3];
    queries = q[rank - 2];
    width = q[rank - 1];
    keys = facts.inputs[at.k].layout.sizes[rank - 2];
    value_width = facts.inputs[at.v].layout.sizes[rank - 1];
    // A strip of a megabyte stays in the second-level cache; rows of a causal matrix see few keys
    // where a strip is low.
    constexpr int64_t kStripElements = 1 << 18, kMostRows = 128, kLeastRows = 16;
    const int64_t columns = std::max<int64_t>(keys, 1);
    strip_rows = std::min(std::max<int64_t>(queries, 1),
                          std::clamp(kStripElements / columns, kLeastRows, kMostRows));
    strip_heads = std::clamp<int64_t>(kStripElements / (strip_rows * columns), 1,
                                      std::max<int64_t>(heads, 1));
  }
  bool widens() const { return dtype != wide; }
};

/// Places in the workspace, each aligned to 64 bytes; `narrow` ones exist only if operands widen.
struct StripPlaces {
  size_t bytes = 0;
  size_t scores = 0, dscores = 0, q = 0, k = 0, v = 0, rows = 0, dy = 0, dk = 0, dv = 0;

  StripPlaces(const AttentionShape& s, bool gradient) {
    const int64_t tile = s.strip_heads * s.strip_rows;
    scores = add(s, tile * s.keys);
    rows = add(s, tile * std::max(s.width, s.value_width));
    if (gradient) dscores = add(s, tile * s.keys);
    if (!s.widens()) return;
    const int64_t panel = s.strip_heads * s.keys;
    q = add(s, tile * s.width);
    k = add(s, panel * s.width);
    v = add(s, panel * s.value_width);
    if (!gradient) return;
    dy = add(s, tile * s.value_width);
    dk = add(s, panel * s.width);
    dv = add(s, panel * s.value_width);
  }

 private:
  size_t add(const AttentionShape& s, int64_t count) {
    const size_t at = bytes;
    bytes += (static_cast<size_t>(count) * size_of(s.wide) + 63) / 64 * 64;
    return at;
  }
};

/// A row kernel, chosen for whole strips.
struct RowKernel {
  StepFacts facts;
  const KernelDef* kernel = nullptr;
  std::shared_ptr<const void> prepared;

  RowKernel(const char* op, const StepFacts& step, const AttentionShape& s, const Operands& at,
            bool gradient) {
    const Sizes sizes{s.strip_heads, s.strip_rows, s.keys};
    const OperandFacts strip{s.wide, {sizes, contiguous_strides(sizes), 0}};
    NodeFacts& node = facts.nodes.emplace_back();
    node.op = op;
    node.attrs = step.node().attrs;
    const bool masked =
        at.mask < step.inputs.size() && step.inputs[at.mask].dtype != DType::Undefined;
    facts.inputs = {strip, OperandFacts{}, {DType::Int64, {{4}, {1}, 0}}};
    if (masked) facts.inputs[1] = {step.inputs[at.mask].dtype, {sizes, {0, 0, 0}, 0}};
    if (gradient) facts.inputs.push_back(strip);
    facts.outputs.assign(gradient ? 2 : 1, strip);
    node.output_used.assign(facts.outputs.size(), true);
    std::string why;
    kernel = select_kernel(op, Device::CPU, facts, &why);
    ORTM_ASSERT(kernel, "no kernel of ", op, " for a strip: ", why);
    prepared = kernel->prepare ? kernel->prepare(facts) : nullptr;
  }
};

struct PreparedAttention {
  AttentionShape shape;
  StripPlaces workspace;
  RowKernel rows;

  PreparedAttention(const StepFacts& facts, const Operands& at, bool gradient)
      : shape(facts, at),
        workspace(shape, gradient),
        rows(gradient ? "AttentionScoresGrad" : "AttentionProbabilities", facts, shape, at,
             gradient) {}
};

/// Addresses a strip's parts of operands, results and workspace.
class Strips {
 public:
  Strips(const KernelArgs& args, const Operands& at)
      : p_(*static_cast<const PreparedAttention*>(args.prepared)), args_(args), at_(at) {}
  const AttentionShape& shape() const { return p_.shape; }
  const StripPlaces& places() const { return p_.workspace; }

  /// body(batch, first head, heads) over groups of heads.
  template <class Body>
  void for_each_group(const Body& body) const {
    const AttentionShape& s = shape();
    for (int64_t b = 0; b < s.batch; ++b)
      for (int64_t h = 0; h < s.heads; h += s.strip_heads)
        body(b, h, std::min(s.strip_heads, s.heads - h));
  }
  /// body(first row, rows, columns that any of them sees)
  template <class Body>
  void for_each_strip(const Body& body) const {
    const AttentionShape& s = shape();
    for (int64_t r = 0; r < s.queries; r += s.strip_rows) {
      const int64_t rows = std::min(s.strip_rows, s.queries - r);
      body(r, rows, s.causal ? std::min(s.keys, r + rows) : s.keys);
    }
  }

  /// Rows [row, row + rows) of heads [head, head + heads) of a tensor [.., H, rows, width].
  static at::Tensor part(const TensorView& x, int64_t b, int64_t head, int64_t heads, int64_t row,
                         int64_t rows) {
    const int d = x.rank - 3;
    const int64_t offset =
        (d ? b * x.strides[0] : 0) + head * x.strides[d] + row * x.strides[d + 1];
    TensorView moved = x;
    moved.data = x.as<char>() + offset * static_cast<int64_t>(size_of(x.dtype));
    return as_tensor(moved, {heads, rows, x.sizes[d + 2]},
                     {x.strides[d], x.strides[d + 1], x.strides[d + 2]});
  }
  /// A dense part of the workspace.
  at::Tensor scratch(size_t place, int64_t heads, int64_t rows, int64_t columns) const {
    const TensorView view{static_cast<char*>(args_.workspace) + place, shape().wide, 3, nullptr,
                          nullptr};
    return as_tensor(view, {heads, rows, columns}, {rows * columns, columns, 1});
  }
  /// `x` in the computation type, copied to `place` if that is another one.
  at::Tensor widened(const at::Tensor& x, size_t place) const {
    if (!shape().widens()) return x;
    at::Tensor wide = scratch(place, x.size(0), x.size(1), x.size(2));
    wide.copy_(x);
    return wide;
  }

  /// Runs the row kernel on dense strips, in place.
  void run_rows(int64_t b, int64_t head, int64_t row, const at::Tensor& scores,
                const at::Tensor* dscores) const {
    const AttentionShape& s = shape();
    const std::array<int64_t, 3> sizes{scores.size(0), scores.size(1), scores.size(2)};
    const std::array<int64_t, 3> strides{sizes[1] * sizes[2], sizes[2], 1};
    const StripPosition position{b * s.heads + head, row, s.queries, s.keys};
    const std::array<int64_t, 1> four{4}, one{1};
    std::array<int64_t, 3> mask_strides{};
    const auto strip = [&](const at::Tensor& x) {
      return TensorView{x.mutable_data_ptr(), s.wide, 3, sizes.data(), strides.data()};
    };
    std::array<TensorView, 4> in{strip(scores), mask_part(b, head, row, sizes, mask_strides)};
    in[2] = {const_cast<StripPosition*>(&position), DType::Int64, 1, four.data(), one.data()};
    std::array<TensorView, 2> out{in[0]};
    if (dscores) in[3] = out[1] = strip(*dscores);
    const size_t operands = dscores ? 4 : 3, results = dscores ? 2 : 1;
    const RowKernel& rows = p_.rows;
    rows.kernel->run({rows.facts,
                      std::span(in).first(operands),
                      std::span(out).first(results),
                      nullptr,
                      rows.prepared.get(),
                      args_.context,
                      {}});
  }

 private:
  TensorView mask_part(int64_t b, int64_t head, int64_t row, const std::array<int64_t, 3>& sizes,
                       std::array<int64_t, 3>& strides) const {
    if (at_.mask >= args_.in.size() || !args_.in[at_.mask].data) return {};
    const TensorView& mask = args_.in[at_.mask];
    // Strides of batch, head, row and column, 0 where the mask is broadcast.
    std::array<int64_t, 4> all{};
    for (int d = 0; d < mask.rank; ++d)
      if (mask.sizes[d] != 1) all[static_cast<size_t>(d + 4 - mask.rank)] = mask.strides[d];
    strides = {all[1], all[2], all[3]};
    const int64_t offset = b * all[0] + head * all[1] + row * all[2];
    return {mask.as<char>() + offset * static_cast<int64_t>(size_of(mask.dtype)), mask.dtype, 3,
            sizes.data(), strides.data()};
  }

  const PreparedAttention& p_;
  const KernelArgs& args_;
  const Operands& at_;
};

at::Tensor transposed(const at::Tensor& x) { return x.transpose(1, 2); }

void attention(const KernelArgs& args) {
  const Strips strips(args, kForward);
  const AttentionShape& s = strips.shape();
  const StripPlaces& w = strips.places();
  strips.for_each_group([&](int64_t b, int64_t head, int64_t heads) {
    const at::Tensor k =
        strips.widened(Strips::part(args.in[kForward.k], b, head, heads, 0, s.keys), w.k);
    const at::Tensor v =
        strips.widened(Strips::part(args.in[kForward.v], b, head, heads, 0, s.keys), w.v);
    strips.for_each_strip([&](int64_t row, int64_t rows, int64_t columns) {
      const at::Tensor q =
          strips.widened(Strips::part(args.in[kForward.q], b, head, heads, row, rows), w.q);
      at::Tensor scores = strips.scratch(w.scores, heads, rows, columns);
      at::bmm_out(scores, q, transposed(k.narrow(1, 0, columns)));
      strips.run_rows(b, head, row, scores, nullptr);
      at::Tensor y = strips.scratch(w.rows, heads, rows, s.value_width);
      at::bmm_out(y, scores, v.narrow(1, 0, columns));
      Strips::part(args.out[0], b, head, heads, row, rows).copy_(y);
    });
  });
}

/// sum += a b, or sum = a b for the first strip.
void add_product(at::Tensor sum, const at::Tensor& a, const at::Tensor& b, bool first) {
  if (first) {
    at::bmm_out(sum, a, b);
  } else {
    at::baddbmm_out(sum, sum, a, b);
  }
}

/// Gradients of one group of heads.
void group_gradient(const KernelArgs& args, const Strips& strips, int64_t b, int64_t head,
                    int64_t heads) {
  const AttentionShape& s = strips.shape();
  const StripPlaces& w = strips.places();
  const auto whole = [&](const TensorView& x) {
    return Strips::part(x, b, head, heads, 0, s.keys);
  };
  const at::Tensor k = strips.widened(whole(args.in[kGradient.k]), w.k);
  const at::Tensor v = strips.widened(whole(args.in[kGradient.v]), w.v);
  at::Tensor dk_out = whole(args.out[1]), dv_out = whole(args.out[2]);
  at::Tensor dk = s.widens() ? strips.scratch(w.dk, heads, s.keys, s.width) : dk_out;
  at::Tensor dv = s.widens() ? strips.scratch(w.dv, heads, s.keys, s.value_width) : dv_out;
  // The first causal strip does not reach all keys.
  if (s.causal || s.queries == 0) {
    dk.zero_();
    dv.zero_();
  }
  strips.for_each_strip([&](int64_t row, int64_t rows, int64_t columns) {
    const auto part = [&](const TensorView& x) {
      return Strips::part(x, b, head, heads, row, rows);
    };
    const at::Tensor q = strips.widened(part(args.in[kGradient.q]), w.q);
    const at::Tensor dy = strips.widened(part(args.in[0]), w.dy);
    const at::Tensor keys = k.narrow(1, 0, columns), values = v.narrow(1, 0, columns);
    at::Tensor scores = strips.scratch(w.scores, heads, rows, columns);
    at::Tensor dscores = strips.scratch(w.dscores, heads, rows, columns);
    at::bmm_out(scores, q, transposed(keys));
    at::bmm_out(dscores, dy, transposed(values));
    strips.run_rows(b, head, row, scores, &dscores);
    const bool first = row == 0 && !s.causal;
    add_product(dv.narrow(1, 0, columns), transposed(scores), dy, first);
    add_product(dk.narrow(1, 0, columns), transposed(dscores), q, first);
    at::Tensor dq = strips.scratch(w.rows, heads, rows, s.width);
    at::bmm_out(dq, dscores, keys);
    part(args.out[0]).copy_(dq);
  });
  if (s.widens()) {
    dk_out.copy_(dk);
    dv_out.copy_(dv);
  }
}

void attention_grad(const KernelArgs& args) {
  const Strips strips(args, kGradient);
  strips.for_each_group([&](int64_t b, int64_t head, int64_t heads) {
    group_gradient(args, strips, b, head, heads);
  });
}

template <bool gradient>
std::shared_ptr<const void> prepare_attention(const StepFacts& facts) {
  return std::make_shared<PreparedAttention>(facts, gradient ? kGradient : kForward, gradient);
}
template <bool gradient>
size_t attention_workspace(const StepFacts& facts) {
  const AttentionShape shape(facts, gradient ? kGradient : kForward);
  return StripPlaces(shape, gradient).bytes;
}

/// [batch, L, H, V] in memory, which is how the heads are joined next.
std::vector<Sizes> joined_heads(const StepFacts& facts) {
  const Sizes& sizes = facts.node().output_sizes[0];
  if (sizes.size() != 4) return {contiguous_strides(sizes)};
  return {{sizes[2] * sizes[1] * sizes[3], sizes[3], sizes[1] * sizes[3], 1}};
}

// On CUDA torch has fused kernels with dropout.
REGISTER_KERNEL({.op = "ScaledDotProductAttention",
                 .name = "attention_aten",
                 .dtypes = kAllFloats,
                 .run = attention,
                 .workspace_bytes = attention_workspace<false>,
                 .output_strides = joined_heads,
                 .prepare = prepare_attention<false>,
                 .input_rules = {LayoutRule::Matrix, LayoutRule::Matrix, LayoutRule::Matrix,
                                 LayoutRule::Any}});
REGISTER_KERNEL({.op = "ScaledDotProductAttentionGrad",
                 .name = "attention_grad_aten",
                 .dtypes = kAllFloats,
                 .run = attention_grad,
                 .workspace_bytes = attention_workspace<true>,
                 .prepare = prepare_attention<true>,
                 .input_rules = {LayoutRule::Matrix, LayoutRule::Matrix, LayoutRule::Matrix,
                                 LayoutRule::Matrix, LayoutRule::Any}});

}  // namespace
}  // namespace ortmodule
