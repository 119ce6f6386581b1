// y = dropout(softmax(scale q k' + mask)) v per head, without materializing the L x S matrix (Dao
// et al., "FlashAttention", 2022): backward recomputes tiles of it from q, k and two numbers per
// row, and redraws its dropout from the Philox stream. `statistics` [.., L, 2] are these numbers:
// the largest score, and 1 / sum(exp(score - largest)); zeros for a fully masked row. Neighbouring
// heads of q may share a head of k and v, each as many (Ainslie et al., "GQA", 2023). On CUDA
// attention stays a torch operator.
#include <cmath>
#include <limits>
#include <numeric>

#include "ops/infer_rules.h"
#include "ops/op_def.h"
#include "ops/row_axes.h"

namespace ortmodule {
namespace {

struct Sdpa {
  enum Operand : size_t { kQ, kK, kV, kMask };
};

/// How many heads of q share one of k; 0 if that cannot be. Their axis is the third from the end.
int64_t queries_per_key(const Dims& q, const Dims& k) {
  const DimExpr &heads = q.at(q.size() - 3), &key_heads = k.at(k.size() - 3);
  if (may_equal({heads}, {key_heads})) return 1;
  if (!heads.is_constant() || !key_heads.is_constant() || key_heads.value() <= 0) return 0;
  return heads.value() % key_heads.value() == 0 ? heads.value() / key_heads.value() : 0;
}

/// x [.., heads, rows, columns] with an axis of `times` behind its heads.
Dims with_sharers(Dims dims, int64_t times) {
  dims.insert(dims.end() - 2, DimExpr(times));
  return dims;
}

/// The same with each head `times` times.
Dims with_repeated_heads(Dims dims, int64_t times) {
  DimExpr& heads = dims.at(dims.size() - 3);
  heads = heads * DimExpr(times);
  return dims;
}

void infer_attention(InferContext& c) {
  const Value &q = c.input(Sdpa::kQ), &k = c.input(Sdpa::kK), &v = c.input(Sdpa::kV);
  const size_t rank = q.rank();
  if (rank < 3 || rank > 4 || k.rank() != rank || v.rank() != rank)
    c.fail(str("q, k and v must have the same rank, 3 or 4, but found ", dims_text(q.dims), ", ",
               dims_text(k.dims), " and ", dims_text(v.dims)));
  Dims keys = q.dims, values = k.dims;
  keys[rank - 2] = k.dims[rank - 2];
  if (queries_per_key(q.dims, k.dims) > 1) keys[rank - 3] = k.dims[rank - 3];
  values[rank - 1] = v.dims[rank - 1];
  if (!may_equal(k.dims, keys) || !may_equal(v.dims, values))
    c.fail(str("q [.., L, E], k [.., S, E] and v [.., S, V] must match, but found ",
               dims_text(q.dims), ", ", dims_text(k.dims), " and ", dims_text(v.dims)));
  if (q.dtype != k.dtype || q.dtype != v.dtype)
    c.fail(str("q, k and v must have the same type, but found ", name_of(q.dtype), ", ",
               name_of(k.dtype), " and ", name_of(v.dtype)));
  Dims result = q.dims, statistics = q.dims;
  result[rank - 1] = v.dims[rank - 1];
  statistics[rank - 1] = 2;
  c.set(0, q.dtype, result);
  c.set(1, compute_dtype(q.dtype), statistics);
}

void infer_attention_grad(InferContext& c) {
  for (size_t i = 0; i < 3; ++i) c.set(i, c.input(i + 1).dtype, c.input(i + 1).dims);
}

/// dims[rank - back]
const DimExpr& from_back(const Handle& x, size_t back) { return x.dims()[x.dims().size() - back]; }

Handle transposed(GradContext& c, Handle x) {
  std::vector<int64_t> perm(x.dims().size());
  for (size_t i = 0; i < perm.size(); ++i) perm[i] = static_cast<int64_t>(i);
  std::swap(perm[perm.size() - 1], perm[perm.size() - 2]);
  return c.transpose(x, perm);
}

/// The whole matrix scale q k' + mask.
Handle masked_scores(GradContext& c, Handle q, Handle k, Handle mask) {
  Handle scores = c.emit("MatMul", {q, transposed(c, k)}) * c.attrs().number("scale");
  const Handle least = c.literal(-INFINITY, scores.dtype());
  if (c.attrs().flag("is_causal")) {
    const Dims square{from_back(q, 2), from_back(k, 2)};
    const Handle seen = c.emit("Trilu", {c.full(1.0, square, DType::Bool)}, {{"upper", 0}});
    scores = c.emit("Where", {seen, scores, least});
  }
  if (!mask) return scores;
  if (mask.dtype() == DType::Bool) return c.emit("Where", {mask, scores, least});
  return scores + c.cast(mask, scores.dtype());
}

/// softmax(scale q k' + mask), as a whole. A fully masked row has probabilities of zero, as in
/// torch's _safe_softmax.
Handle probabilities(GradContext& c, Handle q, Handle k, Handle mask) {
  const Handle scores = masked_scores(c, q, k, mask);
  const Handle most = c.emit("ReduceMax", {scores}, {{"axes", Dims{-1}}, {"keepdims", 1}});
  const Handle blind = c.emit("Equal", {most, c.literal(-INFINITY, scores.dtype())});
  const Handle zero = c.literal(0.0, scores.dtype());
  const Handle visible = c.emit("Where", {blind, zero, scores});
  return c.emit("Where", {blind, zero, c.emit("Softmax", {visible}, {{"axis", -1}})});
}

/// `op` (Dropout or DropoutGrad) of x, with the mask that the node draws.
Handle dropped(GradContext& c, const char* op, Handle x) {
  const double ratio = c.attrs().number("ratio");
  if (ratio <= 0) return x;
  return c.emit(op, {x}, {{"ratio", ratio}, {"rng", c.attrs().integer("rng")}});
}

Handle product(GradContext& c, Handle a, Handle b) { return c.emit("MatMul", {a, b}); }

/// Keys or values with a head for each head of the queries.
Handle for_each_query(GradContext& c, Handle x, int64_t sharers) {
  if (!x || sharers == 1) return x;
  const Dims dims = x.dims();
  const Handle apart = c.emit("Reshape", {x}, {{"shape", with_sharers(dims, 1)}});
  const Handle wide = c.emit("Expand", {apart}, {{"shape", with_sharers(dims, sharers)}});
  return c.emit("Reshape", {wide}, {{"shape", with_repeated_heads(dims, sharers)}});
}

/// The gradient of what for_each_query() repeats, from that of its result.
Handle of_shared(GradContext& c, Handle x, int64_t sharers) {
  if (!x || sharers == 1) return x;
  Dims apart = x.dims();
  DimExpr& heads = apart.at(apart.size() - 3);
  heads = DimExpr::floor_div(heads, sharers);
  apart = with_sharers(apart, sharers);
  const auto axis = static_cast<int64_t>(apart.size()) - 3;
  return c.emit("ReduceSum", {c.emit("Reshape", {x}, {{"shape", apart}})},
                {{"axes", Dims{axis}}, {"keepdims", 0}});
}

Handle softmax_grad(GradContext& c, Handle dp, Handle p) {
  return c.emit("SoftmaxGrad", {dp, p}, {{"axis", -1}});
}

/// All gradients from the whole L x S matrix, used if the mask needs a gradient, which has that
/// size.
Grads whole_gradient(GradContext& c) {
  const DType wide = compute_dtype(c.x(Sdpa::kQ).dtype());
  const int64_t sharers = queries_per_key(c.x(Sdpa::kQ).dims(), c.x(Sdpa::kK).dims());
  const auto keys = [&](size_t i) { return for_each_query(c, c.cast(c.x(i), wide), sharers); };
  const Handle q = c.cast(c.x(Sdpa::kQ), wide), k = keys(Sdpa::kK), v = keys(Sdpa::kV);
  const Handle dy = c.cast(c.dy(), wide);
  const Handle p = probabilities(c, q, k, c.x(Sdpa::kMask));
  const Handle dp = dropped(c, "DropoutGrad", product(c, dy, transposed(c, v)));
  const Handle ds = softmax_grad(c, dp, p);
  const double scale = c.attrs().number("scale");
  Grads grads(4);
  if (c.needs(Sdpa::kQ)) grads[Sdpa::kQ] = product(c, ds, k) * scale;
  if (c.needs(Sdpa::kK))
    grads[Sdpa::kK] = of_shared(c, product(c, transposed(c, ds), q) * scale, sharers);
  if (c.needs(Sdpa::kV))
    grads[Sdpa::kV] =
        of_shared(c, product(c, transposed(c, dropped(c, "Dropout", p)), dy), sharers);
  grads[Sdpa::kMask] = ds;
  return grads;
}

/// The gradients of dq, dk and dv, from the whole L x S matrix. With p = softmax(s), dp = dy v',
/// ds = softmax_grad(dp, p), dq = scale ds k, dk = scale ds' q and dv = p' dy, each step of which
/// is differentiated in reverse order. y and the statistics are functions of q, k and v.
class AttentionGradRule {
 public:
  explicit AttentionGradRule(GradContext& c)
      : c_(c),
        wide_(compute_dtype(c.x(1).dtype())),
        scale_(c.attrs().number("scale")),
        sharers_(queries_per_key(c.x(1).dims(), c.x(2).dims())),
        dy_(in_wide(c.x(0))),
        q_(in_wide(c.x(1))),
        k_(for_each_query(c, in_wide(c.x(2)), sharers_)),
        v_(for_each_query(c, in_wide(c.x(3)), sharers_)),
        p_(probabilities(c, q_, k_, c.x(6))),
        dp_(dropped(c, "DropoutGrad", product(c, dy_, transposed(c, v_)))) {}

  Grads grads() {
    const Handle uq = in_wide(c_.dy(0)), uk = for_each_query(c_, in_wide(c_.dy(1)), sharers_),
                 uv = for_each_query(c_, in_wide(c_.dy(2)), sharers_);
    if (uq) add(of_ds_, product(c_, uq, transposed(c_, k_)) * scale_);
    if (uk) add(of_ds_, product(c_, q_, transposed(c_, uk)) * scale_);
    if (uq || uk) through_ds(uq, uk);
    if (uv) {
      add(dy_grad_, product(c_, dropped(c_, "Dropout", p_), uv));
      add(of_p_, dropped(c_, "DropoutGrad", product(c_, dy_, transposed(c_, uv))));
    }
    if (of_p_) {
      const Handle of_s = softmax_grad(c_, of_p_, p_);
      add(q_grad_, product(c_, of_s, k_) * scale_);
      add(k_grad_, product(c_, transposed(c_, of_s), q_) * scale_);
    }
    return {
        dy_grad_, q_grad_, of_shared(c_, k_grad_, sharers_), of_shared(c_, v_grad_, sharers_), {},
        {},       {}};
  }

 private:
  Handle in_wide(Handle x) { return c_.cast_if(x, wide_); }
  static void add(Handle& sum, Handle term) { sum = sum ? sum + term : term; }
  Handle row_sum(Handle x) {
    return c_.emit("ReduceSum", {x}, {{"axes", Dims{-1}}, {"keepdims", 1}});
  }

  void through_ds(Handle uq, Handle uk) {
    const Handle ds = softmax_grad(c_, dp_, p_);
    if (uq) add(k_grad_, product(c_, transposed(c_, ds), uq) * scale_);
    if (uk) add(q_grad_, product(c_, ds, uk) * scale_);
    const Handle of_dp = dropped(c_, "DropoutGrad", softmax_grad(c_, of_ds_, p_));
    add(dy_grad_, product(c_, of_dp, v_));
    add(v_grad_, product(c_, transposed(c_, of_dp), dy_));
    add(of_p_, of_ds_ * (dp_ - row_sum(dp_ * p_)) - dp_ * row_sum(of_ds_ * p_));
  }

  GradContext& c_;
  DType wide_;
  double scale_;
  int64_t sharers_;
  Handle dy_, q_, k_, v_, p_, dp_;
  Handle of_ds_, of_p_, dy_grad_, q_grad_, k_grad_, v_grad_;
};

Grads attention_grad_grad(GradContext& c) { return AttentionGradRule(c).grads(); }

Grads attention_grad(GradContext& c) {
  if (c.needs(Sdpa::kMask)) return whole_gradient(c);
  return c.emit_all(
      "ScaledDotProductAttentionGrad",
      {c.dy(), c.x(Sdpa::kQ), c.x(Sdpa::kK), c.x(Sdpa::kV), c.y(0), c.y(1), c.x(Sdpa::kMask)},
      c.attrs());
}

/// L S (E + V) multiply-adds per head and pass over the matrix.
double matrix_flops(const Sizes& q, const Sizes& k, const Sizes& v) {
  const auto queries = static_cast<double>(element_count(q));
  const auto keys = static_cast<double>(k[k.size() - 2]);
  const auto widths = static_cast<double>(q.back() + v.back());
  return q.back() == 0 ? 0.0 : 2.0 * queries / static_cast<double>(q.back()) * keys * widths;
}
double attention_flops(const Attrs&, const std::vector<Sizes>& in, const std::vector<Sizes>&) {
  return matrix_flops(in.at(0), in.at(1), in.at(2));
}
// Recomputes the scores, and has two products for each of the two of forward.
double attention_grad_flops(const Attrs&, const std::vector<Sizes>& in, const std::vector<Sizes>&) {
  return 2.5 * matrix_flops(in.at(1), in.at(2), in.at(3));
}

Values convert_attention(TorchCall& t) {
  Value *q = t.tensor("query"), *k = t.tensor("key"), *v = t.tensor("value");
  Value* mask = t.optional_tensor("attn_mask");
  const double ratio = t.number_or("dropout_p", 0.0);
  if (!is_floating(q->dtype)) t.refuse("attention of types other than floats");
  const size_t rank = q->rank();
  const Dims& dims = q->dims;
  if (rank < 3 || rank > 4) t.refuse("attention of a rank other than 3 or 4");
  const bool shares = t.flag("enable_gqa");
  const auto has_heads = [&](const Value* x) {
    if (x->rank() != rank || !std::equal(dims.begin(), dims.end() - 3, x->dims.begin()))
      return false;
    const int64_t sharers = queries_per_key(dims, x->dims);
    return x->dims[rank - 3] == (shares && sharers > 1 ? k->dims : dims)[rank - 3];
  };
  if (!has_heads(k) || !has_heads(v)) t.refuse("attention of heads that are broadcast");
  if (mask && mask->rank() > rank) t.refuse("attention with a mask of a higher rank");
  double scale = 0;
  if (t.is_none("scale")) {
    if (!dims.back().is_constant()) t.refuse("attention with a dynamic head size");
    scale = 1.0 / std::sqrt(static_cast<double>(dims.back().value()));
  } else {
    scale = t.number("scale");
  }
  Attrs attrs{{"scale", scale}, {"is_causal", int64_t{t.flag("is_causal")}}, {"ratio", ratio}};
  // Without dropout, no random stream is used.
  if (ratio > 0) attrs.set("rng", t.next_rng_stream());
  return {t.emit_all("ScaledDotProductAttention", {q, k, v, mask}, attrs, 2)[0]};
}

// --- in ONNX, with the whole L x S matrix --------------------------------------------------------

/// The scores, with -infinity where `seen` is false.
std::string hidden(const OnnxRuleContext& c, const std::string& seen, const std::string& scores,
                   DType wide) {
  return c.op("Where", {seen, scores, c.number(-std::numeric_limits<double>::infinity(), wide)});
}

std::string masked(const OnnxRuleContext& c, std::string scores, DType wide) {
  if (c.attrs().flag("is_causal")) {
    const size_t rank = c.value(Sdpa::kQ).rank();
    const OnnxTensor yes{DType::Bool, {1}, encode_scalar(1.0, DType::Bool)};
    const std::string sizes =
        c.b.sizes({c.value(Sdpa::kQ).dims[rank - 2], c.value(Sdpa::kK).dims[rank - 2]});
    const std::string ones = c.op("ConstantOfShape", {sizes}, {{"value", yes}});
    scores = hidden(c, c.op("Trilu", {ones}, {{"upper", int64_t{0}}}), scores, wide);
  }
  if (!c.has(Sdpa::kMask)) return scores;
  if (c.dtype(Sdpa::kMask) == DType::Bool) return hidden(c, c.in(Sdpa::kMask), scores, wide);
  return c.op("Add", {scores, c.cast(c.in(Sdpa::kMask), wide)});
}

/// Sets the output `statistics`.
void set_statistics(const OnnxRuleContext& c, const std::string& scores, const std::string& most,
                    const std::string& blind, DType wide) {
  const std::string zero = c.number(0.0, wide);
  const std::string shown = c.op("Where", {blind, zero, most});
  const std::string sum =
      c.op("ReduceSum", {c.op("Exp", {c.op("Sub", {scores, shown})}), c.b.integers({-1})},
           {{"keepdims", int64_t{1}}});
  const std::string inverse = c.op("Where", {blind, zero, c.op("Reciprocal", {sum})});
  c.set(1, "Concat", {shown, inverse}, {{"axis", int64_t{-1}}});
}

/// Keys or values in `wide`, with a head for each head of the queries.
std::string exported_keys(const OnnxRuleContext& c, size_t operand, DType wide) {
  const std::string x = c.cast(c.in(operand), wide);
  const Dims& dims = c.value(operand).dims;
  const int64_t sharers = queries_per_key(c.value(Sdpa::kQ).dims, dims);
  if (sharers == 1) return x;
  const auto axis = static_cast<int64_t>(dims.size()) - 2;
  const std::string apart = c.op("Unsqueeze", {x, c.b.integers({axis})});
  const std::string all = c.op("Expand", {apart, c.b.sizes(with_sharers(dims, sharers))});
  return c.op("Reshape", {all, c.b.sizes(with_repeated_heads(dims, sharers))});
}

std::string capped(const OnnxRuleContext& c, const std::string& scores, DType wide) {
  const double softcap = c.attrs().number("softcap", 0);
  if (softcap <= 0) return scores;
  const std::string cap = c.number(softcap, wide);
  return c.op("Mul", {c.op("Tanh", {c.op("Div", {scores, cap})}), cap});
}

void export_attention(const OnnxRuleContext& c) {
  const DType dtype = c.dtype(), wide = compute_dtype(dtype);
  std::vector<int64_t> perm(c.value(Sdpa::kK).rank());
  std::iota(perm.begin(), perm.end(), 0);
  std::swap(perm[perm.size() - 1], perm[perm.size() - 2]);
  const std::string keys = c.op("Transpose", {exported_keys(c, Sdpa::kK, wide)}, {{"perm", perm}});
  const std::string products = c.op("MatMul", {c.cast(c.in(Sdpa::kQ), wide), keys});
  const std::string scaled = c.op("Mul", {products, c.number(c.attrs().number("scale"), wide)});
  const std::string scores = masked(c, capped(c, scaled, wide), wide);
  // A fully masked row gives zeros, not NaN.
  const std::string most =
      c.op("ReduceMax", {scores, c.b.integers({-1})}, {{"keepdims", int64_t{1}}});
  const std::string least = c.number(-std::numeric_limits<double>::infinity(), wide);
  if (c.attrs().flag("nan_if_blind") && !c.wanted(1)) {
    const std::string p = c.op("Softmax", {scores}, {{"axis", int64_t{-1}}});
    c.set(0, "Cast", {c.op("MatMul", {p, exported_keys(c, Sdpa::kV, wide)})}, {{"to", dtype}});
    return;
  }
  const std::string blind = c.op("Equal", {most, least});
  if (c.wanted(1)) set_statistics(c, scores, most, blind, wide);
  const std::string softmax = c.op("Softmax", {scores}, {{"axis", int64_t{-1}}});
  const std::string seen = c.op("Where", {blind, c.number(0.0, wide), softmax});
  std::string kept = seen;
  if (const double drop = c.attrs().number("ratio"); drop > 0)
    kept = c.op("Dropout", {seen, c.number(drop, DType::Float32), c.number(1.0, DType::Bool)});
  const std::string y = c.op("MatMul", {kept, exported_keys(c, Sdpa::kV, wide)});
  c.set(0, "Cast", {y}, {{"to", dtype}});
}

// With `nan_if_blind`, rows that the mask hides from all keys give NaN, as a softmax of their
// scores does. With `softcap` > 0 the scores are softcap tanh(scale q k' / softcap) + mask (Gemma 2
// report, 2024): in inference alone, there is no gradient.
REGISTER_OP(ScaledDotProductAttention,
            {.domain = "com.microsoft",
             .inputs = {"q", "k", "v", "mask?"},
             .outputs = {"y", "statistics"},
             .kind = OpKind::MatMul,
             .random = true,
             .infer = infer_attention,
             .grad = attention_grad,
             .flops = attention_flops,
             .onnx = {export_attention},
             .from_torch = {{"aten.scaled_dot_product_attention.default", convert_attention}}});

REGISTER_OP(ScaledDotProductAttentionGrad,
            {.domain = "com.microsoft",
             .inputs = {"dy", "q", "k", "v", "y", "statistics", "mask?"},
             .outputs = {"dq", "dk", "dv"},
             .kind = OpKind::MatMul,
             .random = true,
             .infer = infer_attention_grad,
             .grad = attention_grad_grad,
             .non_differentiable = {4, 5, 6},
             .flops = attention_grad_flops});

// The dimensions of the batch: those before the last two, but not heads that share keys.
RowAxes attention_rows(const RowQuery& query) {
  const int axis = query.axis(0), rank = query.rank(0);
  if (axis == rank - 3 && queries_per_key(query.dims(0), query.dims(1)) != 1) return std::nullopt;
  for (size_t i = 0; i < query.node.inputs().size(); ++i) {
    if (!query.node.input(i)) continue;
    const bool whole_mask = i == 3 && query.axis(i) == kWhole;
    if (!whole_mask && query.axis(i) + rank - query.rank(i) != axis) return std::nullopt;
  }
  if (axis == kWhole || axis >= rank - 2) return std::nullopt;
  return std::vector<int>(query.node.outputs().size(), axis);
}
REGISTER_ROW_AXES(attention_rows, "ScaledDotProductAttention");

}  // namespace
}  // namespace ortmodule
