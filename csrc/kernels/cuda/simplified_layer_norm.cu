// SimplifiedLayerNormalization (RMS norm) and its gradient as in cpu/simplified_layer_norm.cpp,
// also with y rounded to 16 bits or in both types, dy in them, or a sum that goes around the norm
// added to the gradient; method and bytes moved: norm.cuh.
#include "kernels/cuda/norm.cuh"

namespace ortmodule::cuda {
namespace {

template <class T, class Y>
NormForward<T, Y> rms_forward_of(const KernelArgs& args) {
  NormForward<T, Y> f;
  f.x = args.in[0].as<T>();
  f.scale = data_or_null<T>(args.in, 1);
  f.y = args.out[0].as<Y>();
  f.inv_std_dev = data_or_null<ComputeOf<T>>(args.out, 1);
  return f;
}

template <class T, class Y>
void run_rms_forward(const KernelArgs& args) {
  run_norm_forward<false>(args, rms_forward_of<T, Y>(args));
}

template <class T, class D>
NormBackward<T, D> rms_backward_of(const KernelArgs& args) {
  NormBackward<T, D> b;
  b.dy = args.in[0].as<D>();
  b.x = args.in[1].as<T>();
  b.scale = args.in[2].as<T>();
  b.inv_std_dev = args.in[3].as<ComputeOf<T>>();
  b.dx = args.out[0].as<T>();
  b.dscale = data_or_null<T>(args.out, 1);
  return b;
}

template <class T, class D>
void run_rms_gradient(const KernelArgs& args) {
  NormBackward<T, D> b = rms_backward_of<T, D>(args);
  b.dsum = data_or_null<T>(args.in, 4);
  run_norm_backward<false>(args, b);
}

void run_rms_norm(const KernelArgs& args) {
  dispatch_float(args.in[0].dtype, [&]<class T> { run_rms_forward<T, T>(args); });
}

void run_rms_norm_cast(const KernelArgs& args) {
  dispatch_rounded(args.out[0].dtype, [&]<class Y> { run_rms_forward<float, Y>(args); });
}

void run_rms_norm_with_cast(const KernelArgs& args) {
  dispatch_rounded(args.out[2].dtype, [&]<class Y> {
    NormForward<float, Y> f = rms_forward_of<float, Y>(args);
    f.wide = args.out[0].as<float>();
    f.y = args.out[2].as<Y>();
    run_norm_forward<false>(args, f);
  });
}

void run_rms_norm_grad(const KernelArgs& args) {
  dispatch_float(args.in[1].dtype, [&]<class T> { run_rms_gradient<T, T>(args); });
}

void run_cast_rms_norm_grad(const KernelArgs& args) {
  dispatch_rounded(args.in[0].dtype, [&]<class D> { run_rms_gradient<float, D>(args); });
}

void run_add_cast_rms_norm_grad(const KernelArgs& args) {
  dispatch_rounded(args.in[0].dtype, [&]<class D> {
    NormBackward<float, D> b = rms_backward_of<float, D>(args);
    b.more = args.in[4].as<float>();
    run_norm_backward<false>(args, b);
  });
}

REGISTER_KERNEL({.op = "SimplifiedLayerNormalization",
                 .name = "simplified_layer_norm_cuda",
                 .device = Device::CUDA,
                 .dtypes = kAllFloats,
                 .run = run_rms_norm,
                 .inplace = true});
REGISTER_KERNEL({.op = "SimplifiedLayerNormalizationCast",
                 .name = "simplified_layer_norm_cast_cuda",
                 .device = Device::CUDA,
                 .dtypes = kAllFloats,
                 .run = run_rms_norm_cast});
REGISTER_KERNEL({.op = "SimplifiedLayerNormalizationWithCast",
                 .name = "simplified_layer_norm_with_cast_cuda",
                 .device = Device::CUDA,
                 .dtypes = kAllFloats,
                 .run = run_rms_norm_with_cast,
                 .inplace = true});
REGISTER_KERNEL({.op = "AddCastSimplifiedLayerNormalizationGrad",
                 .name = "add_cast_simplified_layer_norm_grad_cuda",
                 .device = Device::CUDA,
                 .dtypes = kAllFloats,
                 .run = run_add_cast_rms_norm_grad,
                 .workspace_bytes = norm_grad_workspace<false>,
                 .inplace = true});
REGISTER_KERNEL({.op = "CastSimplifiedLayerNormalizationGrad",
                 .name = "cast_simplified_layer_norm_grad_cuda",
                 .device = Device::CUDA,
                 .dtypes = kAllFloats,
                 .run = run_cast_rms_norm_grad,
                 .workspace_bytes = norm_grad_workspace<false>,
                 .inplace = true});
REGISTER_KERNEL({.op = "CastSkipSimplifiedLayerNormalizationGrad",
                 .name = "cast_skip_simplified_layer_norm_grad_cuda",
                 .device = Device::CUDA,
                 .dtypes = kAllFloats,
                 .run = run_cast_rms_norm_grad,
                 .workspace_bytes = norm_grad_workspace<false>,
                 .inplace = true});
REGISTER_KERNEL({.op = "SimplifiedLayerNormalizationGrad",
                 .name = "simplified_layer_norm_grad_cuda",
                 .device = Device::CUDA,
                 .dtypes = kAllFloats,
                 .run = run_rms_norm_grad,
                 .workspace_bytes = norm_grad_workspace<false>,
                 .inplace = true});
REGISTER_KERNEL({.op = "SkipSimplifiedLayerNormalizationGrad",
                 .name = "skip_simplified_layer_norm_grad_cuda",
                 .device = Device::CUDA,
                 .dtypes = kAllFloats,
                 .run = run_rms_norm_grad,
                 .workspace_bytes = norm_grad_workspace<false>,
                 .inplace = true});

}  // namespace
}  // namespace ortmodule::cuda
