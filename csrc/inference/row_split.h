// Whether the rows of a batch can run apart, and where they are in the inputs and outputs.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/dim_expr.h"
#include "base/error.h"
#include "ir/graph.h"
#include "onnx/onnx_model.h"
#include "ops/row_axes.h"

namespace ortmodule {

struct RowSplit {
  std::vector<std::string> symbols;  // each is the number of rows
  std::vector<int> inputs;           // by graph input: the axis of its rows, or kWhole
  std::vector<int> outputs;          // by graph output; none is whole
};

/// A model as it is imported, and what is known of the integers among its weights.
struct ImportedRows {
  std::unique_ptr<const Graph> graph;
  std::unordered_map<const Value*, RowNumbers> numbers;
};

/// A copy of `graph`, whose constant inputs are `weights`, in order.
ImportedRows imported_rows(const Graph& graph, const std::vector<OnnxTensor>& weights);

/// Follows the rows through a model at the sizes of a run. Returns why they cannot run apart: rows
/// that meet in a node, or a number of rows that the model computes with.
Reason find_row_split(const ImportedRows& model, const SymbolValues& sizes, RowSplit& split);

}  // namespace ortmodule
