// Pointwise groups of integers of less than 64 bits: their results are those of int64, cut to the
// type.
#include "test_kernels_harness.h"

namespace ortmodule::testing {
namespace {

using Operands = std::vector<int64_t>;
using Formula = std::function<int64_t(const Operands&)>;

struct Range {
  double least, most;
};

Range range_of(DType dtype) {
  const double bits = 8.0 * static_cast<double>(size_of(dtype));
  if (dtype == DType::UInt8) return {0, 255};
  return {-std::exp2(bits - 1), std::exp2(bits - 1) - 1};
}

double cut(int64_t value, DType dtype) {
  switch (dtype) {
    case DType::Int32: return static_cast<int32_t>(value);
    case DType::Int16: return static_cast<int16_t>(value);
    case DType::Int8: return static_cast<int8_t>(value);
    case DType::UInt8: return static_cast<uint8_t>(value);
    case DType::Bool: return value != 0;
    default: return static_cast<double>(value);
  }
}

/// Of the whole range, with both ends and equal elements at equal places.
Tensor whole_range(DType dtype, const Sizes& sizes, unsigned seed, Sizes strides = {}) {
  const auto [least, most] = range_of(dtype);
  Tensor t = Tensor::random(dtype, sizes, seed, least, most, std::move(strides));
  const std::vector<double> ends{least, most, 0, 1, most, least};
  for (size_t i = 0; i < ends.size() && static_cast<int64_t>(i) < t.count(); ++i)
    t.set(static_cast<int64_t>((i + seed) % ends.size()), ends[i]);
  for (int64_t i = 6; i < t.count(); i += 7) t.set(i, static_cast<double>(i % 100));
  return t;
}

struct IntegerCase {
  std::string op;
  size_t operands;
  Formula f;
  bool gives_truths = false;
  Attrs attrs = {};
};

std::vector<IntegerCase> integer_cases() {
  const auto whole = [](uint64_t x) { return static_cast<int64_t>(x); };
  const auto bits = [](int64_t x) { return static_cast<uint64_t>(x); };
  return {
      {"Add", 2, [](const Operands& v) { return v[0] + v[1]; }},
      {"Sub", 2, [](const Operands& v) { return v[0] - v[1]; }},
      {"Mul", 2, [=](const Operands& v) { return whole(bits(v[0]) * bits(v[1])); }},
      {"Max", 2, [](const Operands& v) { return std::max(v[0], v[1]); }},
      {"Min", 2, [](const Operands& v) { return std::min(v[0], v[1]); }},
      {"BitwiseAnd", 2, [](const Operands& v) { return v[0] & v[1]; }},
      {"BitwiseOr", 2, [](const Operands& v) { return v[0] | v[1]; }},
      {"BitwiseXor", 2, [](const Operands& v) { return v[0] ^ v[1]; }},
      {"BitwiseNot", 1, [](const Operands& v) { return ~v[0]; }},
      {"Neg", 1, [](const Operands& v) { return -v[0]; }},
      {"Abs", 1, [](const Operands& v) { return std::abs(v[0]); }},
      {"Sign", 1, [](const Operands& v) { return int64_t{v[0] > 0} - int64_t{v[0] < 0}; }},
      {"Relu", 1, [](const Operands& v) { return std::max(v[0], int64_t{0}); }},
      {"Clip",
       1,
       [](const Operands& v) { return std::clamp(v[0], int64_t{3}, int64_t{100}); },
       false,
       {{"min", 3.0}, {"max", 100.0}}},
      {"Clip",  // beyond the type, which cuts it
       1,
       [](const Operands& v) { return std::max(v[0], int64_t{1} << 35 | 5); },
       false,
       {{"min", 0x1p35 + 5}}},
      {"Clip",  // no bound of any
       1,
       [](const Operands& v) { return std::max(v[0], -(int64_t{1} << 35)); },
       false,
       {{"min", -0x1p35}}},
      {"Equal", 2, [](const Operands& v) { return v[0] == v[1]; }, true},
      {"NotEqual", 2, [](const Operands& v) { return v[0] != v[1]; }, true},
      {"Less", 2, [](const Operands& v) { return v[0] < v[1]; }, true},
      {"LessOrEqual", 2, [](const Operands& v) { return v[0] <= v[1]; }, true},
      {"Greater", 2, [](const Operands& v) { return v[0] > v[1]; }, true},
      {"GreaterOrEqual", 2, [](const Operands& v) { return v[0] >= v[1]; }, true},
      {"Not", 1, [](const Operands& v) { return v[0] == 0; }, true},
  };
}

constexpr DType kIntegers[] = {DType::Int32, DType::Int16, DType::Int8, DType::UInt8};

int64_t element(const Tensor& t, int64_t i) {
  return static_cast<int64_t>(t.get(t.count() == 1 ? 0 : i % t.count()));
}

void check_integers(const IntegerCase& c, DType dtype, Tensor& a, Tensor& b) {
  const DType result = c.gives_truths ? DType::Bool : dtype;
  std::vector<Tensor*> in{&a};
  if (c.operands == 2) in.push_back(&b);
  Tensor out(result, a.sizes());
  std::vector<double> wanted;
  for (int64_t i = 0; i < out.count(); ++i)
    wanted.push_back(cut(c.f({element(a, i), element(b, i)}), result));
  run_group({node_of(c.op, c.attrs, in, {&out})}, in, {&out},
            [&] { ASSERT_EQ(out.values(), wanted) << c.op << ' ' << name_of(dtype); });
}

TEST(PointwiseIntegers, AreThoseOfInt64CutToTheType) {
  const Sizes sizes{5, 1001};
  for (DType dtype : kIntegers)
    for (const IntegerCase& c : integer_cases()) {
      Tensor a = whole_range(dtype, sizes, 1), b = whole_range(dtype, sizes, 2),
             row = whole_range(dtype, {1001}, 3), number = whole_range(dtype, {1}, 4),
             sliced = whole_range(dtype, sizes, 5, {2100, 2});
      for (Tensor* other : {&b, &row, &number, &sliced}) check_integers(c, dtype, a, *other);
      check_integers(c, dtype, sliced, b);
    }
}

// Values between nodes, numbers of the model, and truths and floats beside the integers.
TEST(PointwiseIntegers, StayNarrowBetweenNodes) {
  const Sizes sizes{3, 700};
  for (DType dtype : kIntegers)
    for (const double number : {5.0, 300.0, -200.0}) {  // of which bytes hold the first alone
      SCOPED_TRACE(str(name_of(dtype), " ", number));
      const auto node = [&](std::string op, std::vector<OperandRef> in, DType from, DType to) {
        NodeFacts facts;
        facts.op = std::move(op);
        if (facts.op == "Cast") facts.attrs = {{"to", to}};
        facts.input_dtypes.assign(in.size(), from);
        facts.inputs = std::move(in);
        facts.outputs = {-1};
        facts.output_dtypes = {to};
        facts.output_sizes = {sizes};
        return facts;
      };
      const auto input = [](int i) { return OperandRef{OperandRef::Kind::Input, i}; };
      const auto made = [](int i) { return OperandRef{OperandRef::Kind::Register, i}; };
      const OperandRef literal{OperandRef::Kind::Literal, 0, number};
      std::vector<NodeFacts> nodes{
          node("Add", {input(0), input(1)}, dtype, dtype),
          node("Less", {made(0), literal}, dtype, DType::Bool),
          node("Mul", {made(0), input(1)}, dtype, dtype),
          node("Where", {made(1), made(0), made(2)}, dtype, dtype),
          node("Cast", {made(3)}, dtype, DType::Float32),
      };
      nodes[3].input_dtypes[0] = DType::Bool;
      nodes[3].outputs = {0};
      nodes[4].outputs = {1};
      const bool is_byte = size_of(dtype) == 1;  // a cast of which would widen the whole group
      if (is_byte) nodes.pop_back();
      Tensor a = whole_range(dtype, sizes, 6), b = whole_range(dtype, sizes, 7), y(dtype, sizes),
             real(DType::Float32, sizes);
      std::vector<double> wanted, reals;
      for (int64_t i = 0; i < a.count(); ++i) {
        const auto sum = static_cast<int64_t>(cut(element(a, i) + element(b, i), dtype));
        const auto product =
            static_cast<int64_t>(static_cast<uint64_t>(sum) * static_cast<uint64_t>(element(b, i)));
        const bool is_less = static_cast<double>(sum) < number;
        wanted.push_back(cut(is_less ? sum : product, dtype));
        reals.push_back(static_cast<float>(wanted.back()));
      }
      std::vector<Tensor*> out{&y};
      if (!is_byte) out.push_back(&real);
      run_group(nodes, {&a, &b}, out, [&] {
        ASSERT_EQ(y.values(), wanted);
        if (!is_byte) {
          ASSERT_EQ(real.values(), reals);
        }
      });
    }
}

}  // namespace
}  // namespace ortmodule::testing
