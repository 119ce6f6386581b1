// Whether the rows of a batch can run apart, and where they are in the inputs and outputs.
#pragma once

#include <string>
#include <vector>

#include "base/dim_expr.h"
#include "base/error.h"
#include "ir/graph.h"

namespace ortmodule {

struct RowSplit {
  std::vector<std::string> symbols;  // each is the number of rows
  std::vector<int> inputs;           // by graph input: the axis of its rows, or kWhole
  std::vector<int> outputs;          // by graph output; none is whole
};

/// Follows the rows through the graph of a model, as it is imported. Returns why they cannot run
/// apart: rows that meet in a node, or a number of rows that the model computes with.
Reason find_row_split(const Graph& graph, RowSplit& split);

/// Whether two imports of a model do the same at these sizes: a model may be imported anew for
/// another number of rows.
bool is_same_graph(const Graph& one, const SymbolValues& one_values, const Graph& other,
                   const SymbolValues& other_values);

}  // namespace ortmodule
