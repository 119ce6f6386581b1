// Pointwise groups on bytes: quantizing in one loop, dequantizing, and tables of functions of a
// byte.
#include "test_kernels_harness.h"

namespace ortmodule::testing {
namespace {

OperandRef reg(int node) { return {OperandRef::Kind::Register, node}; }
OperandRef input(int index) { return {OperandRef::Kind::Input, index}; }
OperandRef literal(double number) { return {OperandRef::Kind::Literal, 0, number}; }

/// Nodes of one group.
class GroupOf {
 public:
  explicit GroupOf(Sizes sizes) : sizes_(std::move(sizes)) {}

  OperandRef add(std::string op, std::vector<OperandRef> in, DType in_type, DType out,
                 Attrs attrs = {}) {
    NodeFacts node;
    node.op = std::move(op);
    node.attrs = std::move(attrs);
    node.input_dtypes.assign(in.size(), in_type);
    node.inputs = std::move(in);
    node.outputs = {-1};
    node.output_dtypes = {out};
    node.output_sizes = {sizes_};
    nodes.push_back(std::move(node));
    return reg(static_cast<int>(nodes.size()) - 1);
  }
  OperandRef real(std::string op, std::vector<OperandRef> in) {
    return add(std::move(op), std::move(in), DType::Float32, DType::Float32);
  }
  OperandRef cast(OperandRef x, DType from, DType to) {
    return add("Cast", {x}, from, to, {{"to", to}});
  }
  void give(OperandRef node, int output) {
    nodes[static_cast<size_t>(node.index)].outputs = {output};
  }

  std::vector<NodeFacts> nodes;

 private:
  Sizes sizes_;
};

/// round(sigmoid((x - zero) / 16) * 200), through a byte again.
std::vector<NodeFacts> function_of_bytes(DType from, DType to, const Sizes& sizes) {
  GroupOf group(sizes);
  const OperandRef moved =
      group.real("Sub", {group.cast(input(0), from, DType::Float32), input(1)});
  const OperandRef part = group.real("Sigmoid", {group.real("Mul", {moved, literal(1.0 / 16)})});
  const OperandRef byte = group.cast(group.real("Mul", {part, literal(200)}), DType::Float32, to);
  const OperandRef round = group.real("Round", {group.cast(byte, to, DType::Float32)});
  group.give(group.cast(round, DType::Float32, to), 0);
  return std::move(group.nodes);
}

// Many elements are looked up in a table of 256.
TEST(PointwiseBytes, AreLookedUpWhereTheyAreFunctionsOfOne) {
  for (DType from : {DType::UInt8, DType::Int8})
    for (DType to : {DType::UInt8, DType::Int8})
      for (const Sizes& sizes : {Sizes{300}, Sizes{7, 1001}}) {
        SCOPED_TRACE(str(name_of(from), " ", name_of(to), " ", element_count(sizes)));
        Tensor x(from, sizes), zero = Tensor::of(DType::Float32, {}, {3}), y(to, sizes);
        for (int64_t i = 0; i < x.count(); ++i)
          x.set(i, static_cast<double>(i % 256) - (from == DType::Int8 ? 128 : 0));
        std::vector<double> wanted;
        for (double value : x.values()) {
          const double byte = std::trunc(200 / (1 + std::exp((3 - value) / 16)));
          wanted.push_back(to == DType::Int8 && byte > 127 ? byte - 256 : byte);
        }
        run_group(function_of_bytes(from, to, sizes), {&x, &zero}, {&y},
                  [&] { ASSERT_EQ(y.values(), wanted); });
      }
}

/// The byte of a number, and the number of the byte, by the definition.
std::pair<double, double> quantized(float x, float scale, float zero, DType byte) {
  const float least = byte == DType::Int8 ? -128.0f : 0.0f;
  const float place = std::clamp(std::nearbyint(x / scale) + zero, least, least + 255);
  const int whole = std::isnan(place) ? 0 : static_cast<int>(place);
  return {whole, (static_cast<float>(whole) - zero) * scale};
}

std::vector<NodeFacts> fake_quantized(DType byte, const Sizes& sizes, bool gives_bytes) {
  GroupOf group(sizes);
  const double least = byte == DType::Int8 ? -128 : 0;
  const OperandRef steps = group.real("Round", {group.real("Div", {input(0), input(1)})});
  const OperandRef place = group.add("Clip", {group.real("Add", {steps, input(2)})}, DType::Float32,
                                     DType::Float32, {{"min", least}, {"max", least + 255}});
  const OperandRef bytes = group.cast(place, DType::Float32, byte);
  const OperandRef moved = group.real("Sub", {group.cast(bytes, byte, DType::Float32), input(2)});
  group.give(group.real("Mul", {moved, input(1)}), 0);
  if (gives_bytes) group.give(bytes, 1);
  return std::move(group.nodes);
}

// In the middle of two integers and near it, beyond the bounds, and of scales and zero points that
// are none of a quantizer's.
TEST(PointwiseBytes, QuantizedAtOnceAreThoseOfTheNodes) {
  const Sizes sizes{3, 701};
  for (DType byte : {DType::UInt8, DType::Int8})
    for (float scale : {0.5f, 0.1f, 3.0f, 1e-39f, 1e35f, -0.25f, 0.0f})
      for (float zero : {3.0f, 0.5f, 300.0f}) {
        SCOPED_TRACE(str(name_of(byte), " ", scale, " ", zero));
        Tensor x = Tensor::random(DType::Float32, sizes, 3, -40, 90);
        for (int64_t i = 0; i < x.count(); i += 3) x.set(i, 0.25 * static_cast<double>(i % 400));
        x.set(1, std::numeric_limits<double>::quiet_NaN());
        x.set(2, std::numeric_limits<double>::infinity());
        Tensor of_scale = Tensor::of(DType::Float32, {}, {scale}),
               of_zero = Tensor::of(DType::Float32, {}, {zero}), y(DType::Float32, sizes),
               bytes(byte, sizes);
        std::vector<double> numbers, places;
        for (double value : x.values()) {
          const auto [place, number] = quantized(static_cast<float>(value), scale, zero, byte);
          places.push_back(place);
          numbers.push_back(number);
        }
        for (const bool gives_bytes : {false, true}) {
          std::vector<Tensor*> out{&y};
          if (gives_bytes) out.push_back(&bytes);
          run_group(fake_quantized(byte, sizes, gives_bytes), {&x, &of_scale, &of_zero}, out, [&] {
            ASSERT_EQ(y.values(), numbers);
            if (gives_bytes) {
              ASSERT_EQ(bytes.values(), places);
            }
          });
        }
      }
}

/// QuantizeLinear, without a zero point if `zero` is absent.
std::vector<NodeFacts> quantizing_nodes(DType byte, const Sizes& sizes, OperandRef zero) {
  GroupOf group(sizes);
  const double least = byte == DType::Int8 ? -128 : 0;
  OperandRef place = group.real("Round", {group.real("Div", {input(0), input(1)})});
  if (zero.kind != OperandRef::Kind::Absent)
    place = group.real("Add", {place, group.cast(zero, byte, DType::Float32)});
  place = group.add("Clip", {place}, DType::Float32, DType::Float32,
                    {{"min", least}, {"max", least + 255}});
  group.give(group.cast(place, DType::Float32, byte), 0);
  return std::move(group.nodes);
}

std::vector<NodeFacts> dequantizing_nodes(DType byte, const Sizes& sizes, OperandRef zero) {
  GroupOf group(sizes);
  OperandRef real = group.cast(input(0), byte, DType::Float32);
  if (zero.kind != OperandRef::Kind::Absent)
    real = group.real("Sub", {real, group.cast(zero, byte, DType::Float32)});
  group.give(group.real("Mul", {real, input(1)}), 0);
  return std::move(group.nodes);
}

// One scale for all, for each row (of many elements and of few) and for each column.
TEST(PointwiseBytes, AreQuantizedAndDequantizedByEachScale) {
  const std::vector<std::pair<Sizes, Sizes>> shapes = {{{3, 701}, {}},
                                                       {{40, 300}, {40, 1}},
                                                       {{2, 5, 9000}, {5, 1}},
                                                       {{40, 49}, {40, 1}},
                                                       {{20, 333}, {333}}};
  for (const auto& [sizes, other] : shapes)
    for (DType byte : {DType::UInt8, DType::Int8})
      for (const bool moved : {true, false}) {
        SCOPED_TRACE(
            str(name_of(byte), " ", element_count(sizes), " ", element_count(other), moved));
        const double least = byte == DType::Int8 ? -128 : 0;
        Tensor x = Tensor::random(DType::Float32, sizes, 3, -40, 90), y(DType::Float32, sizes),
               bytes(byte, sizes), scale = Tensor::random(DType::Float32, other, 4, 0.05, 0.7),
               zero = Tensor::random(byte, other, 5, least, least + 255);
        for (int64_t i = 0; i < x.count(); i += 3) x.set(i, 0.25 * static_cast<double>(i % 400));
        for (int64_t i = 0; i < scale.count(); i += 4) scale.set(i, i % 8 ? 0.5 : 1e-39);
        x.set(1, std::numeric_limits<double>::quiet_NaN());
        x.set(2, std::numeric_limits<double>::infinity());
        const int64_t each = sizes.size() == 2 && other.size() == 1 ? 1 : sizes.back();
        std::vector<double> places, numbers;
        for (int64_t i = 0; i < x.count(); ++i) {
          const int64_t at = i / each % scale.count();
          const auto s = static_cast<float>(scale.get(at)),
                     z = moved ? static_cast<float>(zero.get(at)) : 0.0f;
          const auto [place, number] = quantized(static_cast<float>(x.get(i)), s, z, byte);
          places.push_back(place);
          numbers.push_back(number);
        }
        std::vector<Tensor*> in{&x, &scale};
        if (moved) in.push_back(&zero);
        const OperandRef point = moved ? input(2) : OperandRef{};
        run_group(quantizing_nodes(byte, sizes, point), in, {&bytes},
                  [&] { ASSERT_EQ(bytes.values(), places); });
        in[0] = &bytes;
        for (int64_t i = 0; i < bytes.count(); ++i) bytes.set(i, places[static_cast<size_t>(i)]);
        run_group(dequantizing_nodes(byte, sizes, point), in, {&y},
                  [&] { ASSERT_EQ(y.values(), numbers); });
      }
}

}  // namespace
}  // namespace ortmodule::testing
