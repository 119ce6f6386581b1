#include "ops/norm_grad_grad.h"

namespace ortmodule {
namespace {

class NormRule {
 public:
  NormRule(GradContext& c, const NormStatistics& n)
      : c_(c), n_(n), type_(n.inv_std_dev.dtype()), u_(wide(c.dy(0))), dy_(wide(c.x(0))) {
    // Without a bias or a mean the op may have two results only.
    const bool has_bias = c.node().outputs().size() > 2;
    v_ = spread(c.dy(1));
    b_ = has_bias ? spread(c.dy(2)) : Handle();
    scale_ = spread(c.x(2));
    if (u_) projected_u_ = project(u_);
  }

  Grads grads() {
    Grads grads(c_.input_count());
    if (c_.needs(0)) grads[0] = of_dy();
    if (c_.needs(1)) grads[1] = of_x();
    if (c_.needs(2) && c_.x(2) && u_) {
      const Handle product = dy_ * projected_u_;
      grads[2] = c_.reshape(c_.sum_to(product, scale_.dims()), c_.x(2).dims());
    }
    return grads;
  }

 private:
  Handle wide(Handle value) { return value ? c_.cast(value, type_) : value; }
  Handle spread(Handle value) { return value ? n_.spread(wide(value)) : value; }

  // P(h) by the fused op, without a scale.
  Handle project(Handle h) {
    const Handle x = c_.x(1);
    std::vector<Handle> operands{c_.cast(h, x.dtype()), x, Handle()};
    for (size_t i = 3; i < c_.input_count(); ++i) operands.push_back(c_.x(i));
    return wide(c_.emit_all(c_.node().op, std::move(operands), c_.attrs())[0]);
  }

  static void add(Handle& sum, Handle term) { sum = sum ? sum + term : term; }

  Handle of_dy() {
    Handle sum;
    if (u_) sum = scale_ ? projected_u_ * scale_ : projected_u_;
    if (v_) add(sum, n_.normalized * v_);
    if (b_) add(sum, c_.emit("Expand", {b_}, {{"shape", dy_.dims()}}));
    return sum;
  }

  Handle of_x() {
    const Handle s = scale_ ? dy_ * scale_ : dy_, xh = n_.normalized, r = n_.inv_std_dev;
    Handle h;
    if (v_) h = dy_ * v_;
    if (u_) add(h, -(r * (u_ * n_.mean(s * xh) + s * n_.mean(u_ * xh))));
    if (!h) return {};
    Handle result = project(h);
    if (u_) result = result - xh * r * n_.mean(s * projected_u_);
    return result;
  }

  GradContext& c_;
  const NormStatistics& n_;
  DType type_;
  Handle u_, dy_, v_, b_, scale_, projected_u_;
};

}  // namespace

Grads norm_grad_grad(GradContext& c, const NormStatistics& statistics) {
  return NormRule(c, statistics).grads();
}

Handle in_statistics_type(GradContext& c, Handle value, size_t statistic) {
  return c.cast(value, c.x(statistic).dtype());
}

Dims normalized_axes(const GradContext& c, size_t rank) {
  const int64_t axis = c.attrs().integer("axis"), all = static_cast<int64_t>(rank);
  Dims axes;
  for (int64_t d = axis < 0 ? axis + all : axis; d < all; ++d) axes.emplace_back(d);
  return axes;
}

}  // namespace ortmodule
