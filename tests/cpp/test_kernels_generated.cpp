// Pointwise groups as generated code beside the interpreter: equal bits for every op, type and
// layout. The C++ compiler builds the code for the emulation of CUDA, all groups at once.
#include <gtest/gtest.h>

#include <set>

#include "host_library.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/pointwise_source.h"
#include "random_pointwise_groups.h"

namespace ortmodule::testing {
namespace {

struct Generated {
  PointwiseExample example;
  std::shared_ptr<const cuda::PointwiseProgram> program;
  cuda::PointwiseSource source;
};

/// The rows that generated code computes, in a random order.
std::vector<OpRow> shuffled_rows(std::mt19937& random) {
  std::vector<OpRow> rows;
  for (const OpRow& row : kOpRows) {
    const bool is_library =
        row.loop == PointwiseLoop::unary_library || std::string_view(row.name) == "Atan2";
    if (row.in != Compute::F64 && !(is_library && row.in == Compute::F32)) rows.push_back(row);
  }
  std::shuffle(rows.begin(), rows.end(), random);
  return rows;
}

/// Groups of up to `nodes` rows that hold each row once.
void add_groups(std::vector<Generated>& groups, unsigned seed, size_t nodes) {
  std::mt19937 random(seed);
  RandomGroups make(seed);
  const std::vector<OpRow> rows = shuffled_rows(random);
  for (size_t i = 0; i < rows.size(); i += nodes) {
    Generated g;
    const size_t end = std::min(i + nodes, rows.size());
    g.example = make.group_of({rows.begin() + static_cast<std::ptrdiff_t>(i),
                               rows.begin() + static_cast<std::ptrdiff_t>(end)});
    const StepFacts facts = g.example.facts();
    const Reason unsupported = cuda::pointwise_unsupported(facts);
    ASSERT_FALSE(unsupported) << *unsupported;
    g.program = cuda::compile_pointwise(facts);
    const Reason interpreted = cuda::pointwise_source_unsupported(*g.program);
    ASSERT_FALSE(interpreted) << *interpreted;
    g.source = cuda::pointwise_source(*g.program, str("group_", groups.size()));
    groups.push_back(std::move(g));
  }
}

/// With `overwritten`, output 0 lies in that operand's memory.
int64_t run_generated(const Generated& g, cuda::emulation::HostLibrary::Kernel kernel,
                      Tensor* overwritten = nullptr) {
  const cuda::PointwiseProgram& program = *g.program;
  int64_t launches = 0;
  cuda::for_each_part(program.space, [&](const Coords& sizes, const std::vector<int64_t>& offsets,
                                         int64_t total) {
    cuda::PointwiseLaunch launch = program.launch;
    for (size_t i = 0; i < program.outputs; ++i)
      launch.tensors[i].data = g.example.outputs[i]->data();
    for (size_t i = 0; i < program.inputs; ++i)
      launch.tensors[program.outputs + i].data = g.example.inputs[i]->data();
    if (overwritten) launch.tensors[0].data = overwritten->data();
    if (launch.index_tensor >= 0)
      launch.first_index = offsets[static_cast<size_t>(launch.index_tensor)];
    launch.seed.value = kSeed;
    cuda::point_launch(launch, program.space, sizes, offsets, g.source.each);
    ASSERT_TRUE(g.source.fits(launch));
    const int64_t block = int64_t{cuda::kPointwiseThreads} * g.source.each * g.source.vectors;
    cuda::emulation::launch(g.source.name.c_str(), cuda::grid_of(cuda::blocks_for(total, block)),
                            cuda::kPointwiseThreads, 0, [&] { kernel(launch); });
    ++launches;
  });
  return launches;
}

/// Bits, but for those of NaN: which of two operands it is taken from is the compiler's choice.
bool same_values(const Tensor& a, const Tensor& b) {
  if (a.same_bits(b)) return true;
  const std::vector<double> x = a.values(), y = b.values();
  for (size_t i = 0; i < x.size(); ++i)
    if (!(std::isnan(x[i]) && std::isnan(y[i])) && std::memcmp(&x[i], &y[i], sizeof(double)) != 0)
      return false;
  return true;
}

/// An operand whose memory output 0 may take.
Tensor* like_output(const PointwiseExample& example) {
  const Tensor& out = *example.outputs[0];
  for (Tensor* t : example.in())
    if (t->dtype() == out.dtype() && t->sizes() == out.sizes() &&
        t->layout().strides == out.layout().strides)
      return t;
  return nullptr;
}

/// What the groups below must be among them to test all of the generator.
void expect_every_kind(const std::vector<Generated>& groups) {
  std::set<std::pair<cuda::PointwiseAccess, bool>> moves;
  std::set<std::pair<int, int>> shapes;
  std::set<bool> draws;
  for (const Generated& g : groups) {
    for (size_t i = 0; i < g.source.accesses.size(); ++i)
      moves.emplace(g.source.accesses[i], g.source.moves_vectors[i]);
    shapes.emplace(g.source.vectors, g.source.each);
    if (g.program->launch.index_tensor >= 0) draws.insert(g.source.draws_in_order);
  }
  using enum cuda::PointwiseAccess;
  for (const auto& kind : std::vector<std::pair<cuda::PointwiseAccess, bool>>{
           {Uniform, false}, {Linear, true}, {Row, true}, {Row, false}, {General, false}})
    EXPECT_TRUE(moves.contains(kind)) << static_cast<int>(kind.first);
  EXPECT_EQ(shapes, (std::set<std::pair<int, int>>{{1, 4}, {1, 8}, {2, 4}}));
  EXPECT_EQ(draws.size(), 2u);
}

TEST(GeneratedPointwise, HasTheInterpretersBits) {
  std::vector<Generated> groups;
  add_groups(groups, 1, 1);
  add_groups(groups, 2, 3);
  add_groups(groups, 3, 8);
  add_groups(groups, 4, 24);
  expect_every_kind(groups);
  std::string text;
  for (const Generated& g : groups) text += g.source.text;
  const cuda::emulation::HostLibrary library(cuda::emulation::compile_for_host(text));
  const KernelDef* interpreter = nullptr;
  for (const KernelDef* def : kernels_of("PointwiseGroup"))
    if (def->device == Device::CUDA) interpreter = def;
  int in_place = 0;
  for (const Generated& g : groups) {
    run_kernel(*interpreter, g.example.facts(), g.example.in(), g.example.out());
    std::vector<Tensor> expected;
    for (Tensor* t : g.example.out()) {
      expected.push_back(*t);
      std::memset(t->data(), 0x5a, static_cast<size_t>(extent(t->layout())) * size_of(t->dtype()));
    }
    EXPECT_GT(run_generated(g, library.kernel(g.source.name)), 0);
    for (size_t i = 0; i < expected.size(); ++i)
      EXPECT_TRUE(same_values(expected[i], *g.example.outputs[i])) << "output " << i << " of\n"
                                                                   << g.source.text;
    Tensor* operand = like_output(g.example);
    if (!operand) continue;
    ++in_place;
    run_generated(g, library.kernel(g.source.name), operand);
    EXPECT_TRUE(same_values(expected[0], *operand)) << "in place:\n" << g.source.text;
  }
  EXPECT_GT(in_place, 10);
}

cuda::PointwiseSource source_of(const PointwiseExample& example) {
  return cuda::pointwise_source(*cuda::compile_pointwise(example.facts()), "group");
}

PointwiseExample dropout_of(int64_t stream, double scale, int64_t rows, DType dtype) {
  PointwiseExample e;
  e.inputs.push_back(std::make_unique<Tensor>(dtype, Sizes{rows, 64}));
  e.outputs.push_back(std::make_unique<Tensor>(dtype, Sizes{rows, 64}));
  NodeFacts drop = node_of("Dropout", {{"ratio", 0.5}, {"rng", DimExpr(stream)}}, e.in(), e.out());
  drop.outputs = {-1};
  NodeFacts mul = node_of("Mul", {}, e.in(), e.out());
  mul.inputs = {{OperandRef::Kind::Register, 0}, {OperandRef::Kind::Literal, 0, scale}};
  mul.input_dtypes.push_back(dtype);
  e.nodes = {drop, mul};
  return e;
}

TEST(GeneratedPointwise, IsOneTextForEqualLayersAndBatchSizes) {
  const std::string text = source_of(dropout_of(1, 0.5, 32, DType::Float32)).text;
  EXPECT_EQ(text, source_of(dropout_of(2, 0.5, 32, DType::Float32)).text);
  EXPECT_EQ(text, source_of(dropout_of(1, 0.25, 32, DType::Float32)).text);
  EXPECT_EQ(text, source_of(dropout_of(1, 0.5, 48, DType::Float32)).text);
  EXPECT_NE(text, source_of(dropout_of(1, 0.5, 32, DType::BFloat16)).text);
}

Reason interpreted(const std::string& op, DType dtype, const Sizes& sizes = {8}) {
  Tensor x(dtype, sizes), y(dtype, sizes);
  return cuda::pointwise_source_unsupported(
      *cuda::compile_pointwise(facts_of({node_of(op, {}, {&x}, {&y})}, {&x}, {&y})));
}

TEST(GeneratedPointwise, LeavesWhatItCannotPromiseToTheInterpreter) {
  EXPECT_FALSE(interpreted("Neg", DType::Float32));
  EXPECT_EQ(interpreted("Neg", DType::Float64), "it computes in float64");
  EXPECT_EQ(interpreted("Tan", DType::BFloat16), "Tan is a function of CUDA's library");
  EXPECT_EQ(interpreted("Neg", DType::Float32, {1}), "it computes one element");
  EXPECT_EQ(interpreted("Neg", DType::Float32, {4, 0}), "it computes no element");
}

TEST(GeneratedPointwise, RefusesLaunchesOfAnotherKind) {
  const PointwiseExample e = dropout_of(1, 0.5, 32, DType::Float32);
  const auto program = cuda::compile_pointwise(e.facts());
  const cuda::PointwiseSource source = cuda::pointwise_source(*program, "group");
  const auto fits = [&](int64_t byte, int64_t first) {
    cuda::PointwiseLaunch launch = program->launch;
    launch.tensors[0].data = e.outputs[0]->data();
    launch.tensors[1].data = static_cast<std::byte*>(e.inputs[0]->data()) + byte;
    launch.first_index = first;
    cuda::point_launch(launch, program->space, program->space.sizes, {0, 0, 0}, source.each);
    return source.fits(launch);
  };
  EXPECT_TRUE(fits(0, 0));
  EXPECT_TRUE(fits(16, 8));
  EXPECT_FALSE(fits(4, 0));  // a view that begins between vectors
  EXPECT_FALSE(fits(0, 2));  // a part that begins within a block of random words
}

}  // namespace
}  // namespace ortmodule::testing
