// The tiles of rows in which LinearCrossEntropy (linear_cross_entropy.cpp) is computed: their size,
// the workspace that holds one, and the kernels that run on it.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "kernels/kernel.h"
#include "kernels/scalar_math.h"

namespace ortmodule::loss_head {

enum Operand : size_t { kX, kW, kBias, kLabels, kWeights };
enum Result : size_t { kLoss, kUnitDx, kUnitDw, kUnitDbias };

/// Sizes and types of a loss head, and of its tiles of rows.
struct HeadShape {
  int64_t rows = 0, channels = 0, classes = 0, tile_rows = 0;
  int64_t step = 0;           // on a CPU, what the last tile's number of rows is a multiple of
  int64_t row_stride = 0;     // of scores, in elements
  int64_t whole_classes = 0;  // in vectors of 16 bytes; the rest has products of its own
  /// Classes whose part of unit_dw is one product of 16 bits on a CPU; 0: products in the wide
  /// type.
  int64_t dw_classes = 0;
  bool trans_b = true;
  bool mixes = false;               // products of 16 bits read and write scores of float32
  DType dtype = DType::Undefined;   // of x and w
  DType wide = DType::Undefined;    // in which losses and unit gradients are computed
  DType scored = DType::Undefined;  // what the kernels of the loss read
  // What gradients of scores are scaled by: the range of float16 is too small for probabilities.
  double unit = 1;

  HeadShape(const StepFacts& facts, Device device);
  bool widens() const { return dtype != wide; }
  /// Whether scores are also kept in the wide type.
  bool copies() const { return dtype != scored && !mixes; }
  /// Rows of a tile for the last `left` rows of those whose labels count.
  int64_t padded(int64_t left, int64_t begin) const {
    return std::min({(left + step - 1) / step * step, tile_rows, rows - begin});
  }

 private:
  int64_t rows_of_tile(int64_t share, int64_t least, int64_t most) const {
    return std::min(rows, std::clamp((rows + share - 1) / share, least, most));
  }
};

/// The pieces of the workspace, each aligned to 64 bytes.
struct Workspace {
  size_t bytes = 0;
  size_t narrow, scores, narrow_dx, wide_x, narrow_dw, losses, log_sum_exp, ones, dloss,
      row_scratch, gathered_x, gathered_labels;

  Workspace(const HeadShape& s, size_t scratch_bytes, bool needs_x);

 private:
  size_t add(size_t count) {
    const size_t at = bytes;
    bytes += (count + 63) / 64 * 64;
    return at;
  }
};

/// A step of one kernel on a tile.
struct TileKernel {
  StepFacts facts;
  const KernelDef* kernel = nullptr;
  std::shared_ptr<const void> prepared;
  size_t workspace_bytes() const {
    return kernel->workspace_bytes ? kernel->workspace_bytes(facts) : 0;
  }
};

inline OperandFacts operand_or_absent(const StepFacts& facts, size_t i) {
  return i < facts.inputs.size() ? facts.inputs[i] : OperandFacts{};
}

/// The products on tiles of one number of rows, on a CPU: of float32, of float64, or mixed ones.
struct TileProducts {
  int64_t rows;
  TileKernel scores, dx, dw, more_dw;  // more_dw adds to what is there

  TileProducts(const StepFacts& facts, const HeadShape& s, int64_t rows);
  size_t workspace_bytes() const {
    return std::max({scores.workspace_bytes(), dx.workspace_bytes(), dw.workspace_bytes(),
                     more_dw.workspace_bytes()});
  }
};

/// What a plan keeps for a loss head.
struct Prepared {
  Device device;
  HeadShape shape;
  bool mean;
  int64_t ignore_index;
  TileKernel loss, gradient;
  std::vector<TileProducts> products;  // on tiles of all numbers of rows; or none: torch's
  Workspace workspace;

  Prepared(const StepFacts& facts, Device device);

 private:
  size_t scratch_bytes() const;
};

}  // namespace ortmodule::loss_head
