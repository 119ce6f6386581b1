// Bandwidth of the CPU kernels, one thread: nanoseconds per call, GB/s of the bytes that a kernel
// must move (operands and outputs once each), the part of the bandwidth of a memcpy that moves as
// many bytes, measured right before, and what bounds the kernel. That is arithmetic where the
// vector instructions of its formula, counted from the source, take longer than the memcpy at three
// of them per cycle; then the part of that bound that is reached follows. `make bandwidth`, or
// build/bench/ortm_kernels_cpu [name part].
#include <cstdio>
#include <cstring>
#include <ctime>
#include <functional>
#include <string>
#include <vector>

#include "kernels/kernel.h"

namespace ortmodule {
namespace {

struct Buffer {
  DType dtype;
  Layout layout;
  std::vector<std::byte> storage;
  std::byte* data;

  Buffer(DType type, Sizes sizes, double value = 0.5) : dtype(type) {
    layout = {sizes, contiguous_strides(sizes)};
    const size_t count = static_cast<size_t>(element_count(sizes));
    storage.resize(count * size_of(type) + 64);
    data = storage.data() + (64 - reinterpret_cast<uintptr_t>(storage.data()) % 64) % 64;
    for (size_t i = 0; i < count; ++i) {
      if (type == DType::Float32) {
        reinterpret_cast<float*>(data)[i] =
            static_cast<float>(value * (1 + static_cast<double>(i % 17) / 16));
      } else if (type == DType::Int64) {
        reinterpret_cast<int64_t*>(data)[i] = static_cast<int64_t>(i * 7 % 1000);
      } else if (type == DType::BFloat16) {
        reinterpret_cast<uint16_t*>(data)[i] = 0x3f00;
      }
    }
  }
  TensorView view() {
    return {data, dtype, static_cast<int>(layout.sizes.size()), layout.sizes.data(),
            layout.strides.data()};
  }
  size_t bytes() const { return static_cast<size_t>(element_count(layout.sizes)) * size_of(dtype); }
};

// Processor time of this thread: wall time says little on a shared machine.
double processor_nanoseconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e9 + static_cast<double>(now.tv_nsec);
}

double nanoseconds_per_call(const std::function<void()>& call) {
  call();
  const double once = processor_nanoseconds();
  call();
  // The clock is read once per batch of at least 20 microseconds.
  const int batch = 1 + static_cast<int>(2e4 / (processor_nanoseconds() - once));
  double best = 1e30;
  for (int round = 0; round < 7; ++round) {
    int calls = 0;
    const double start = processor_nanoseconds();
    double spent = 0;
    do {
      for (int i = 0; i < batch; ++i) call();
      calls += batch;
      spent = processor_nanoseconds() - start;
    } while (spent < 3e7);
    best = std::min(best, spent / calls);
  }
  return best;
}

std::string only;

// The clock, by a chain of multiplications, each of which takes three cycles.
double cycles_per_nanosecond() {
  static const double rate = [] {
    uint64_t x = 3;
    const double best = nanoseconds_per_call([&] {
      for (int i = 0; i < 10000; ++i) {
        x *= x;
        asm volatile("" : "+r"(x));
      }
    });
    return 3e4 / best;
  }();
  return rate;
}

/// Vector instructions per vector of elements, by op; a division counts as the 15 that could be
/// made in its time. Ops that are not here have too few to matter.
struct Arithmetic {
  const char* op;
  double instructions;
};
constexpr double kExp = 19, kDivision = 15, kPhilox = 46;
constexpr Arithmetic kArithmetic[] = {
    {"Exp", kExp + 7},
    {"Tanh", kExp + kDivision + 16},
    {"Sigmoid", kExp + kDivision + 3},
    {"Gelu", 30},
    {"GeluGrad", 50},
    {"Dropout", kPhilox + 4},
    {"Softmax", kExp + 4},
    {"LogSoftmax", kExp + 5},
    {"LogSoftmaxGrad", kExp + 4},
    {"SoftmaxCrossEntropyLoss", kExp + 3},
    {"SoftmaxCrossEntropyLossGrad", kExp + 4},
};

// Nanoseconds that the arithmetic of the nodes takes at least.
double arithmetic_bound(const std::vector<NodeFacts>& nodes, int64_t elements) {
  double instructions = 0;
  for (const NodeFacts& node : nodes)
    for (const Arithmetic& a : kArithmetic)
      if (node.op == a.op) instructions += a.instructions;
  const double lanes = isa_available(Isa::Avx512) ? 16 : isa_available(Isa::Avx2) ? 8 : 4;
  return instructions / lanes * static_cast<double>(elements) / 3 / cycles_per_nanosecond();
}

void report(const std::string& name, double nanoseconds, size_t bytes, double arithmetic = 0) {
  // Half of the bytes are read, half are written.
  static std::vector<std::byte> from, to;
  from.resize(bytes / 2 + 1);
  to.resize(bytes / 2 + 1);
  const double copy = nanoseconds_per_call([&] { std::memcpy(to.data(), from.data(), bytes / 2); });
  std::printf("%-44s %12.0f ns %8.1f GB/s %6.2f of copying", name.c_str(), nanoseconds,
              static_cast<double>(bytes) / nanoseconds, copy / nanoseconds);
  if (arithmetic > copy)
    std::printf("  arithmetic, %.2f of it\n", arithmetic / nanoseconds);
  else
    std::printf("  memory\n");
}

void bench(const std::string& name, const std::string& key, std::vector<NodeFacts> nodes,
           std::vector<Buffer*> in, std::vector<Buffer*> out) {
  if (name.find(only) == std::string::npos) return;
  StepFacts facts;
  facts.nodes = std::move(nodes);
  std::vector<TensorView> in_views, out_views;
  size_t bytes = 0;
  for (auto [buffers, list, views] :
       {std::tuple(&in, &facts.inputs, &in_views), std::tuple(&out, &facts.outputs, &out_views)}) {
    for (Buffer* b : *buffers) {
      list->push_back(b ? OperandFacts{b->dtype, b->layout} : OperandFacts{});
      views->push_back(b ? b->view() : TensorView{});
      bytes += b ? b->bytes() : 0;
    }
  }
  std::string why;
  const KernelDef* def = select_kernel(key, Device::CPU, facts, &why);
  if (!def) {
    std::printf("%s\n", why.c_str());
    return;
  }
  std::vector<std::byte> workspace((def->workspace_bytes ? def->workspace_bytes(facts) : 0) + 64);
  std::byte* aligned =
      workspace.data() + (64 - reinterpret_cast<uintptr_t>(workspace.data()) % 64) % 64;
  KernelContext context;
  context.seed.value = 42;
  const std::shared_ptr<const void> prepared = def->prepare ? def->prepare(facts) : nullptr;
  const KernelArgs args{facts, in_views, out_views, aligned, prepared.get(), context};
  int64_t elements = 0;
  for (const OperandFacts& operand : facts.inputs)
    elements = std::max(elements, element_count(operand.layout.sizes));
  report(name, nanoseconds_per_call([&] { def->run(args); }), bytes,
         arithmetic_bound(facts.nodes, elements));
}

NodeFacts node(std::string op, Attrs attrs, std::vector<Buffer*> in, std::vector<Buffer*> out,
               std::vector<OperandRef> refs = {}) {
  NodeFacts facts;
  facts.op = std::move(op);
  facts.attrs = std::move(attrs);
  for (size_t i = 0; i < in.size(); ++i) {
    facts.inputs.push_back(i < refs.size() ? refs[i]
                           : in[i] ? OperandRef{OperandRef::Kind::Input, static_cast<int>(i)}
                                   : OperandRef{});
    facts.input_dtypes.push_back(in[i] ? in[i]->dtype : DType::Undefined);
  }
  for (size_t i = 0; i < out.size(); ++i) {
    facts.outputs.push_back(out[i] ? static_cast<int>(i) : -1);
    facts.output_dtypes.push_back(out[i] ? out[i]->dtype : DType::Undefined);
    facts.output_sizes.push_back(out[i] ? out[i]->layout.sizes : Sizes{});
  }
  return facts;
}

void bench_op(const std::string& name, const std::string& op, Attrs attrs, std::vector<Buffer*> in,
              std::vector<Buffer*> out) {
  bench(name, op, {node(op, std::move(attrs), in, out)}, in, out);
}

void bench_pointwise(const std::string& name, const std::string& op, Attrs attrs,
                     std::vector<Buffer*> in, std::vector<Buffer*> out) {
  bench(name, "PointwiseGroup", {node(op, std::move(attrs), in, out)}, in, out);
}

void memcpy_rate(const std::string& name, Buffer& from, Buffer& to) {
  if (name.find(only) != std::string::npos)
    report(name, nanoseconds_per_call([&] { std::memcpy(to.data, from.data, from.bytes()); }),
           2 * from.bytes());
}

void pointwise_at(const std::string& suffix, int64_t rows, int64_t columns) {
  const Sizes sizes{rows, columns};
  const DType f32 = DType::Float32;
  Buffer a(f32, sizes), b(f32, sizes), c(f32, sizes), bias(f32, {columns}),
      ha(DType::BFloat16, sizes), hb(DType::BFloat16, sizes), column(f32, {rows, 1}), d(f32, sizes),
      zero(f32, sizes, 0);
  memcpy_rate("memcpy" + suffix, a, c);
  bench_pointwise("Add" + suffix, "Add", {}, {&a, &b}, {&c});
  bench_pointwise("Add bias" + suffix, "Add", {}, {&a, &bias}, {&c});
  bench_pointwise("Mul column" + suffix, "Mul", {}, {&a, &column}, {&c});
  bench_pointwise("Add in place" + suffix, "Add", {}, {&d, &zero}, {&d});
  bench_pointwise("Add bf16" + suffix, "Add", {}, {&ha, &ha}, {&hb});
  bench_pointwise("Exp" + suffix, "Exp", {}, {&a}, {&c});
  bench_pointwise("Tanh" + suffix, "Tanh", {}, {&a}, {&c});
  bench_pointwise("Gelu" + suffix, "Gelu", {}, {&a}, {&c});
  bench_pointwise("GeluGrad" + suffix, "GeluGrad", {}, {&a, &b}, {&c});
  bench_pointwise("Dropout" + suffix, "Dropout", {{"ratio", 0.1}, {"rng", 1}}, {&a}, {&c});
  NodeFacts add = node("Add", {}, {&a, &bias}, {&c});
  add.outputs = {-1};
  NodeFacts gelu = node("Gelu", {}, {&a}, {&c}, {{OperandRef::Kind::Register, 0}});
  gelu.outputs = {-1};
  NodeFacts dropout =
      node("Dropout", {{"ratio", 0.1}, {"rng", 1}}, {&a}, {&c}, {{OperandRef::Kind::Register, 1}});
  bench("Dropout(Gelu(Add bias))" + suffix, "PointwiseGroup", {add, gelu, dropout}, {&a, &bias},
        {&c});
}

void rows_at(const std::string& suffix, int64_t rows, int64_t columns) {
  const Sizes sizes{rows, columns};
  const DType f32 = DType::Float32;
  Buffer x(f32, sizes), dy(f32, sizes), y(f32, sizes), scale(f32, {columns}), bias(f32, {columns}),
      mean(f32, {rows, 1}), inv(f32, {rows, 1}), dscale(f32, {columns}), dbias(f32, {columns}),
      sums(f32, {columns}), row_sums(f32, {rows}), labels(DType::Int64, {rows}), loss(f32, {}),
      lse(f32, {rows}), skip(f32, sizes), sum(f32, sizes);
  for (int64_t i = 0; i < rows; ++i) reinterpret_cast<int64_t*>(labels.data)[i] = i * 7 % columns;
  const Attrs last{{"axis", -1}}, norm{{"axis", -1}, {"epsilon", 1e-5}};
  bench_op("Softmax" + suffix, "Softmax", last, {&x}, {&y});
  bench_op("SoftmaxGrad" + suffix, "SoftmaxGrad", last, {&dy, &x}, {&y});
  bench_op("LogSoftmax" + suffix, "LogSoftmax", last, {&x}, {&y});
  bench_op("LayerNormalization" + suffix, "LayerNormalization", norm, {&x, &scale, &bias},
           {&y, &mean, &inv});
  bench_op("LayerNormalizationGrad" + suffix, "LayerNormalizationGrad", norm,
           {&dy, &x, &scale, &mean, &inv}, {&y, &dscale, &dbias});
  bench_op("SkipLayerNormalization" + suffix, "SkipLayerNormalization", norm,
           {&x, &skip, &scale, &bias}, {&y, &mean, &inv, &sum});
  bench_op("ReduceSum rows" + suffix, "ReduceSum", {{"axes", Dims{1}}, {"keepdims", 0}}, {&x},
           {&row_sums});
  bench_op("ReduceSum columns" + suffix, "ReduceSum", {{"axes", Dims{0}}, {"keepdims", 0}}, {&x},
           {&sums});
  bench_op("SoftmaxCrossEntropyLoss" + suffix, "SoftmaxCrossEntropyLoss",
           {{"ignore_index", -100}, {"reduction", std::string("mean")}}, {&x, &labels, nullptr},
           {&loss, &lse});
  bench_op("SoftmaxCrossEntropyLossGrad" + suffix, "SoftmaxCrossEntropyLossGrad",
           {{"ignore_index", -100}, {"reduction", std::string("mean")}},
           {&loss, &x, &labels, nullptr, &lse}, {&y});
}

void copies() {
  const DType f32 = DType::Float32;
  Buffer x(f32, {2048, 2048}), y(f32, {2048, 2048});
  memcpy_rate("memcpy 2048x2048", x, y);
  x.layout.strides = {1, 2048};
  bench_op("Contiguous transpose 2048x2048", "Contiguous", {}, {&x}, {&y});
  Buffer heads(f32, {8, 12, 512, 64}), merged(f32, {8, 12, 512, 64});
  heads.layout.strides = {12 * 512 * 64, 64, 12 * 64, 1};
  bench_op("Contiguous heads 8x12x512x64", "Contiguous", {}, {&heads}, {&merged});
  Buffer table(f32, {30000, 768}), small(f32, {4096, 768}), rows(f32, {4096, 768});
  Buffer indices(DType::Int64, {4096});
  bench_op("Gather 4096 of 4096x768", "Gather", {{"axis", 0}}, {&small, &indices}, {&rows});
  bench_op("GatherGrad 4096 of 30000x768", "GatherGrad", {{"axis", 0}, {"size", 30000}},
           {&rows, &indices}, {&table});
}

// Rows of a few elements, where the work per row shows.
void short_rows_at(int64_t columns, DType dtype) {
  const int64_t rows = 800000 / columns;
  const Sizes sizes{rows, columns};
  const DType f32 = DType::Float32;
  Buffer x(dtype, sizes), dy(dtype, sizes), y(dtype, sizes), scale(dtype, {columns}),
      bias(dtype, {columns}), mean(f32, {rows, 1}), inv(f32, {rows, 1}), dscale(dtype, {columns}),
      dbias(dtype, {columns}), sums(dtype, {rows}), places(DType::Int64, {rows});
  const std::string suffix =
      " " + std::to_string(rows) + "x" + std::to_string(columns) + (dtype == f32 ? "" : " bf16");
  const Attrs last{{"axis", -1}}, norm{{"axis", -1}, {"epsilon", 1e-5}},
      over{{"axes", Dims{1}}, {"keepdims", 0}};
  bench_op("Softmax" + suffix, "Softmax", last, {&x}, {&y});
  bench_op("SoftmaxGrad" + suffix, "SoftmaxGrad", last, {&dy, &x}, {&y});
  bench_op("LogSoftmax" + suffix, "LogSoftmax", last, {&x}, {&y});
  bench_op("LogSoftmaxGrad" + suffix, "LogSoftmaxGrad", last, {&dy, &x}, {&y});
  bench_op("LayerNorm" + suffix, "LayerNormalization", norm, {&x, &scale, &bias},
           {&y, &mean, &inv});
  bench_op("LayerNormGrad" + suffix, "LayerNormalizationGrad", norm, {&dy, &x, &scale, &mean, &inv},
           {&y, &dscale, &dbias});
  bench_op("RmsNorm" + suffix, "SimplifiedLayerNormalization", norm, {&x, &scale}, {&y, &inv});
  bench_op("RmsNormGrad" + suffix, "SimplifiedLayerNormalizationGrad", norm,
           {&dy, &x, &scale, &inv}, {&y, &dscale});
  bench_op("ReduceSum rows" + suffix, "ReduceSum", over, {&x}, {&sums});
  bench_op("ReduceMax rows" + suffix, "ReduceMax", over, {&x}, {&sums});
  bench_op("ArgMax rows" + suffix, "ArgMax", {{"axis", 1}, {"keepdims", 0}}, {&x}, {&places});
}

void short_rows() {
  const DType f32 = DType::Float32;
  for (int64_t columns : {3, 8, 16, 33, 64, 128, 257}) short_rows_at(columns, f32);
  for (int64_t columns : {8, 64}) short_rows_at(columns, DType::BFloat16);
  Buffer x(f32, {100000, 8}), y(f32, {100000, 8}), column(f32, {100000, 1});
  bench_pointwise("Mul column 100000x8", "Mul", {}, {&x, &column}, {&y});
  Buffer heads(f32, {64, 12, 100, 64}), mask(f32, {64, 1, 1, 64}), masked(f32, {64, 12, 100, 64});
  heads.layout.strides = {100 * 12 * 64, 64, 12 * 64, 1};
  bench_pointwise("Add mask to transposed heads", "Add", {}, {&heads, &mask}, {&masked});
}

}  // namespace
}  // namespace ortmodule

int main(int argc, char** argv) {
  using namespace ortmodule;
  if (argc > 1) only = argv[1];
  pointwise_at(" 8192x2048", 8192, 2048);
  pointwise_at(" 512x768", 512, 768);
  pointwise_at(" 2x1024", 2, 1024);
  rows_at(" 8192x768", 8192, 768);
  rows_at(" 512x768", 512, 768);
  rows_at(" 1024x30000", 1024, 30000);
  short_rows();
  copies();
}
