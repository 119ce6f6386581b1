// Sequences of different lengths that lie one after the other, as rows. What came before each is a
// state of some rows.
#pragma once

#include "ops/onnx_heads.h"

namespace ortmodule {

struct PackedRows {
  DimExpr count;              // of rows
  DimExpr sequences;          // B
  Value* begin = nullptr;     // [B]
  Value* length = nullptr;    // [B]
  Value* sequence = nullptr;  // [count]: of each row
  Value* place = nullptr;     // [count]: of each row in its sequence
};

/// `bounds` [B + 1]: where each sequence begins, and where the last one ends.
inline PackedRows packed_rows(OnnxCall& c, Value* bounds, const DimExpr& count) {
  if (bounds->rank() != 1) c.refuse("cumulative lengths must be a vector");
  bounds = c.cast(bounds, DType::Int64);
  PackedRows rows{count, bounds->dims.at(0) - DimExpr(1)};
  const DimExpr b = rows.sequences;
  rows.begin = c.slice(bounds, 0, 0, b);
  Value* end = c.slice(bounds, 0, 1, b + DimExpr(1));
  rows.length = c.emit("Sub", {end, rows.begin});
  Value* all = onnx_heads::range(c, 0, count, {count, 1});
  Value* is_behind = c.pointwise("GreaterOrEqual", {all, c.reshape(end, {1, b})});
  rows.sequence = c.reduce("ReduceSum", c.cast(is_behind, DType::Int64), {1}, false);
  Value* begins = c.emit("Gather", {rows.begin, rows.sequence}, {{"axis", 0}});
  rows.place = c.emit("Sub", {c.reshape(all, {count}), begins});
  return rows;
}

/// Where row `place` of `sequence` lies in the rows followed by all states, of `held` rows each: a
/// negative place is one of the state's.
inline Value* index_of(OnnxCall& c, const PackedRows& rows, Value* sequence, Value* place,
                       int64_t held) {
  Value* begins = c.emit("Gather", {rows.begin, sequence}, {{"axis", 0}});
  Value* states = c.emit("Mul", {sequence, number(c, static_cast<double>(held), sequence)});
  states = c.emit("Add", {states, size_number(c, rows.count + DimExpr(held))});
  return c.pointwise(
      "Where", {c.emit("Less", {place, number(c, 0, place)}), c.pointwise("Add", {states, place}),
                c.pointwise("Add", {begins, place})});
}

/// Of the rows that lie `back` before each one.
inline Value* index_before(OnnxCall& c, const PackedRows& rows, int64_t back, int64_t held) {
  Value* place = c.emit("Sub", {rows.place, number(c, static_cast<double>(back), rows.place)});
  return index_of(c, rows, rows.sequence, place, held);
}

/// Of the last `held` rows of each sequence when it had `count` rows [B, ...]: [B, ..., held].
inline Value* index_of_last(OnnxCall& c, const PackedRows& rows, Value* count, int64_t held) {
  Dims dims = count->dims, ones(dims.size(), 1);
  ones.at(0) = rows.sequences;
  ones.push_back(1);
  dims.push_back(1);
  Value* sequence = onnx_heads::range(c, 0, rows.sequences, ones);
  ones.at(0) = 1;
  ones.back() = held;
  Value* place =
      c.pointwise("Add", {c.reshape(count, dims), onnx_heads::range(c, -held, held, ones)});
  return index_of(c, rows, sequence, place, held);
}

/// Of the first `capacity` rows of each sequence, whether they are among the first `counts`: [B,
/// capacity].
inline Value* are_captured(OnnxCall& c, const PackedRows& rows, Value* counts, int64_t capacity) {
  Value* most = c.emit("Min", {c.cast(counts, DType::Int64), rows.length});
  return c.pointwise("Less", {onnx_heads::range(c, 0, capacity, {1, capacity}),
                              c.reshape(most, {rows.sequences, 1})});
}

/// The attribute state_update_capacity, which must be positive where `operand` counts rows.
inline int64_t capture_capacity(OnnxCall& c, size_t operand) {
  constexpr int64_t kMostCaptured = 8;
  const int64_t capacity = c.integer("state_update_capacity", 0);
  if (capacity < 0 || capacity > kMostCaptured || (capacity > 0) != c.has(operand))
    c.refuse("state_update_capacity must be from 0 to 8, and positive with capture_count alone");
  return capacity;
}

}  // namespace ortmodule
