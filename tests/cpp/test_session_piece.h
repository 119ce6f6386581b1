// A piece over `b` rows for the tests of a session's parts.
#pragma once

#include <memory>
#include <vector>

#include "ir/exported_piece.h"
#include "ir/text.h"
#include "ops/emit.h"
#include "session/plan_key.h"

namespace ortmodule {

/// A sum over four softmaxes of the same product, `s0` to `s3`, each of which backward reads. Its
/// symbol arguments are a counter, which nothing depends on, and the rows.
inline ExportedPiece rows_piece() {
  ExportedPiece piece;
  piece.graph = parse_graph(R"(rows (x: f32[b,16], w: param grad f32[16]) => (y) {
    p = Mul (x, w)
    p0 = Mul (p, 0.25); s0 = Softmax<axis=-1> (p0); z0 = Mul (s0, w)
    p1 = Mul (p, 0.5); s1 = Softmax<axis=-1> (p1); z1 = Mul (s1, w)
    p2 = Mul (p, 2.0); s2 = Softmax<axis=-1> (p2); z2 = Mul (s2, w)
    p3 = Mul (p, 4.0); s3 = Softmax<axis=-1> (p3); z3 = Mul (s3, w)
    y01 = Add (z0, z1); y012 = Add (y01, z2); y = Add (y012, z3)
  })");
  infer(*piece.graph);
  piece.arguments = {{BoundInput::Kind::Symbol, -1, "counter"},
                     {BoundInput::Kind::Symbol, -1, "b"},
                     {BoundInput::Kind::Tensor, 0, ""},
                     {BoundInput::Kind::Tensor, 1, ""}};
  piece.output_strides = {{16, 1}};
  return piece;
}

/// The shapes of a call of rows_piece().
class RowsCall {
 public:
  explicit RowsCall(int64_t rows, int64_t counter = 0, int64_t row_stride = 16)
      : sizes_{{rows, 16}, {16}}, strides_{{row_stride, 1}, {1}}, symbols_{counter, rows} {
    for (size_t i = 0; i < sizes_.size(); ++i) arguments_.push_back({sizes_[i], strides_[i]});
  }
  RowsCall(const RowsCall&) = delete;
  RowsCall& operator=(const RowsCall&) = delete;
  operator CallShapes() const { return {arguments_, symbols_}; }  // NOLINT

 private:
  std::vector<Sizes> sizes_, strides_;
  std::vector<int64_t> symbols_;
  std::vector<LayoutView> arguments_;
};

}  // namespace ortmodule
