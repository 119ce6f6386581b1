// The switch for convolutions by cuDNN's graph API (kernels/cudnn/graph_plan.h), which builds
// without cuDNN have, too.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace ortmodule {

/// Whether this build has them: its cuDNN is of 9.8 or newer.
bool has_graph_convolutions();

/// Whether convolutions of 16 bits in plans made from now on run by cuDNN's graph API; off at
/// first.
bool uses_graph_convolutions();
/// `device`: the properties of the GPU that plans are for, as the JSON text that cuDNN writes of
/// them; empty: the current GPU. Plans for a GPU that is not there cannot run.
void use_graph_convolutions(bool use, const std::string& device = {});
/// As it was given last.
std::string graph_convolution_device();

/// What cuDNN has found for the problems of this process: one direction of one convolution each.
struct GraphConvolutionCounts {
  int64_t problems = 0, without_plan = 0;
  int64_t runs = 0;
  int64_t most_workspace_bytes = 0;
};
GraphConvolutionCounts graph_convolution_counts();

// --- for the implementation ----------------------------------------------------------------------
/// A static object of a build that has them.
struct RegisterGraphConvolutions {
  RegisterGraphConvolutions();
};
/// Scratch of the best plan of a problem, or nothing if it has none.
void note_graph_convolution(std::optional<int64_t> workspace_bytes);
void note_graph_convolution_run();

}  // namespace ortmodule
