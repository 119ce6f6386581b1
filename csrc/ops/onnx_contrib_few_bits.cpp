// Import of com.microsoft's operators on weights of a few bits: products and look-ups. Each block
// of a row has a scale.
#include <array>

#include "base/error.h"
#include "ops/infer_rules.h"
#include "ops/onnx_few_bits.h"
#include "ops/onnx_nested.h"
#include "ops/op_def.h"

namespace ortmodule {

Value* unpacked_bits(OnnxCall& c, Value* bytes, int64_t bits) {
  if (bits == 8) {
    Dims dims = bytes->dims;
    dims.push_back(1);
    return c.reshape(bytes, dims);
  }
  const double most = static_cast<double>((int64_t{1} << bits) - 1);
  Values parts;
  for (int64_t shift = 0; shift < 8; shift += bits) {
    Value* part = bytes;
    if (shift > 0)
      part = c.emit("FloorDiv", {part, number(c, static_cast<double>(int64_t{1} << shift), part)});
    if (shift + bits < 8) part = c.emit("BitwiseAnd", {part, number(c, most, part)});
    Dims dims = part->dims;
    dims.push_back(1);
    parts.push_back(c.reshape(part, dims));
  }
  return c.concat(parts, static_cast<int64_t>(bytes->rank()));
}

namespace {

// The zero points [N, blocks] of operand 3; packed as rows of whole bytes, or real numbers.
Value* unpacked_points(OnnxCall& c, int64_t columns, int64_t blocks, int64_t bits) {
  if (c.dtype(3) != DType::UInt8) return c.reshape(c.in(3), {columns, blocks});
  const int64_t bytes = (blocks * bits + 7) / 8;
  Value* points = unpacked_bits(c, c.reshape(c.in(3), {columns, bytes}), bits);
  return c.slice(c.reshape(points, {columns, bytes * 8 / bits}), 1, 0, blocks);
}

// The weights [K, N] of packed [N, blocks, bytes], scales and zero points [N, blocks]. Operand 4 is
// the block of each row.
Value* unpacked_weights(OnnxCall& c, int64_t bits) {
  const int64_t rows = c.integer("K"), columns = c.integer("N"), block = c.integer("block_size");
  const int64_t blocks = (rows + block - 1) / block;
  const DType dtype = c.dtype(2);
  Value* packed = c.reshape(c.in(1), {columns, blocks, block * bits / 8});
  Value* weights =
      c.cast(c.reshape(unpacked_bits(c, packed, bits), {columns, blocks * block}), dtype);
  if (blocks * block != rows) weights = c.slice(weights, 1, 0, rows);
  // One number of each block for each row.
  auto spread_blocks = [&](Value* each) {
    if (c.has(4)) return c.emit("Gather", {each, c.cast(c.in(4), DType::Int64)}, {{"axis", 1}});
    each = c.expand(c.reshape(each, {columns, blocks, 1}), {columns, blocks, block});
    each = c.reshape(each, {columns, blocks * block});
    return blocks * block == rows ? each : c.slice(each, 1, 0, rows);
  };
  Value* zero = c.has(3) ? spread_blocks(c.cast(unpacked_points(c, columns, blocks, bits), dtype))
                         : number(c, static_cast<double>(int64_t{1} << (bits - 1)), weights);
  weights = c.pointwise("Sub", {weights, zero});
  weights = c.emit("Mul", {weights, spread_blocks(c.reshape(c.in(2), {columns, blocks}))});
  return c.transpose(weights, {1, 0});
}

// The accuracy_level that asks for at least 8 bits of x.
constexpr int64_t kInt8Level = 4;

// The product by an op whose kernel takes weights apart while it reads them.
Value* product_of_bits(OnnxCall& c, int64_t bits) {
  Value* x = c.in(0);
  const bool row = x->rank() == 1;
  if (row) x = c.reshape(x, {1, x->dims.at(0)});
  Value* y =
      c.emit("MatMulNBits",
             {c.cast(x, DType::Float32), c.in(1), c.cast(c.in(2), DType::Float32), c.optional(3)},
             {{"K", c.integer("K")},
              {"N", c.integer("N")},
              {"bits", bits},
              {"block_size", c.integer("block_size")},
              {"rounds_x", c.integer("accuracy_level", 0) == kInt8Level ? 1 : 0}});
  return c.cast(row ? c.reshape(y, {y->dims.back()}) : y, x->dtype);
}

bool have_sizes(OnnxCall& c, const Dims& dims, const Dims& wanted) {
  bool same = dims.size() == wanted.size();
  for (size_t d = 0; same && d < dims.size(); ++d) same = c.sizes().equal(dims[d], wanted[d]);
  return same;
}

// An operand has rows [N, `each`], which may be joined to one list.
void check_rows(OnnxCall& c, size_t i, int64_t columns, int64_t each) {
  const Dims dims = c.dims(i);
  if (!have_sizes(c, dims, {columns * each}) && !have_sizes(c, dims, {columns, each}))
    c.refuse(str("operand ", i, " must have ", columns, " rows of ", each, ", but found ",
                 dims_text(dims)));
}

void check_nbits_operands(OnnxCall& c, int64_t bits) {
  const int64_t columns = c.integer("N"), block = c.integer("block_size");
  const int64_t blocks = (c.integer("K") + block - 1) / block;
  const Dims packed{columns, blocks, block * bits / 8};
  if (!have_sizes(c, c.dims(1), packed) || c.dtype(1) != DType::UInt8)
    c.refuse(str("B must be u8", dims_text(packed), " for N, K, bits and block_size, but found ",
                 name_of(c.dtype(1)), dims_text(c.dims(1))));
  if (!is_floating(c.dtype(2)))
    c.refuse(str("scales must be real numbers, but found ", name_of(c.dtype(2))));
  check_rows(c, 2, columns, blocks);
  if (c.has(3))
    check_rows(c, 3, columns, c.dtype(3) == DType::UInt8 ? (blocks * bits + 7) / 8 : blocks);
}

// A, B (packed), scales, zero_points?, g_idx?, bias?
Values import_matmul_nbits(OnnxCall& c) {
  const int64_t bits = c.integer("bits", 4);
  if (bits != 2 && bits != 4 && bits != 8)
    c.refuse(str("'bits' must be 2, 4 or 8, but found ", bits));
  constexpr int64_t kMost = int64_t{1} << 31;
  for (const char* size : {"K", "N"})
    if (c.integer(size) <= 0 || c.integer(size) > kMost)
      c.refuse(str("'", size, "' must be from 1 to ", kMost, ", but found ", c.integer(size)));
  if (c.integer("block_size") < 16 || c.integer("block_size") > kMost)
    c.refuse(str("'block_size' must be at least 16, but found ", c.integer("block_size")));
  check_nbits_operands(c, bits);
  if (c.integer("weight_prepacked", 0) != 0) c.refuse("weight_prepacked must be 0");
  if (c.has(4) && c.has(3) && c.dtype(3) == DType::UInt8)
    c.unsupported("g_idx with packed zero points is not supported: they must be floats");
  Value* y = nullptr;
  if (c.has(4) || (c.has(3) && c.dtype(3) != DType::UInt8))
    y = call_nested(c, "MatMul", {c.in(0), c.cast(unpacked_weights(c, bits), c.dtype(0))})[0];
  else
    y = product_of_bits(c, bits);
  return {c.has(5) ? c.pointwise("Add", {y, c.in(5)}) : y};
}

// ---- look-ups ----------------------------------------------------------------------------------

// The last axis of packed bytes holds `bits` bits of each number; `size`: of how many.
Value* unpacked_axis(OnnxCall& c, Value* bytes, int64_t bits, const DimExpr& size) {
  Dims dims = bytes->dims;
  const size_t last = dims.size() - 1;
  dims.at(last) = dims.at(last) * DimExpr(8 / bits);
  Value* numbers = c.reshape(unpacked_bits(c, bytes, bits), dims);
  if (dims.at(last) == size) return numbers;
  return c.slice(numbers, static_cast<int64_t>(last), 0, size);
}

// data, indices, scales, zero_points?
// Only what is looked up becomes real numbers, unless blocks lie along the axis of the look-up.
Values import_gather_block_quantized(OnnxCall& c) {
  const int64_t bits = c.integer("bits", 4), block = c.integer("block_size", 128);
  const bool packed = c.dtype(0) == DType::UInt8;
  if (packed && bits != 2 && bits != 4 && bits != 8)
    c.refuse(str("bits must be 2, 4 or 8, but found ", bits));
  const size_t rank = c.rank(0);
  const int64_t gathered = c.axis_attr("gather_axis", 0, rank);
  const int64_t axis = c.axis_attr("quantize_axis", 1, rank);
  if (packed && (gathered != 0 || axis == 0 || axis + 1 != static_cast<int64_t>(rank)))
    c.refuse("packed data must have blocks along the last axis, and be gathered along the first");
  const bool rows = gathered != axis;
  auto looked_up = [&](Value* value) {
    return call_nested(c, "Gather", {value, c.in(1)}, {{"axis", gathered}})[0];
  };
  auto operand = [&](size_t i) { return rows ? looked_up(c.in(i)) : c.in(i); };
  Value *data = operand(0), *scales = operand(2);
  Value* zero = c.has(3) ? operand(3) : nullptr;
  if (packed) {
    const DimExpr per_byte(8 / bits);
    data = unpacked_axis(c, data, bits, data->dims.back() * per_byte);
    zero = zero ? unpacked_axis(c, zero, bits, scales->dims.back())
                : c.full(static_cast<double>(int64_t{1} << (bits - 1)), scales->dims, data->dtype);
  }
  const int64_t moved = rows && axis > gathered ? axis + static_cast<int64_t>(c.rank(1)) - 1 : axis;
  Value* y = call_nested(c, "DequantizeLinear", {data, scales, zero},
                         {{"axis", moved}, {"block_size", block}})[0];
  return {rows ? y : looked_up(y)};
}

// ---- floats of 4 bits --------------------------------------------------------------------------

// What bitsandbytes has for each number, as a share of the largest of its block.
KnownValue bnb4_table(bool normal) {
  constexpr std::array<double, 16> kFp4 = {
      0, 0.005208333333,  0.66666667,  1,  0.33333333,  0.5,  0.16666667,  0.25,
      0, -0.005208333333, -0.66666667, -1, -0.33333333, -0.5, -0.16666667, -0.25};
  constexpr std::array<double, 16> kNf4 = {-1,
                                           -0.6961928009986877,
                                           -0.5250730514526367,
                                           -0.39491748809814453,
                                           -0.28444138169288635,
                                           -0.18477343022823334,
                                           -0.09105003625154495,
                                           0,
                                           0.07958029955625534,
                                           0.16093020141124725,
                                           0.24611230194568634,
                                           0.33791524171829224,
                                           0.44070982933044434,
                                           0.5626170039176941,
                                           0.7229568362236023,
                                           1};
  KnownValue table{DType::Float32, {16}, {}};
  for (double number : normal ? kNf4 : kFp4) table.elements.push_back(KnownNumber::real(number));
  return table;
}

// A, B (packed by two, the higher bits first), the largest magnitude of each block
Values import_matmul_bnb4(OnnxCall& c) {
  const int64_t rows = c.integer("K"), columns = c.integer("N"), block = c.integer("block_size");
  const int64_t type = c.integer("quant_type");
  if (type != 0 && type != 1) c.refuse(str("quant_type must be 0 or 1, but found ", type));
  if (rows <= 0 || columns <= 0 || block <= 0) c.refuse("K, N and block_size must be positive");
  if (!c.flag("transB", true)) c.unsupported("transB must be 1");
  const int64_t count = rows * columns, blocks = (count + block - 1) / block;
  const int64_t bytes = (count + 1) / 2;
  Value* b = c.reshape(c.in(1), {bytes, 1});
  Value* places = c.concat(
      {c.emit("FloorDiv", {b, number(c, 16, b)}), c.emit("BitwiseAnd", {b, number(c, 15, b)})}, 1);
  places = c.slice(c.reshape(places, {2 * bytes}), 0, 0, count);
  Value* shares = c.emit(
      "Gather", {c.constant(bnb4_table(type == 1)), c.cast(places, DType::Int64)}, {{"axis", 0}});
  Value* largest = c.expand(c.reshape(c.in(2), {blocks, 1}), {blocks, block});
  largest = c.slice(c.reshape(largest, {blocks * block}), 0, 0, count);
  Value* weights = c.emit("Mul", {c.cast(shares, largest->dtype), largest});
  weights = c.transpose(c.reshape(weights, {columns, rows}), {1, 0});
  return call_nested(c, "MatMul", {c.in(0), c.cast(weights, c.dtype(0))});
}

REGISTER_ONNX({{"MatMulNBits", 1, import_matmul_nbits, nullptr, "com.microsoft"},
               {"MatMulBnb4", 1, import_matmul_bnb4, nullptr, "com.microsoft"},
               {"GatherBlockQuantized", 1, import_gather_block_quantized, nullptr,
                "com.microsoft"}});

}  // namespace
}  // namespace ortmodule
