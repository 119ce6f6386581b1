// Plans made from plans of other sizes are those that are made from nothing.
#include <gtest/gtest.h>

#include "ir/text.h"
#include "ops/emit.h"
#include "plan/replan.h"

namespace ortmodule {
namespace {

Lowered lowered_from(std::string_view text, Device device = Device::Host) {
  std::unique_ptr<Graph> graph = parse_graph(text);
  infer(*graph);
  return lower(*graph, device);
}

/// Row-major arguments of the graph where its symbols are so large.
PlanRequest request_of(const Lowered& lowered, int64_t n, int64_t m = 3) {
  PlanRequest request;
  request.symbols.bind("n", n);
  request.symbols.bind("m", m);
  for (const GraphInput& input : lowered.graph->inputs()) {
    const Sizes sizes = evaluate(input.value->dims, request.symbols);
    request.arguments.push_back({sizes, contiguous_strides(sizes), 0});
  }
  return request;
}

/// The text of a plan, with its peak, places and copies, and what kernels are handed.
std::string all_of(const Plan& plan) {
  std::string text = print(plan);
  for (const PlannedStep& step : plan.steps) {
    for (const NodeFacts& node : step.facts->nodes) {
      for (const auto& [name, attr] : node.attrs.entries())
        if (const auto* size = std::get_if<DimExpr>(&attr)) text += " " + name + "=" + size->text();
      for (const OperandRef& operand : node.inputs) text += " " + std::to_string(operand.literal);
    }
    for (const auto* operands : {&step.facts->inputs, &step.facts->outputs})
      for (const OperandFacts& operand : *operands) {
        for (int64_t size : operand.layout.sizes) text += " " + std::to_string(size);
        for (int64_t stride : operand.layout.strides) text += "," + std::to_string(stride);
      }
  }
  return text;
}

/// Plans for `from` and then, from there, for `to`; returns whether that was possible.
bool continues(const Lowered& lowered, const PlanRequest& from, const PlanRequest& to) {
  const auto earlier = make_plan(lowered, from);
  const Replanned made = replan(lowered, to, *earlier);
  EXPECT_EQ(all_of(*make_plan(lowered, to, earlier.get())), all_of(*make_plan(lowered, to)));
  return made.plan != nullptr;
}

// A step of generating text: keys grow, what is computed for the new token stays.
constexpr std::string_view kStep = R"(g (x: f32[m,1,8], w: f32[8,8], k: f32[m,2,n,4]) =>
    (y, keys, length) {
  p = MatMul (x, w)
  s = Sigmoid (p)
  q = Mul (p, s)
  r = Reshape<shape=[m,2,1,4]> (q)
  keys = Concat<axis=2> (k, r)
  t = Transpose<perm=[0,1,3,2]> (keys)
  a = MatMul (r, t)
  b = Mul (a, 0.5)
  c = Softmax<axis=-1> (b)
  d = MatMul (c, keys)
  e = Reshape<shape=[m,1,8]> (d)
  y = Add (e, x)
  f = ConstantOfShape<value=n, shape=[1], dtype=i64> ()
  length = Add (f, {n}:i64)
})";

TEST(Replan, GrownSizesMoveMemory) {
  const Lowered lowered = lowered_from(kStep);
  for (auto [n, m] : {std::pair{8, 3}, {9, 3}, {7, 3}, {8, 1}, {8, 5}, {0, 3}, {300, 2}})
    EXPECT_TRUE(continues(lowered, request_of(lowered, 8), request_of(lowered, n, m)))
        << n << " " << m;
  EXPECT_TRUE(
      replan(lowered, request_of(lowered, 9), *make_plan(lowered, request_of(lowered, 8))).moves);
}

TEST(Replan, ChainsOfPlansStayThose) {
  const Lowered lowered = lowered_from(kStep);
  std::shared_ptr<Plan> plan = make_plan(lowered, request_of(lowered, 4));
  for (int64_t n : {5, 6, 64, 3, 3, 9}) {
    plan = make_plan(lowered, request_of(lowered, n), plan.get());
    EXPECT_EQ(all_of(*plan), all_of(*make_plan(lowered, request_of(lowered, n)))) << n;
  }
}

// A mask that is only summed, as where a cache has its final size from the beginning.
TEST(Replan, SizesOfArgumentsAloneMoveNothing) {
  const Lowered lowered = lowered_from(R"(g (x: f32[m,4], mask: f32[m,n]) => (y) {
    a = ReduceSum<axes=[1], keepdims=1> (mask)
    b = Tanh (x)
    y = Mul (b, a)
  })");
  EXPECT_TRUE(continues(lowered, request_of(lowered, 8), request_of(lowered, 9)));
  const auto earlier = make_plan(lowered, request_of(lowered, 8));
  const Replanned made = replan(lowered, request_of(lowered, 9), *earlier);
  ASSERT_TRUE(made.plan);
  EXPECT_FALSE(made.moves);
  EXPECT_EQ(made.plan->steps.back().facts, earlier->steps.back().facts);
}

TEST(Replan, OtherStepsArePlannedFromNothing) {
  const Lowered lowered = lowered_from(kStep);
  PlanRequest threads = request_of(lowered, 9);
  threads.threads = 2;
  EXPECT_FALSE(continues(lowered, request_of(lowered, 8), threads));
  // Softmax wants rows without gaps, and so a copy, where the columns of `x` are more than one.
  const Lowered transposed = lowered_from(R"(g (x: f32[n,m]) => (y) {
    t = Transpose<perm=[1,0]> (x)
    y = Softmax<axis=-1> (t)
  })");
  EXPECT_FALSE(continues(transposed, request_of(transposed, 8, 1), request_of(transposed, 8, 3)));
  EXPECT_FALSE(continues(transposed, request_of(transposed, 8, 3), request_of(transposed, 9, 3)));
  const auto earlier = make_plan(lowered, request_of(lowered, 8));
  EXPECT_FALSE(replan(lowered_from(kStep), request_of(lowered, 9), *earlier).plan) << "other graph";
}

// An output that is a part of a value has the value's memory only where it is the whole of it.
TEST(Replan, PartsOfLargerValuesAreCopiedToOutputs) {
  const Lowered lowered = lowered_from(R"(g (x: f32[n,4], z: f32[m,4]) => (y) {
    t = Tanh (x)
    y = Slice<axis=0, start=0, end=m, step=1> (t)
  })");
  EXPECT_FALSE(continues(lowered, request_of(lowered, 4, 4), request_of(lowered, 8, 4)));
  EXPECT_FALSE(continues(lowered, request_of(lowered, 8, 4), request_of(lowered, 4, 4)));
  EXPECT_TRUE(continues(lowered, request_of(lowered, 4, 4), request_of(lowered, 5, 5)));
}

TEST(Replan, SizesThatNoPlanTakesAreRefused) {
  const Lowered lowered = lowered_from(R"(g (x: f32[m]) => (y) {
    y = ConstantOfShape<value=0.0, shape=[n,n], dtype=f32> ()
  })");
  const auto earlier = make_plan(lowered, request_of(lowered, 2));
  for (int64_t n : {int64_t{1} << 30, int64_t{1} << 40})
    EXPECT_THROW(replan(lowered, request_of(lowered, n), *earlier), Error) << n;
}

TEST(Replan, TrainingDoesNotKeepDrafts) {
  const Lowered lowered = lowered_from(kStep, Device::CPU);
  const auto earlier = make_plan(lowered, request_of(lowered, 8));
  EXPECT_TRUE(earlier->draft.storages.empty());
  EXPECT_FALSE(replan(lowered, request_of(lowered, 9), *earlier).plan);
}

TEST(Replan, MoreSymbolsThanBitsAreToldApart) {
  std::string inputs, outputs, text;
  for (int i = 0; i < 70; ++i) {
    const std::string n = std::to_string(i);
    inputs += (i ? ", x" : "x") + n + ": f32[s" + n + "]";
    outputs += (i ? ", y" : "y") + n;
    text += " y" + n + " = Tanh (x" + n + ")\n";
  }
  const Lowered lowered = lowered_from("g (" + inputs + ") => (" + outputs + ") {\n" + text + "}");
  const auto asked = [&](int64_t last) {
    PlanRequest request;
    for (int i = 0; i < 70; ++i) request.symbols.bind("s" + std::to_string(i), i == 69 ? last : 2);
    for (const GraphInput& input : lowered.graph->inputs()) {
      const Sizes sizes = evaluate(input.value->dims, request.symbols);
      request.arguments.push_back({sizes, contiguous_strides(sizes), 0});
    }
    return request;
  };
  EXPECT_FALSE(continues(lowered, asked(3), asked(5)));
}

}  // namespace
}  // namespace ortmodule
