// Which steps are alike, what a plan shares among them, and the order of backward steps.
#include <gtest/gtest.h>

#include "ir/text.h"
#include "lower/lower.h"
#include "ops/emit.h"
#include "plan/make_plan.h"

namespace ortmodule {
namespace {

std::unique_ptr<Graph> parsed(std::string_view text) {
  std::unique_ptr<Graph> graph = parse_graph(text);
  infer(*graph);
  return graph;
}

std::shared_ptr<Plan> plan_of(const Graph& graph, std::vector<Layout> arguments = {}) {
  PlanRequest request;
  request.symbols.bind("n", 8);
  request.arguments = std::move(arguments);
  return make_plan(lower(graph, Device::CPU), request);
}

/// By step that computes a value: the name of that value and the facts of the step.
std::vector<std::pair<std::string, const StepFacts*>> facts_of(const Plan& plan) {
  std::vector<std::pair<std::string, const StepFacts*>> facts;
  for (const PlannedStep& step : plan.steps)
    if (!step.nodes.empty())
      facts.emplace_back(step.nodes.back()->output()->name, step.facts.get());
  return facts;
}

const StepFacts* of(const Plan& plan, std::string_view name) {
  for (const auto& [computed, facts] : facts_of(plan))
    if (computed == name) return facts;
  ADD_FAILURE() << "no step computes " << name;
  return nullptr;
}

TEST(StepForms, RepeatedLayersShareTheirFacts) {
  const auto plan = plan_of(*parsed(R"(g (x: f32[n,4], w: f32[4,4], v: f32[4,4]) => (d) {
    a = MatMul (x, w); b = Softmax<axis=-1> (a)
    c = MatMul (b, v); d = Softmax<axis=-1> (c)
  })"));
  EXPECT_EQ(of(*plan, "a"), of(*plan, "c"));
  EXPECT_EQ(of(*plan, "b"), of(*plan, "d"));
  EXPECT_NE(of(*plan, "a"), of(*plan, "b"));
}

TEST(StepForms, OtherSizesAttributesAndLiteralsAreNotAlike) {
  const auto plan = plan_of(*parsed(R"(g (x: f32[n,4], w: f32[4,4], v: f32[4,5]) => (c, d, e, f) {
    a = MatMul (x, w); c = MatMul (x, v)
    b = Softmax<axis=-1> (a); d = Softmax<axis=0> (a)
    g = ReduceSum<axes=[0], keepdims=0> (b); e = Mul (g, 0.0)
    h = ReduceSum<axes=[0], keepdims=0> (d); f = Mul (h, -0.0)
  })"));
  EXPECT_NE(of(*plan, "a"), of(*plan, "c"));
  EXPECT_NE(of(*plan, "b"), of(*plan, "d"));
  EXPECT_EQ(of(*plan, "g"), of(*plan, "h"));
  EXPECT_NE(of(*plan, "e"), of(*plan, "f")) << "-0.0 is not 0.0";
}

TEST(StepForms, OperandsOfOtherLayoutsAndPlacesAreNotAlike) {
  const auto graph = parsed(R"(g (x: f32[n,4], y: f32[n,4], z: f32[n,4]) => (p, q, r, s) {
    p = Softmax<axis=-1> (x); q = Softmax<axis=-1> (y)
    r = Sub (x, z); s = Sub (z, z)
  })");
  const Layout dense{{8, 4}, {4, 1}, 0}, wide{{8, 4}, {6, 1}, 0};
  const auto plan = plan_of(*graph, {dense, wide, dense});
  EXPECT_NE(of(*plan, "p"), of(*plan, "q"));
  EXPECT_NE(of(*plan, "r"), of(*plan, "s")) << "a group reads each operand once";
}

// As in a step of generating text: only what reads the cache depends on its length.
TEST(StepForms, PlansOfOtherSizesShareStepsOfTheSameSizes) {
  const auto graph = parsed(R"(g (x: f32[2,4], w: f32[4,4], past: f32[n,4]) => (c, s, d, f) {
    a = MatMul (x, w); b = Softmax<axis=-1> (a)
    c = Concat<axis=0> (past, b); s = Softmax<axis=0> (c)
    d = ReduceSum<axes=[0], keepdims=0> (b)
    f = ConstantOfShape<value=n, shape=[1], dtype=f32> ()
  })");
  const Lowered lowered = lower(*graph, Device::CPU);
  const auto request_of = [](int64_t n, int64_t threads) {
    PlanRequest request;
    request.symbols.bind("n", n);
    request.threads = threads;
    return request;
  };
  const auto first = make_plan(lowered, request_of(8, 1));
  const auto second = make_plan(lowered, request_of(9, 1), first.get());
  for (std::string_view name : {"a", "b", "d"}) EXPECT_EQ(of(*first, name), of(*second, name));
  for (std::string_view name : {"c", "s", "f"})
    EXPECT_NE(of(*first, name), of(*second, name)) << name;
  EXPECT_EQ(print(*second), print(*make_plan(lowered, request_of(9, 1))));
  const auto threaded = make_plan(lowered, request_of(8, 2), first.get());
  EXPECT_NE(of(*first, "a"), of(*threaded, "a")) << "scratch is for a number of threads";
  const auto other = make_plan(lower(*graph, Device::CPU), request_of(8, 1), first.get());
  EXPECT_NE(of(*first, "a"), of(*other, "a")) << "of another graph";
}

/// The results of each pointwise step, joined.
std::vector<std::string> pointwise_steps(const Graph& graph, Device device) {
  std::vector<std::string> steps;
  for (const StepNodes& step : lower(graph, device, {}).steps) {
    if (!step.pointwise) continue;
    std::string names;
    for (const Node* node : step.nodes) names += node->output()->name;
    steps.push_back(names);
  }
  return steps;
}

// The casts of weights under autocast, and the counters of batch norms: a launch each otherwise.
// The cast `t` is large and not kept, `u` has other sizes.
TEST(Steps, AlikeOnesOfParametersAreOneOnCuda) {
  const auto graph =
      parsed(R"(g (x: bf16[256,256], w: param grad f32[256,256], v: param grad f32[256,256],
      o: f32[256,256], p: param grad f32[256,8], n: i64[], m: i64[], dz: dy 0 bf16[256,8])
      => (z, i, j, grad 1: dw, grad 2: dv, grad 4: dp) {
    i = Add (n, 1)
    a = Cast<to=bf16> (w); y = MatMul (x, a); t = Cast<to=bf16> (o); q = MatMul (y, t)
    j = Add (m, 1)
    b = Cast<to=bf16> (v); e = Transpose<perm=[1,0]> (b); r = MatMul (q, e)
    u = Cast<to=bf16> (p); z = MatMul (r, u)
    backward: dp = FusedMatMul<transA=1> (r, dz)
    backward: dr = FusedMatMul<transB=1> (dz, u)
    backward: dv = FusedMatMul<transB=1> (dr, e)
    backward: dw = FusedMatMul<transB=1> (dr, a)
  })");
  EXPECT_EQ(pointwise_steps(*graph, Device::CUDA),
            (std::vector<std::string>{"ij", "ab", "t", "u"}));
  EXPECT_EQ(pointwise_steps(*graph, Device::CPU).size(), 6U);
}

// Casts of biases: `b` is converted where it is spread out; `c` and `d` are read by products, and
// small, so that keeping them until then costs nothing.
TEST(Steps, CastsOfBiasesAreNoStepsOfTheirOwnOnCuda) {
  const auto graph = parsed(R"(g (x: bf16[8,4], w: bf16[4,4], p: f32[4], q: f32[4], r: f32[4])
      => (y) {
    b = Cast<to=bf16> (p); s = MatMul (x, w); t = Add (s, b); u = Relu (t)
    c = Cast<to=bf16> (q); v = Gemm (u, w, c)
    d = Cast<to=bf16> (r); y = Gemm (v, w, d)
  })");
  EXPECT_EQ(pointwise_steps(*graph, Device::CUDA), (std::vector<std::string>{"btu", "cd"}));
  EXPECT_EQ(pointwise_steps(*graph, Device::CPU), (std::vector<std::string>{"b", "tu", "c", "d"}));
}

// The casts of gradients under autocast: each waits for the next of its kind. `p` and `q` are
// large, and nearly all of the gradients; `i` is an op of its own kind, with operands as large as
// its result; `k` is read.
TEST(Steps, AlikeOnesThatAreOnlyReturnedAreOneOnCuda) {
  const auto graph = parsed(R"(g (x: f32[4,4], e: bf16[65537,4], u: param grad f32[4,4],
      v: param grad f32[4,4], w: param grad f32[4,4], r: param grad f32[65537,4],
      s: param grad f32[65537,4], dy: dy 0 f32[4,4])
      => (y, grad 2: a, grad 3: b, grad 4: c, grad 5: p, grad 6: q) {
    y = Softmax<axis=1> (x)
    backward: k = Cast<to=bf16> (dy)
    backward: l = Softmax<axis=0> (k)
    backward: a = Cast<to=f32> (l)
    backward: m = Softmax<axis=1> (l)
    backward: b = Cast<to=f32> (m)
    backward: n = Softmax<axis=0> (m)
    backward: c = Cast<to=f32> (n)
    backward: f = Softmax<axis=0> (e)
    backward: p = Cast<to=f32> (f)
    backward: h = Softmax<axis=1> (e)
    backward: q = Cast<to=f32> (h)
  })");
  EXPECT_EQ(pointwise_steps(*graph, Device::CUDA),
            (std::vector<std::string>{"k", "cba", "p", "q"}));
  EXPECT_EQ(pointwise_steps(*graph, Device::CPU).size(), 6U);
}

/// Backward passes that cast this many gradients of weights with so many rows of 64.
std::vector<std::string> casts_of_weights(int count, int rows, const std::string& op) {
  std::string text = "g (x: f32[4,4], dy: dy 0 f32[4,4]", results = ") => (y";
  std::string body = "{ y = Softmax<axis=1> (x)\n";
  for (int i = 0; i < count; ++i) {
    const std::string w = str("w", i), g = str("g", i);
    text += str(", ", w, ": param grad f32[", rows, ",64], e", i, ": bf16[", rows, ",64]");
    results += str(", grad ", 2 + 2 * i, ": ", g);
    body += str("backward: s", i, " = Softmax<axis=", i % 2, "> (e", i, ")\n");
    if (op == "Cast") {
      body += str("backward: ", g, " = Cast<to=f32> (s", i, ")\n");
    } else {
      body += str("backward: t", i, " = Softmax<axis=1> (", w, ")\n");
      body += str("backward: ", g, " = ", op, " (t", i, ", 2.0)\n");
    }
  }
  return pointwise_steps(*parsed(text + results + ") " + body + "}"), Device::CUDA);
}

// What they keep until the last of them is at most a sixteenth of all, and no tensor is so large
// that it is better read from the cache. Other ops keep as much as they give: each runs at once.
TEST(Steps, CastsOfManyWeightsGradientsShareLaunchesOnCuda) {
  EXPECT_EQ(casts_of_weights(64, 1024, "Cast").size(), 16U);
  EXPECT_EQ(casts_of_weights(64, 16384, "Cast").size(), 16U);
  EXPECT_EQ(casts_of_weights(64, 16385, "Cast").size(), 64U);
  EXPECT_EQ(casts_of_weights(15, 4096, "Cast").size(), 15U);
  EXPECT_EQ(casts_of_weights(64, 1024, "Mul").size(), 64U);
}

// A weight's cast is written channels-last, an output and a gradient row-major: a copy would be a
// launch. Where the cast is read as it is, too, and where tensors are large, there is one, by
// tiles.
TEST(Steps, GroupsOnCudaWriteTheLayoutThatIsWanted) {
  const auto graph = parsed(R"(g (w: param grad f32[n,8,3,3], dy: dy 0 bf16[n,8,3,3])
      => (y, z, e, grad 0: dw) {
    a = Cast<to=bf16> (w); b = ChannelsLast (a); y = Relu (b)
    c = Cast<to=f16> (w); d = ChannelsLast (c); z = Neg (d); e = Softmax<axis=3> (c)
    backward: f = Mul (b, dy)
    backward: dw = Cast<to=f32> (f)
  })");
  const auto copied = [&](Device device, int64_t n, std::vector<Sizes> output_strides = {}) {
    PlanRequest request;
    request.symbols.bind("n", n);
    request.output_strides = std::move(output_strides);
    std::vector<std::string> names;
    const auto plan = make_plan(lower(*graph, device), request);
    for (const PlannedStep& step : plan->steps)
      if (step.kernel->op == "Contiguous") names.push_back(plan->tensors[step.in[0]].value->name);
    return names;
  };
  EXPECT_EQ(copied(Device::CUDA, 4), (std::vector<std::string>{"c"}));
  EXPECT_EQ(copied(Device::CUDA, 200'000), (std::vector<std::string>{"a", "c", "y", "z", "dw"}));
  EXPECT_EQ(copied(Device::CPU, 4), (std::vector<std::string>{"a", "c", "y", "z", "dw"}));
  const Sizes expanded = {0, 9, 3, 1};  // its elements share memory
  EXPECT_EQ(copied(Device::CUDA, 4, {{}, expanded}), (std::vector<std::string>{"c", "z"}));
}

// The flattened gradient `flat` exists as soon as `dy`; the activation `b` is then free for `db`.
TEST(BackwardOrder, WeightGradientsRunBeforeTheGradientOfTheirOperand) {
  const auto graph = parsed(R"(chain (x: f32[2,4,4], w: param grad f32[4,4],
      v: param grad f32[4,4], dy: dy 0 f32[2,4,4]) => (y, grad 1: dw, grad 2: dv) {
    a = MatMul (x, w)
    b = Tanh (a)
    y = MatMul (b, v)
    backward: db = FusedMatMul<transB=1> (dy, v)
    backward: seen = Reshape<shape=[8,4]> (b)
    backward: flat = Reshape<shape=[8,4]> (dy)
    backward: dv = FusedMatMul<transA=1> (seen, flat)
    backward: da = TanhGrad (db, b)
    backward: rows = Reshape<shape=[8,4]> (x)
    backward: dflat = Reshape<shape=[8,4]> (da)
    backward: dw = FusedMatMul<transA=1> (rows, dflat)
  })");
  sort_backward(*graph);
  std::vector<std::string> order;
  for (const auto& node : graph->nodes())
    if (node->region == Region::Backward) order.push_back(node->output()->name);
  // Views of what forward computed stay where they are read: with them it would be recomputed.
  const std::vector<std::string> wanted = {"seen", "flat", "dv", "db", "da", "rows", "dflat", "dw"};
  EXPECT_EQ(order, wanted);
}

}  // namespace
}  // namespace ortmodule
