// Facts about the registered ops: complete definitions, shapes, views, gradients as text.

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "base/error.h"
#include "gradient/build_gradient.h"
#include "ir/text.h"
#include "ops/infer_rules.h"
#include "ops/op_def.h"

namespace ortmodule {
namespace {

DimExpr size(std::string_view text) { return DimExpr::parse(text); }

Dims sizes(std::initializer_list<std::string_view> texts) {
  Dims dims;
  for (std::string_view text : texts) dims.push_back(size(text));
  return dims;
}

std::unique_ptr<Graph> inferred(std::string_view text) {
  std::unique_ptr<Graph> graph = parse_graph(text);
  infer(*graph);
  return graph;
}

std::string joint_text(std::string_view text) {
  return print(*build_gradient(*inferred(text)), {.types = false});
}

std::string inference_error(std::string_view text) {
  try {
    inferred(text);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

std::optional<Layout> view_of(std::string_view op, const Layout& in, const Attrs& attrs,
                              const Sizes& out_sizes, size_t output = 0) {
  return op_def(op).view(in, attrs, out_sizes, output);
}

Layout contiguous(Sizes sizes) { return {sizes, contiguous_strides(sizes), 0}; }

// --- registry ---------------------------------------------------------------------------------

TEST(OpRegistry, EveryOpIsDefinedCompletely) {
  EXPECT_GT(all_ops().size(), 100u);
  for (const OpDef* def : all_ops()) {
    EXPECT_FALSE(def->outputs.empty()) << def->name;
    EXPECT_TRUE(def->infer || has_body(*def)) << def->name;
    EXPECT_EQ(def->kind == OpKind::View, def->view != nullptr) << def->name;
    const std::string file = std::string(ORTM_SOURCE_DIR) + "/" + std::string(file_of(*def));
    EXPECT_TRUE(std::filesystem::exists(file)) << file;
  }
}

TEST(OpRegistry, FindsOpsAndTorchSpellings) {
  EXPECT_EQ(find_op("NoSuchOp"), nullptr);
  EXPECT_THROW(op_def("NoSuchOp"), InternalError);
  EXPECT_EQ(op_def("Softmax").name, "Softmax");
  EXPECT_EQ(file_of(op_def("Softmax")), "csrc/ops/softmax.cpp");
  ASSERT_NE(find_torch_row("aten.linear.default"), nullptr);
  EXPECT_EQ(find_torch_row("aten.linear"), nullptr);
  for (std::string_view target : all_torch_targets()) EXPECT_NE(find_torch_row(target), nullptr);
}

// A node of a fused op with operands of fitting shapes: [n, 8], or [8] per feature.
Node* sample(Graph& graph, const OpDef& def) {
  Values operands;
  for (std::string_view operand : def.inputs) {
    if (operand.ends_with('?')) operand.remove_suffix(1);
    const std::set<std::string_view> per_feature = {"bias", "scale", "running_mean", "running_var"};
    const Dims dims = per_feature.contains(operand) ? Dims{8} : sizes({"n", "8"});
    operands.push_back(graph.add_input(operand, DType::Float32, dims));
  }
  const Attrs attrs{{"ratio", 0.5},
                    {"rng", 3},
                    {"shape", sizes({"n", "8"})},
                    {"dtype", DType::Float32},
                    {"to", DType::BFloat16}};
  return emit_node(graph, def.name, operands, attrs);
}

TEST(OpRegistry, BodiesGiveTheTypesThatInferenceGives) {
  for (const OpDef* def : all_ops()) {
    if (def->body.empty()) continue;
    Graph graph;
    const Node* node = sample(graph, *def);
    const std::unique_ptr<Graph> body = instantiate_body(*node);
    ASSERT_EQ(body->outputs().size(), node->outputs().size()) << def->name;
    for (size_t i = 0; i < body->outputs().size(); ++i) {
      EXPECT_EQ(body->outputs()[i].value->dims, node->output(i)->dims) << def->name;
      EXPECT_EQ(body->outputs()[i].value->dtype, node->output(i)->dtype) << def->name;
    }
  }
}

TEST(OpRegistry, AbsentOperandsAndAttributesVanishFromBodies) {
  Graph graph;
  Value* x = graph.add_input("x", DType::Float32, sizes({"n", "8"}));
  Value* bias = graph.add_input("bias", DType::Float32, {8});
  const Node* node =
      emit_node(graph, "BiasDropout", {x, bias, nullptr}, {{"ratio", 0.25}, {"rng", 7}});
  EXPECT_EQ(print(*instantiate_body(*node), {.types = false}),
            "bias_dropout (x, bias, residual) => (dropped) {\n"
            "  sum = Add (x, bias)\n"
            "  dropped = Dropout<ratio=0.25, rng=7> (sum)\n"
            "}\n");
}

TEST(OpRegistry, BodiesFollowRanksAndTypes) {
  Graph graph;
  Value* x = graph.add_input("x", DType::Float16, sizes({"n", "c", "h", "w"}));
  Value* row = graph.add_input("row", DType::Float32, sizes({"n", "c"}));
  Value* scale = graph.add_input("scale", DType::Float32, sizes({"c"}));
  const Attrs attrs{{"epsilon", 0.5}};
  const Node* node =
      emit_node(graph, "BatchNormalization", {x, scale, nullptr, scale, scale}, attrs);
  const std::unique_ptr<Graph> body = instantiate_body(*node);
  EXPECT_EQ(print(*body, {.types = false}),
            "batch_norm (x, scale, bias, mean, var) => (rounded) {\n"
            "  shifted = Add (var, 0.5)\n"
            "  factor = Rsqrt (shifted)\n"
            "  scaled = Mul (factor, scale)\n"
            "  moved = Mul (mean, scaled)\n"
            "  offset = Neg (moved)\n"
            "  wide_x = Cast<to=f32> (x)\n"
            "  each_scaled = Unsqueeze<axes=[1,2]> (scaled)\n"
            "  product = Mul (wide_x, each_scaled)\n"
            "  each_offset = Unsqueeze<axes=[1,2]> (offset)\n"
            "  sum = Add (product, each_offset)\n"
            "  rounded = Cast<to=f16> (sum)\n"
            "}\n");
  EXPECT_EQ(type_text(*body->outputs()[0].value), type_text(*node->output(0)));
  node = emit_node(graph, "BatchNormalization", {row, nullptr, scale, scale, scale}, attrs);
  EXPECT_EQ(print(*instantiate_body(*node), {.types = false}),
            "batch_norm (x, scale, bias, mean, var) => (sum) {\n"
            "  shifted = Add (var, 0.5)\n"
            "  factor = Rsqrt (shifted)\n"
            "  moved = Mul (mean, factor)\n"
            "  offset = Sub (bias, moved)\n"
            "  product = Mul (x, factor)\n"
            "  sum = Add (product, offset)\n"
            "}\n");
}

// --- shapes -----------------------------------------------------------------------------------

TEST(Broadcast, SizesAreEqualOrOne) {
  EXPECT_EQ(broadcast_dims(sizes({"n", "1", "4"}), sizes({"3", "1"})), sizes({"n", "3", "4"}));
  EXPECT_EQ(broadcast_dims(sizes({"2*n"}), sizes({"n+n"})), sizes({"2*n"}));
  EXPECT_EQ(broadcast_dims({}, sizes({"n"})), sizes({"n"}));
  EXPECT_THROW(broadcast_dims(sizes({"n", "2"}), sizes({"3"})), Error);
  EXPECT_EQ(try_broadcast({2}, {3}), std::nullopt);
}

TEST(Infer, NamesOpRuleAndFinding) {
  EXPECT_EQ(inference_error("g (a: f32[n,2], b: f32[3]) => (y) { y = Add (a, b) }"),
            "[Add] shapes must broadcast, but found [n,2] and [3]");
  EXPECT_EQ(inference_error("g (a: f32[2], b: i64[2]) => (y) { y = Mul (a, b) }"),
            "[Mul] operands must have the same type, but found f32 and i64");
  EXPECT_EQ(inference_error("g (a: f32[2,3], b: f32[4,5]) => (y) { y = MatMul (a, b) }"),
            "[MatMul] inner dimensions must be equal, but found [2,3] and [4,5]");
  EXPECT_EQ(inference_error("g (a: f32[2,3]) => (y) { y = Softmax<axis=2> (a) }"),
            "[Softmax] axis must lie in [-2, 2), but found 2");
}

TEST(Infer, SizesStaySymbolic) {
  const auto graph = inferred(R"(g (x: f32[b,s,12], w: f32[12,36]) => (y) {
    qkv = MatMul (x, w)
    q, k, v = Split<axis=-1, sizes=[12,12,12]> (qkv)
    heads = Reshape<shape=[b,s,3,4]> (q)
    t = Transpose<perm=[0,2,1,3]> (heads)
    tail = Slice<axis=2, start=1, end=s> (t)
    all = Concat<axis=2> (tail, t)
    y, m, i = LayerNormalization<axis=3> (all)
  })");
  const Node* last = graph->nodes().back().get();
  EXPECT_EQ(last->output(0)->dims, sizes({"b", "3", "2*s-1", "4"}));
  EXPECT_EQ(last->output(1)->dims, sizes({"b", "3", "2*s-1", "1"}));
}

TEST(Infer, CountsWindowsAndRanges) {
  const auto graph = inferred(R"(g (x: f32[n,3,h,32], w: f32[8,3,3,3]) => (y, i, r) {
    c = Conv<strides=[2,2], pads=[1,1,1,1], dilations=[1,1]> (x, w)
    y, i = MaxPool<kernel_shape=[3,3], strides=[2,2], pads=[0,0,0,0], ceil_mode=1> (c)
    r = Range<start=0, limit=n, delta=2, dtype=i64> ()
  })");
  const auto nodes = graph->node_pointers();
  EXPECT_EQ(nodes[0]->output()->dims, sizes({"n", "8", "(h-1)//2+1", "16"}));
  EXPECT_EQ(nodes[1]->output()->dims[3], size("8"));
  EXPECT_EQ(nodes[2]->output()->dims, sizes({"(n+1)//2"}));
}

// --- views ------------------------------------------------------------------------------------

TEST(Views, ReshapeSplitsAndMergesNestingStrides) {
  EXPECT_EQ(view_of("Reshape", contiguous({4, 6}), {}, {4, 2, 3})->strides, (Sizes{6, 3, 1}));
  EXPECT_EQ(view_of("Reshape", contiguous({4, 2, 3}), {}, {8, 3})->strides, (Sizes{3, 1}));
  EXPECT_EQ(view_of("Reshape", contiguous({2, 3}), {}, {1, 6, 1})->strides, (Sizes{6, 1, 1}));
  const Layout transposed{{6, 4}, {1, 6}, 5};
  EXPECT_EQ(view_of("Reshape", transposed, {}, {24}), std::nullopt);
  EXPECT_EQ(view_of("Reshape", transposed, {}, {2, 3, 4}), (Layout{{2, 3, 4}, {3, 1, 6}, 5}));
  const Layout columns{{4, 6}, {18, 1}, 6};  // one third of a fused projection
  EXPECT_EQ(view_of("Reshape", columns, {}, {2, 2, 2, 3})->strides, (Sizes{36, 18, 3, 1}));
  EXPECT_EQ(view_of("Reshape", columns, {}, {24}), std::nullopt);
  const Layout expanded{{3, 4}, {0, 1}, 0};
  EXPECT_EQ(view_of("Reshape", expanded, {}, {12}), std::nullopt);
  EXPECT_EQ(view_of("Reshape", contiguous({0, 4}), {}, {2, 0})->sizes, (Sizes{2, 0}));
}

TEST(Views, TransposeExpandSqueeze) {
  const Layout in = contiguous({2, 3, 4});
  EXPECT_EQ(view_of("Transpose", in, {{"perm", Dims{2, 0, 1}}}, {4, 2, 3})->strides,
            (Sizes{1, 12, 4}));
  EXPECT_EQ(view_of("Expand", contiguous({3, 1}), {}, {2, 3, 5})->strides, (Sizes{0, 1, 0}));
  EXPECT_EQ(view_of("Unsqueeze", in, {{"axes", Dims{1, -1}}}, {2, 1, 3, 4, 1})->strides,
            (Sizes{12, 12, 4, 1, 1}));
  EXPECT_EQ(view_of("Squeeze", contiguous({2, 1, 4}), {{"axes", Dims{1}}}, {2, 4})->strides,
            (Sizes{4, 1}));
}

TEST(Views, SliceAndSplitMoveTheOffset) {
  const Layout in{{4, 6}, {6, 1}, 10};
  const Attrs slice = {{"axis", 1}, {"start", 1}, {"end", 6}, {"step", 2}};
  EXPECT_EQ(view_of("Slice", in, slice, {4, 3}), (Layout{{4, 3}, {6, 2}, 11}));
  const Attrs split = {{"axis", -1}, {"sizes", Dims{1, 2, 3}}};
  EXPECT_EQ(view_of("Split", in, split, {4, 3}, 2), (Layout{{4, 3}, {6, 1}, 13}));
}

// --- gradients --------------------------------------------------------------------------------

TEST(Gradients, LinearLayer) {
  EXPECT_EQ(
      joint_text(R"(g (x: f32[n,8], w: param grad f32[4,8], b: param grad f32[4]) => (y) {
    h = Gemm<transB=1> (x, w, b)
    y = Relu (h)
  })"),
      R"(g (x, w: param grad, b: param grad, d_y: dy 0) => (y, grad 1: Gemm, grad 2: ReduceSum) {
  h = Gemm<transB=1, alpha=1.0, beta=1.0, transA=0> (x, w, b)
  y = Relu (h)
  backward: ReluGrad = ReluGrad (d_y, y)
  backward: Gemm = Gemm<alpha=1.0, transA=1, transB=0, beta=1.0> (ReluGrad, x)
  backward: ReduceSum = ReduceSum<axes=[0], keepdims=0> (ReluGrad)
}
)");
}

// The weight's gradient is one product over all rows, in the parameter's own layout.
TEST(Gradients, BatchedLinearMakesAParametersGradientDense) {
  const std::string text = joint_text(R"(g (x: f32[b,s,8], w: param grad f32[4,8]) => (y) {
    t = Transpose<perm=[1,0]> (w)
    y = MatMul (x, t)
  })");
  EXPECT_NE(text.find("= Reshape<shape=[b*s,8]> (x)"), std::string::npos) << text;
  EXPECT_NE(text.find("= Reshape<shape=[b*s,4]> (d_y)"), std::string::npos) << text;
  EXPECT_NE(text.find("MatMul = MatMul (Transpose, Reshape)"), std::string::npos) << text;
}

TEST(Gradients, NormAndLossSaveTheirStatistics) {
  const std::string text = joint_text(R"(g (x: grad f32[n,8], t: i64[n]) => (loss) {
    y, mean, inv = LayerNormalization (x)
    loss, lse = SoftmaxCrossEntropyLoss (y, t)
  })");
  EXPECT_NE(text.find("SoftmaxCrossEntropyLossGrad<ignore_index=-100, reduction=\"mean\", "
                      "label_smoothing=0.0> (d_loss, y, t, _, lse)"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("LayerNormalizationGrad<axis=-1> (SoftmaxCrossEntropyLossGrad, x, _, mean, "
                      "inv)"),
            std::string::npos)
      << text;
}

TEST(Gradients, SplitOfUnusedPartsGetsZeros) {
  const std::string text = joint_text(R"(g (x: grad f32[n,6]) => (a) {
    a, b = Split<axis=1, sizes=[2,4]> (x)
  })");
  EXPECT_NE(text.find("ConstantOfShape<value=0.0, shape=[n,4], dtype=f32> ()"), std::string::npos)
      << text;
  EXPECT_NE(text.find("Concat<axis=1> (d_a, ConstantOfShape)"), std::string::npos) << text;
}

// --- conversions ------------------------------------------------------------------------------

std::string convert(TorchCall& call) {
  for (Value* value : find_torch_row(call.target())->convert(call)) call.graph().add_output(value);
  return print(call.graph(), {.types = false});
}

TEST(FromTorch, PromotionBecomesCasts) {
  Graph graph;
  Value* x = graph.add_input("x", DType::BFloat16, sizes({"n", "4"}));
  Value* s = graph.add_input("s", DType::Float32, {});
  TorchCall call(graph, "aten.add.Tensor", {{"self", {x}}, {"other", {s}}},
                 {{true, DType::BFloat16, x->dims, {}}});
  EXPECT_EQ(convert(call),
            "graph (x, s) => (Add) {\n"
            "  Cast = Cast<to=bf16> (s)\n"
            "  Add = Add (x, Cast)\n"
            "}\n");
}

TEST(FromTorch, TheGradientOfClampStopsAtItsBoundsSinceTorch214) {
  for (const int minor : {13, 14}) {
    Graph graph;
    Value* x = graph.add_input("x", DType::Float32, sizes({"n", "4"}));
    TorchCall call(graph, "aten.clamp_min.default", {{"self", {x}}, {"min", {0.5}}},
                   {{true, DType::Float32, x->dims, {}}}, {}, TorchVersion{2, minor});
    EXPECT_EQ(convert(call), str("graph (x) => (Clip) {\n  Clip = Clip<min=0.5",
                                 minor == 14 ? ", strict=1" : "", "> (x)\n}\n"));
  }
}

TEST(FromTorch, AWiderFactorWithoutDimsIsNotRounded) {
  Graph graph;
  Value* x = graph.add_input("x", DType::BFloat16, sizes({"n", "4"}));
  Value* s = graph.add_input("s", DType::Float32, {});
  TorchCall call(graph, "aten.mul.Tensor", {{"self", {x}}, {"other", {s}}},
                 {{true, DType::BFloat16, x->dims, {}}});
  EXPECT_EQ(convert(call),
            "graph (x, s) => (Cast_2) {\n"
            "  Cast = Cast<to=f32> (x)\n"
            "  Mul = Mul (Cast, s)\n"
            "  Cast_2 = Cast<to=bf16> (Mul)\n"
            "}\n");
}

TEST(FromTorch, ComparisonsPromoteByPriority) {
  Graph graph;
  Value* x = graph.add_input("x", DType::Int32, {4});
  TorchCall call(graph, "aten.lt.Scalar", {{"self", {x}}, {"other", {1.5}}},
                 {{true, DType::Bool, {4}, {}}});
  EXPECT_EQ(convert(call),
            "graph (x) => (Less) {\n"
            "  Cast = Cast<to=f32> (x)\n"
            "  Less = Less (Cast, 1.5)\n"
            "}\n");
}

TEST(FromTorch, SeveralIndicesBecomeOne) {
  Graph graph;
  Value* x = graph.add_input("x", DType::Float32, sizes({"b", "s", "8"}));
  Value* i = graph.add_input("i", DType::Int64, sizes({"b"}));
  const TorchArg indices = {TorchArgList{{i}, {i}}};
  TorchCall call(graph, "aten.index.Tensor", {{"self", {x}}, {"indices", indices}},
                 {{true, DType::Float32, sizes({"b", "8"}), {}}});
  const std::string text = convert(call);
  EXPECT_NE(text.find("= Reshape<shape=[b*s,8]> (x)"), std::string::npos) << text;
  EXPECT_NE(text.find("= Mul (Where_2, {s})"), std::string::npos) << text;
  EXPECT_NE(text.find("Gather = Gather<axis=0, padding_idx=-1, from_front=0> (Reshape, Add_4)"),
            std::string::npos)
      << text;
}

TEST(FromTorch, RefusesWhatItCannotSay) {
  Graph graph;
  Value* w = graph.add_input("w", DType::Float32, {10, 4});
  Value* i = graph.add_input("i", DType::Int64, {3});
  TorchCall call(graph, "aten.embedding.default",
                 {{"weight", {w}}, {"indices", {i}}, {"sparse", {true}}},
                 {{true, DType::Float32, {3, 4}, {}}});
  EXPECT_THROW(convert(call), Refused);
  EXPECT_EQ(graph.node_count(), 0u);
}

TEST(FromTorch, RandomOpsGetStreamsInProgramOrder) {
  Graph graph;
  Value* x = graph.add_input("x", DType::Float32, {4});
  TorchCall call(graph, "aten.dropout.default", {{"input", {x}}, {"p", {0.5}}, {"train", {true}}},
                 {{true, DType::Float32, {4}, {}}});
  for (int64_t stream = 0; stream < 3; ++stream) {
    const Values y = find_torch_row(call.target())->convert(call);
    EXPECT_EQ(y[0]->producer()->attrs.integer("rng"), stream);
  }
}

}  // namespace
}  // namespace ortmodule
