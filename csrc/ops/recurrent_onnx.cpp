// The ONNX form of recurrent ops.
#include "ops/pack_sequence.h"
#include "ops/recurrent.h"

namespace ortmodule {
namespace {

constexpr size_t kFirstState = kInitialH;

/// The input [T, B, I] or [B, T, I] and the weights [gates, I] of the product `pre`.
struct InputProduct {
  const Value *x = nullptr, *w = nullptr;
};

InputProduct find_product(const Value& pre) {
  const auto producer = [](const Value* value, std::string_view op) -> const Node* {
    return value->producer() && value->producer()->op == op ? value->producer() : nullptr;
  };
  const bool packed = pre.rank() == 2;
  if (packed) {
    const Node* product = producer(&pre, "MatMul");
    const Node* flipped = product ? producer(product->input(1), "Transpose") : nullptr;
    return flipped ? InputProduct{product->input(0), flipped->input(0)} : InputProduct{};
  }
  const Node* reshaped = producer(&pre, "Reshape");
  const Node* product = reshaped ? producer(reshaped->input(0), "MatMul") : nullptr;
  if (!product) return {};
  const Node* rows = producer(product->input(0), "Reshape");
  const Node* flipped = producer(product->input(1), "Transpose");
  if (!rows || !flipped) return {};
  const InputProduct found{rows->input(0), flipped->input(0)};
  const bool same_steps =
      found.x->rank() == 3 && found.x->dims[0] == pre.dims[0] && found.x->dims[1] == pre.dims[1];
  return same_steps ? found : InputProduct{};
}

class RecurrentWriter {
 public:
  RecurrentWriter(const OnnxRuleContext& c, const RecurrentForm& form)
      : c_(c),
        form_(form),
        width_(c.value(kR).dims[1].value()),
        inside_(compute_dtype(c.dtype())),
        batch_first_(c.attrs().flag("layout")),
        packed_(c.value(kPre).rank() == 2) {}

  void write() {
    const InputProduct product = find_product(c_.value(kPre));
    std::string x = wide(product.x ? c_.name(product.x) : c_.in(kPre));
    if (packed_) {
      const Value& sizes = c_.value(kFirstState + form_.states + 1);
      const DimExpr batch = c_.value(kFirstState).dims[0];
      mask_ = packed_mask(c_, c_.name(&sizes), batch);
      positions_ = packed_positions(c_, mask_);
      const Value& rows = product.x ? *product.x : c_.value(kPre);
      x = padded_batch(c_, x, positions_, {sizes.dims[0], batch, rows.dims[1]}, 0.0, inside_);
    } else if (batch_first_) {
      x = flipped(x);
    }
    const std::string w = product.w ? wide(c_.name(product.w)) : identity();
    std::vector<std::string> inputs{x, one_direction(reordered(w)),
                                    one_direction(reordered(wide(c_.in(kR)))), bias()};
    const size_t lengths = kFirstState + form_.states;
    inputs.push_back(packed_           ? packed_lengths()
                     : c_.has(lengths) ? c_.cast(c_.in(lengths), DType::Int32)
                                       : "");
    for (size_t i = 0; i < form_.states; ++i)
      inputs.push_back(c_.has(kFirstState + i) ? one_direction(wide(c_.in(kFirstState + i))) : "");
    OnnxAttrs attrs = form_.attrs;
    attrs.emplace_back("hidden_size", width_);
    attrs.emplace_back("direction",
                       std::string(c_.attrs().flag("reverse") ? "reverse" : "forward"));
    std::vector<std::string> outputs;
    for (size_t i = 0; i <= form_.states; ++i)
      outputs.push_back(c_.wanted(i) ? c_.b.fresh_name(c_.out(i)) : "");
    c_.b.add(form_.op, std::move(inputs), std::move(attrs), outputs);
    if (c_.wanted(0)) {
      const std::string y = c_.op("Squeeze", {outputs[0], c_.b.integers({1})});
      give(0, packed_ ? c_.op("GatherND", {y, positions_}) : batch_first_ ? flipped(y) : y);
    }
    for (size_t i = 1; i <= form_.states; ++i)
      if (c_.wanted(i)) give(i, c_.op("Squeeze", {outputs[i], c_.b.integers({0})}));
  }

 private:
  std::string wide(const std::string& tensor) const {
    return inside_ == c_.dtype() ? tensor : c_.cast(tensor, inside_);
  }
  void give(size_t i, const std::string& tensor) const {
    c_.set(i, "Cast", {tensor}, {{"to", c_.dtype()}});
  }
  std::string packed_lengths() const {
    return c_.op("ReduceSum", {c_.cast(mask_, DType::Int32), c_.b.integers({0})},
                 {{"keepdims", int64_t{0}}});
  }
  std::string flipped(const std::string& sequence) const {
    return c_.op("Transpose", {sequence}, {{"perm", std::vector<int64_t>{1, 0, 2}}});
  }
  std::string one_direction(const std::string& tensor) const {
    return c_.op("Unsqueeze", {tensor, c_.b.integers({0})});
  }

  /// Blocks of rows in ONNX's order of gates.
  std::string reordered(const std::string& tensor) const {
    if (form_.gates.size() == 1) return tensor;
    std::vector<std::string> blocks;
    for (size_t gate : form_.gates) {
      const auto begin = static_cast<int64_t>(gate) * width_;
      blocks.push_back(c_.op("Slice", {tensor, c_.b.integers({begin}),
                                       c_.b.integers({begin + width_}), c_.b.integers({0})}));
    }
    return c_.op("Concat", blocks, {{"axis", int64_t{0}}});
  }

  std::string bias() const {
    if (!c_.has(kInputBias) && !c_.has(kRecurrentBias)) return "";
    std::vector<std::string> both;
    for (size_t i : {kInputBias, kRecurrentBias}) both.push_back(reordered(wide(c_.in(i))));
    return one_direction(c_.op("Concat", both, {{"axis", int64_t{0}}}));
  }

  /// Weights for a product that was computed before.
  std::string identity() const {
    const DimExpr rows = c_.value(kR).dims[0];
    const OnnxTensor zero{inside_, {1}, encode_scalar(0.0, inside_)};
    const std::string zeros =
        c_.op("ConstantOfShape", {c_.b.sizes({rows, rows})}, {{"value", zero}});
    return c_.op("EyeLike", {zeros});
  }

  const OnnxRuleContext& c_;
  const RecurrentForm& form_;
  int64_t width_;
  DType inside_;
  bool batch_first_, packed_;
  std::string mask_, positions_;  // of a packed batch
};

}  // namespace

void export_recurrent(const OnnxRuleContext& c, const RecurrentForm& form) {
  for (size_t i = form.states + 1; i < c.node.outputs().size(); ++i)
    if (c.wanted(i)) return export_custom(c, "com.microsoft");
  if (!c.value(kR).dims[1].is_constant()) return export_custom(c, "com.microsoft");
  RecurrentWriter(c, form).write();
}

}  // namespace ortmodule
