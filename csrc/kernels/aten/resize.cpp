// Resize and ResizeGrad through torch's out-variants, into planned memory.
#include <ATen/ops/_upsample_bicubic2d_aa.h>
#include <ATen/ops/_upsample_bicubic2d_aa_backward.h>
#include <ATen/ops/_upsample_bilinear2d_aa.h>
#include <ATen/ops/_upsample_bilinear2d_aa_backward.h>
#include <ATen/ops/_upsample_nearest_exact1d.h>
#include <ATen/ops/_upsample_nearest_exact1d_backward.h>
#include <ATen/ops/_upsample_nearest_exact2d.h>
#include <ATen/ops/_upsample_nearest_exact2d_backward.h>
#include <ATen/ops/_upsample_nearest_exact3d.h>
#include <ATen/ops/_upsample_nearest_exact3d_backward.h>
#include <ATen/ops/upsample_bicubic2d.h>
#include <ATen/ops/upsample_bicubic2d_backward.h>
#include <ATen/ops/upsample_bilinear2d.h>
#include <ATen/ops/upsample_bilinear2d_backward.h>
#include <ATen/ops/upsample_linear1d.h>
#include <ATen/ops/upsample_linear1d_backward.h>
#include <ATen/ops/upsample_nearest1d.h>
#include <ATen/ops/upsample_nearest1d_backward.h>
#include <ATen/ops/upsample_nearest2d.h>
#include <ATen/ops/upsample_nearest2d_backward.h>
#include <ATen/ops/upsample_nearest3d.h>
#include <ATen/ops/upsample_nearest3d_backward.h>
#include <ATen/ops/upsample_trilinear3d.h>
#include <ATen/ops/upsample_trilinear3d_backward.h>

#include <algorithm>
#include <array>

#include "kernels/aten/aten_views.h"
#include "kernels/aten/library_probe.h"

namespace ortmodule {
namespace {

struct Resizing;

/// torch's functions of one mode.
struct Mode {
  std::string_view name;
  void (*forward)(at::Tensor& y, const at::Tensor& x, const Resizing& r);
  void (*backward)(at::Tensor& dx, const at::Tensor& dy, const Resizing& r);
};

struct Resizing {
  std::vector<int64_t> sizes;    // of y, spatial
  std::vector<int64_t> x_sizes;  // of x, all
  std::array<std::optional<double>, 3> scales;
  bool align_corners = false;
  const Mode* mode = nullptr;
};

constexpr Mode kModes[] = {
    {"nearest1d",
     [](at::Tensor& y, const at::Tensor& x, const Resizing& r) {
       at::upsample_nearest1d_out(y, x, r.sizes, r.scales[0]);
     },
     [](at::Tensor& dx, const at::Tensor& dy, const Resizing& r) {
       at::upsample_nearest1d_backward_out(dx, dy, r.sizes, r.x_sizes, r.scales[0]);
     }},
    {"nearest2d",
     [](at::Tensor& y, const at::Tensor& x, const Resizing& r) {
       at::upsample_nearest2d_out(y, x, r.sizes, r.scales[0], r.scales[1]);
     },
     [](at::Tensor& dx, const at::Tensor& dy, const Resizing& r) {
       at::upsample_nearest2d_backward_out(dx, dy, r.sizes, r.x_sizes, r.scales[0], r.scales[1]);
     }},
    {"nearest3d",
     [](at::Tensor& y, const at::Tensor& x, const Resizing& r) {
       at::upsample_nearest3d_out(y, x, r.sizes, r.scales[0], r.scales[1], r.scales[2]);
     },
     [](at::Tensor& dx, const at::Tensor& dy, const Resizing& r) {
       at::upsample_nearest3d_backward_out(dx, dy, r.sizes, r.x_sizes, r.scales[0], r.scales[1],
                                           r.scales[2]);
     }},
    {"nearest_exact1d",
     [](at::Tensor& y, const at::Tensor& x, const Resizing& r) {
       at::_upsample_nearest_exact1d_out(y, x, r.sizes, r.scales[0]);
     },
     [](at::Tensor& dx, const at::Tensor& dy, const Resizing& r) {
       at::_upsample_nearest_exact1d_backward_out(dx, dy, r.sizes, r.x_sizes, r.scales[0]);
     }},
    {"nearest_exact2d",
     [](at::Tensor& y, const at::Tensor& x, const Resizing& r) {
       at::_upsample_nearest_exact2d_out(y, x, r.sizes, r.scales[0], r.scales[1]);
     },
     [](at::Tensor& dx, const at::Tensor& dy, const Resizing& r) {
       at::_upsample_nearest_exact2d_backward_out(dx, dy, r.sizes, r.x_sizes, r.scales[0],
                                                  r.scales[1]);
     }},
    {"nearest_exact3d",
     [](at::Tensor& y, const at::Tensor& x, const Resizing& r) {
       at::_upsample_nearest_exact3d_out(y, x, r.sizes, r.scales[0], r.scales[1], r.scales[2]);
     },
     [](at::Tensor& dx, const at::Tensor& dy, const Resizing& r) {
       at::_upsample_nearest_exact3d_backward_out(dx, dy, r.sizes, r.x_sizes, r.scales[0],
                                                  r.scales[1], r.scales[2]);
     }},
    {"linear1d",
     [](at::Tensor& y, const at::Tensor& x, const Resizing& r) {
       at::upsample_linear1d_out(y, x, r.sizes, r.align_corners, r.scales[0]);
     },
     [](at::Tensor& dx, const at::Tensor& dy, const Resizing& r) {
       at::upsample_linear1d_backward_out(dx, dy, r.sizes, r.x_sizes, r.align_corners, r.scales[0]);
     }},
    {"bilinear2d",
     [](at::Tensor& y, const at::Tensor& x, const Resizing& r) {
       at::upsample_bilinear2d_out(y, x, r.sizes, r.align_corners, r.scales[0], r.scales[1]);
     },
     [](at::Tensor& dx, const at::Tensor& dy, const Resizing& r) {
       at::upsample_bilinear2d_backward_out(dx, dy, r.sizes, r.x_sizes, r.align_corners,
                                            r.scales[0], r.scales[1]);
     }},
    {"trilinear3d",
     [](at::Tensor& y, const at::Tensor& x, const Resizing& r) {
       at::upsample_trilinear3d_out(y, x, r.sizes, r.align_corners, r.scales[0], r.scales[1],
                                    r.scales[2]);
     },
     [](at::Tensor& dx, const at::Tensor& dy, const Resizing& r) {
       at::upsample_trilinear3d_backward_out(dx, dy, r.sizes, r.x_sizes, r.align_corners,
                                             r.scales[0], r.scales[1], r.scales[2]);
     }},
    {"bicubic2d",
     [](at::Tensor& y, const at::Tensor& x, const Resizing& r) {
       at::upsample_bicubic2d_out(y, x, r.sizes, r.align_corners, r.scales[0], r.scales[1]);
     },
     [](at::Tensor& dx, const at::Tensor& dy, const Resizing& r) {
       at::upsample_bicubic2d_backward_out(dx, dy, r.sizes, r.x_sizes, r.align_corners, r.scales[0],
                                           r.scales[1]);
     }},
    {"bilinear2d_aa",
     [](at::Tensor& y, const at::Tensor& x, const Resizing& r) {
       at::_upsample_bilinear2d_aa_out(y, x, r.sizes, r.align_corners, r.scales[0], r.scales[1]);
     },
     [](at::Tensor& dx, const at::Tensor& dy, const Resizing& r) {
       at::_upsample_bilinear2d_aa_backward_out(dx, dy, r.sizes, r.x_sizes, r.align_corners,
                                                r.scales[0], r.scales[1]);
     }},
    {"bicubic2d_aa",
     [](at::Tensor& y, const at::Tensor& x, const Resizing& r) {
       at::_upsample_bicubic2d_aa_out(y, x, r.sizes, r.align_corners, r.scales[0], r.scales[1]);
     },
     [](at::Tensor& dx, const at::Tensor& dy, const Resizing& r) {
       at::_upsample_bicubic2d_aa_backward_out(dx, dy, r.sizes, r.x_sizes, r.align_corners,
                                               r.scales[0], r.scales[1]);
     }},
};

std::shared_ptr<const void> prepare_resizing(const StepFacts& facts) {
  const Attrs& attrs = facts.node().attrs;
  auto r = std::make_shared<Resizing>();
  r->sizes = attrs.integers("sizes");
  r->x_sizes = attrs.has("shape") ? attrs.integers("shape") : facts.inputs[0].layout.sizes.vector();
  const std::vector<double>& scales = attrs.numbers("scales");
  for (size_t i = 0; i < scales.size(); ++i)
    if (scales[i] != 0.0) r->scales.at(i) = scales[i];
  r->align_corners = attrs.flag("align_corners");
  r->mode = std::find_if(std::begin(kModes), std::end(kModes),
                         [&](const Mode& mode) { return mode.name == attrs.string("mode"); });
  return r;
}

Reason unknown_mode(const StepFacts& facts) {
  const std::string& mode = facts.node().attrs.string("mode");
  for (const Mode& known : kModes)
    if (known.name == mode) return {};
  return str("no mode is called ", mode);
}

// The memory format of the operand, as in torch, whose bicubic gradient is wrong in any format but
// row-major (torch 2.13, as a result that is given to it).
std::vector<Sizes> resized_strides(const StepFacts& facts) {
  const NodeFacts& node = facts.node();
  if (node.op == "ResizeGrad" && node.attrs.string("mode") == "bicubic2d")
    return {facts.outputs[0].layout.strides};
  return {strides_like(facts.outputs[0].layout.sizes, facts.inputs[0].layout)};
}

void resize(const KernelArgs& args) {
  const auto& r = *static_cast<const Resizing*>(args.prepared);
  at::Tensor y = as_tensor(args.out[0]);
  r.mode->forward(y, as_tensor(args.in[0]), r);
}

void resize_grad(const KernelArgs& args) {
  const auto& r = *static_cast<const Resizing*>(args.prepared);
  at::Tensor dx = as_tensor(args.out[0]);
  r.mode->backward(dx, as_tensor(args.in[0]), r);
}

REGISTER_ATEN_KERNEL({.op = "Resize",
                      .name = "resize_aten",
                      .dtypes = kAllFloats,
                      .run = resize,
                      .unsupported = unknown_mode,
                      .library_bytes = probed_bytes<resize, prepare_resizing>,
                      .output_strides = resized_strides,
                      .prepare = prepare_resizing,
                      .layout = LayoutRule::MemoryFormat});
// On CUDA torch adds with atomics.
REGISTER_ATEN_KERNEL({.op = "ResizeGrad",
                      .name = "resize_grad_aten",
                      .dtypes = kAllFloats,
                      .run = resize_grad,
                      .unsupported = unknown_mode,
                      .library_bytes = probed_bytes<resize_grad, prepare_resizing>,
                      .output_strides = resized_strides,
                      .prepare = prepare_resizing,
                      .layout = LayoutRule::MemoryFormat},
                     {.deterministic = false});

}  // namespace
}  // namespace ortmodule
