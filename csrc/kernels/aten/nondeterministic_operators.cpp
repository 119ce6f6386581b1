#include "kernels/aten/nondeterministic_operators.h"

#include <ATen/Context.h>
#include <torch/version.h>

#include <algorithm>
#include <array>

namespace ortmodule {
namespace {

using Condition = bool (*)(const NodeFacts&);

/// An operator without its namespace and overload.
struct Operator {
  std::string_view name;
  Condition when = nullptr;  // only with such arguments
};

/// The argument as the exporter writes flags, strings and references to tensors.
std::string_view text_of(const NodeFacts& node, const char* argument) {
  const Attr* attr = node.attrs.find(argument);
  const auto* text = attr ? std::get_if<std::string>(attr) : nullptr;
  return text ? std::string_view(*text) : std::string_view();
}

bool sets(const NodeFacts& node) { return text_of(node, "arg_accumulate") != "true"; }
bool is_weighted(const NodeFacts& node) {
  return text_of(node, "arg_weights").starts_with("tensor:");
}
bool takes_tensor(const NodeFacts& node) { return text_of(node, "arg_src").starts_with("tensor:"); }
// The least and the greatest do not depend on an order.
bool multiplies(const NodeFacts& node) { return text_of(node, "arg_reduce") == "str:prod"; }
bool adds(const NodeFacts& node) {
  return text_of(node, "arg_reduce") == "str:sum" || text_of(node, "arg_reduce") == "str:mean";
}
bool gives_indices(const NodeFacts& node) { return node.output_dtypes.size() > 1; }
bool sums_floats(const NodeFacts& node) {
  return !node.output_dtypes.empty() && !kIntegers.contains(node.output_dtypes[0]);
}
bool takes_maximum(const NodeFacts& node) {
  const Attr* mode = node.attrs.find("arg_mode");
  const auto* number = mode ? std::get_if<DimExpr>(mode) : nullptr;
  constexpr int64_t kMax = 2;
  return !number || number->value() == kMax;
}

/// Deterministic only under torch.use_deterministic_algorithms(True).
constexpr auto kUnlessAsked = std::to_array<Operator>({
    {"_flash_attention_backward"},
    {"_efficient_attention_backward"},
    {"_scaled_dot_product_flash_attention_backward"},
    {"_scaled_dot_product_efficient_attention_backward"},
});

/// Deterministic under the flag, `warn_only` or not.
constexpr auto kUnlessFlagged = std::to_array<Operator>({
    {"_convolution"},
    {"convolution"},
    {"convolution_backward"},
    {"cudnn_convolution"},
    {"cudnn_convolution_transpose"},
    {"replication_pad1d_backward"},
    {"replication_pad2d_backward"},
    {"replication_pad3d_backward"},
    {"_index_put_impl", sets},
    {"_unsafe_index_put", sets},
    {"index_put", sets},
    {"index_add"},
    {"index_copy"},
    {"scatter", takes_tensor},
    {"scatter_add"},
    {"scatter_reduce", adds},
});

/// Without a deterministic form: torch refuses them under the flag.
constexpr auto kAlways = std::to_array<Operator>({
    {"_adaptive_avg_pool2d_backward"},
    {"_adaptive_avg_pool3d_backward"},
    {"_scaled_dot_product_cudnn_attention_backward"},
    {"_ctc_loss_backward"},
    {"_embedding_bag_backward", takes_maximum},
    {"_embedding_bag_dense_backward", takes_maximum},
    {"_upsample_bicubic2d_aa_backward"},
    {"_upsample_bilinear2d_aa_backward"},
    {"adaptive_max_pool2d_backward"},
    {"adaptive_max_pool3d_backward"},
    {"avg_pool3d_backward"},
    {"bincount", is_weighted},
    {"fractional_max_pool2d_backward"},
    {"fractional_max_pool3d_backward"},
    {"grid_sampler_2d_backward"},
    {"grid_sampler_3d_backward"},
    {"histc", sums_floats},
    {"index_reduce"},
    {"kthvalue"},
    {"max_pool3d_with_indices_backward"},
    {"max_unpool2d"},
    {"max_unpool3d"},
    {"median", gives_indices},
    {"nll_loss2d_forward"},
    {"put"},
    {"reflection_pad1d_backward"},
    {"reflection_pad2d_backward"},
    {"reflection_pad3d_backward"},
    {"scatter_reduce", multiplies},
    {"upsample_bicubic2d_backward"},
    {"upsample_bilinear2d_backward"},
    {"upsample_linear1d_backward"},
    {"upsample_trilinear3d_backward"},
});

template <size_t count>
bool holds(const std::array<Operator, count>& operators, std::string_view name,
           const NodeFacts& node) {
  return std::any_of(operators.begin(), operators.end(), [&](const Operator& op) {
    return op.name == name && (!op.when || op.when(node));
  });
}

/// "aten.index_put.default" -> "index_put"
std::string_view bare_name(std::string_view target) {
  const size_t first = target.find('.'), last = target.rfind('.');
  if (first == std::string_view::npos || first == last) return target;
  return target.substr(first + 1, last - first - 1);
}

}  // namespace

// Torch 2.14 has a deterministic form.
constexpr bool kCumsumVariesUnderFlag = TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 14;

bool varies_on_cuda(const NodeFacts& node) {
  const std::string target = node.attrs.string("operator", "");
  const std::string_view name = bare_name(target);
  const at::Context& flags = at::globalContext();
  const bool flagged = flags.deterministicAlgorithms();
  const bool asked = flagged && !flags.deterministicAlgorithmsWarnOnly();
  if (asked) return false;
  if (name == "cumsum") return sums_floats(node) && (!flagged || kCumsumVariesUnderFlag);
  return holds(kAlways, name, node) || holds(kUnlessAsked, name, node) ||
         (!flagged && holds(kUnlessFlagged, name, node));
}

}  // namespace ortmodule
