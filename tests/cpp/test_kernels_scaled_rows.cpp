// Pointwise groups that scale rows, and some that only look so.
#include "test_kernels_harness.h"

namespace ortmodule::testing {
namespace {

// Operand of a broadcast: the element of t that output position `position` of `sizes` reads.
double broadcast_get(const Tensor& t, const Sizes& sizes, int64_t position) {
  int64_t offset = 0, stride = 1;
  size_t d = sizes.size();
  for (size_t k = t.sizes().size(); k-- > 0;) {
    const int64_t coordinate = position % sizes[--d];
    position /= sizes[d];
    offset += t.sizes()[k] == 1 ? 0 : coordinate * stride;
    stride *= t.sizes()[k];
  }
  return t.get(offset);
}

// x a + b with one a and b for each row, which stay in registers, and what is nearly that.
TEST(PointwiseGroup, ScalesRows) {
  for (bool bends : {false, true})
    for (const Sizes& by : {Sizes{3, 1, 1}, Sizes{2, 3, 1, 1}, Sizes{1}, Sizes{4, 7}})
      for (bool swapped : {false, true}) {
        const Sizes sizes{2, 3, 4, 7};
        Tensor x = Tensor::random(DType::Float32, sizes, 1), y(DType::Float32, sizes);
        Tensor a = Tensor::random(DType::Float32, by, 2), b = Tensor::random(DType::Float32, by, 3);
        x.set(5, std::nan(""));
        NodeFacts product = node_of("Mul", {}, {&x, &a}, {&y}), sum = product, relu = product;
        sum.op = "Add", relu.op = "Relu";
        if (swapped) std::swap(product.inputs[0], product.inputs[1]);
        sum.inputs = {{OperandRef::Kind::Register, 0}, {OperandRef::Kind::Input, 2}};
        if (swapped) std::swap(sum.inputs[0], sum.inputs[1]);
        relu.inputs = {{OperandRef::Kind::Register, 1}};
        relu.input_dtypes = {DType::Float32};
        product.outputs = {-1};
        if (bends) sum.outputs = {-1};
        std::vector<double> expected;
        for (int64_t i = 0; i < x.count(); ++i) {
          const auto of = [&](const Tensor& t) {
            return static_cast<float>(broadcast_get(t, sizes, i));
          };
          const float product_i = of(x) * of(a), sum_i = product_i + of(b);
          expected.push_back(bends && sum_i < 0 ? 0 : sum_i);
        }
        std::vector<NodeFacts> nodes{product, sum};
        if (bends) nodes.push_back(relu);
        run_group(nodes, {&x, &a, &b}, {&y},
                  [&] { expect_close(y, expected, 0, 0, "scaled rows"); });
      }
}

}  // namespace
}  // namespace ortmodule::testing
