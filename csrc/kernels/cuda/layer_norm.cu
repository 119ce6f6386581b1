// LayerNormalization, SkipLayerNormalization and LayerNormalizationGrad as in cpu/layer_norm.cpp,
// also with y rounded to 16 bits or in both types, dy in them, or a sum that goes around the norm
// added to the gradient; method and bytes moved: norm.cuh.
#include "base/error.h"
#include "kernels/cuda/norm.cuh"

namespace ortmodule::cuda {
namespace {

// scale, bias and the outputs follow x or, with a skip, x and skip.
template <class T, class Y = T>
NormForward<T, Y> forward_of(const KernelArgs& args, size_t scale) {
  using C = ComputeOf<T>;
  NormForward<T, Y> f;
  f.x = args.in[0].as<T>();
  f.scale = data_or_null<T>(args.in, scale);
  f.bias = data_or_null<T>(args.in, scale + 1);
  f.y = args.out[0].as<Y>();
  f.mean = data_or_null<C>(args.out, 1);
  f.inv_std_dev = data_or_null<C>(args.out, 2);
  return f;
}

template <class T, class Y = T>
NormForward<T, Y> skip_forward_of(const KernelArgs& args) {
  NormForward<T, Y> f = forward_of<T, Y>(args, 2);
  f.skip = args.in[1].as<T>();
  f.sum = data_or_null<T>(args.out, 3);
  return f;
}

template <class T, class D>
NormBackward<T, D> backward_of(const KernelArgs& args) {
  using C = ComputeOf<T>;
  NormBackward<T, D> b;
  b.dy = args.in[0].as<D>();
  b.x = args.in[1].as<T>();
  b.scale = args.in[2].as<T>();
  b.mean = args.in[3].as<C>();
  b.inv_std_dev = args.in[4].as<C>();
  b.dx = args.out[0].as<T>();
  b.dscale = data_or_null<T>(args.out, 1);
  b.dbias = data_or_null<T>(args.out, 2);
  return b;
}

template <class T, class D>
void run_gradient(const KernelArgs& args) {
  NormBackward<T, D> b = backward_of<T, D>(args);
  b.dsum = data_or_null<T>(args.in, 5);
  run_norm_backward<true>(args, b);
}

void run_layer_norm(const KernelArgs& args) {
  dispatch_float(args.in[0].dtype,
                 [&]<class T> { run_norm_forward<true>(args, forward_of<T>(args, 1)); });
}

void run_layer_norm_cast(const KernelArgs& args) {
  dispatch_rounded(args.out[0].dtype,
                   [&]<class Y> { run_norm_forward<true>(args, forward_of<float, Y>(args, 1)); });
}

void run_skip_layer_norm(const KernelArgs& args) {
  dispatch_float(args.in[0].dtype,
                 [&]<class T> { run_norm_forward<true>(args, skip_forward_of<T>(args)); });
}

void run_skip_layer_norm_cast(const KernelArgs& args) {
  // Nothing else keeps the sum of a row that is too long for registers.
  ORTM_ASSERT(args.out.size() > 3 && args.out[3].data, "the sum of a norm has no memory");
  dispatch_rounded(args.out[0].dtype,
                   [&]<class Y> { run_norm_forward<true>(args, skip_forward_of<float, Y>(args)); });
}

/// y in both types: `rounded` is the output of 16 bits.
template <class Y>
NormForward<float, Y> with_both(NormForward<float, Y> f, const KernelArgs& args, size_t rounded) {
  f.wide = args.out[0].as<float>();
  f.y = args.out[rounded].as<Y>();
  return f;
}

void run_layer_norm_with_cast(const KernelArgs& args) {
  dispatch_rounded(args.out[3].dtype, [&]<class Y> {
    run_norm_forward<true>(args, with_both(forward_of<float, Y>(args, 1), args, 3));
  });
}

void run_skip_layer_norm_with_cast(const KernelArgs& args) {
  ORTM_ASSERT(args.out[3].data, "the sum of a norm has no memory");
  dispatch_rounded(args.out[4].dtype, [&]<class Y> {
    run_norm_forward<true>(args, with_both(skip_forward_of<float, Y>(args), args, 4));
  });
}

void run_layer_norm_grad(const KernelArgs& args) {
  dispatch_float(args.in[1].dtype, [&]<class T> { run_gradient<T, T>(args); });
}

void run_cast_layer_norm_grad(const KernelArgs& args) {
  dispatch_rounded(args.in[0].dtype, [&]<class D> { run_gradient<float, D>(args); });
}

void run_add_cast_layer_norm_grad(const KernelArgs& args) {
  dispatch_rounded(args.in[0].dtype, [&]<class D> {
    NormBackward<float, D> b = backward_of<float, D>(args);
    b.more = args.in[5].as<float>();
    run_norm_backward<true>(args, b);
  });
}

REGISTER_KERNEL({.op = "LayerNormalization",
                 .name = "layer_norm_cuda",
                 .device = Device::CUDA,
                 .dtypes = kAllFloats,
                 .run = run_layer_norm,
                 .inplace = true});
REGISTER_KERNEL({.op = "SkipLayerNormalization",
                 .name = "skip_layer_norm_cuda",
                 .device = Device::CUDA,
                 .dtypes = kAllFloats,
                 .run = run_skip_layer_norm,
                 .inplace = true});
REGISTER_KERNEL({.op = "LayerNormalizationCast",
                 .name = "layer_norm_cast_cuda",
                 .device = Device::CUDA,
                 .dtypes = kAllFloats,
                 .run = run_layer_norm_cast});
REGISTER_KERNEL({.op = "SkipLayerNormalizationCast",
                 .name = "skip_layer_norm_cast_cuda",
                 .device = Device::CUDA,
                 .dtypes = kAllFloats,
                 .run = run_skip_layer_norm_cast,
                 .inplace = true});
REGISTER_KERNEL({.op = "LayerNormalizationWithCast",
                 .name = "layer_norm_with_cast_cuda",
                 .device = Device::CUDA,
                 .dtypes = kAllFloats,
                 .run = run_layer_norm_with_cast,
                 .inplace = true});
REGISTER_KERNEL({.op = "SkipLayerNormalizationWithCast",
                 .name = "skip_layer_norm_with_cast_cuda",
                 .device = Device::CUDA,
                 .dtypes = kAllFloats,
                 .run = run_skip_layer_norm_with_cast,
                 .inplace = true});
REGISTER_KERNEL({.op = "LayerNormalizationGrad",
                 .name = "layer_norm_grad_cuda",
                 .device = Device::CUDA,
                 .dtypes = kAllFloats,
                 .run = run_layer_norm_grad,
                 .workspace_bytes = norm_grad_workspace<true>,
                 .inplace = true});
REGISTER_KERNEL({.op = "SkipLayerNormalizationGrad",
                 .name = "skip_layer_norm_grad_cuda",
                 .device = Device::CUDA,
                 .dtypes = kAllFloats,
                 .run = run_layer_norm_grad,
                 .workspace_bytes = norm_grad_workspace<true>,
                 .inplace = true});
REGISTER_KERNEL({.op = "CastLayerNormalizationGrad",
                 .name = "cast_layer_norm_grad_cuda",
                 .device = Device::CUDA,
                 .dtypes = kAllFloats,
                 .run = run_cast_layer_norm_grad,
                 .workspace_bytes = norm_grad_workspace<true>,
                 .inplace = true});
REGISTER_KERNEL({.op = "AddCastLayerNormalizationGrad",
                 .name = "add_cast_layer_norm_grad_cuda",
                 .device = Device::CUDA,
                 .dtypes = kAllFloats,
                 .run = run_add_cast_layer_norm_grad,
                 .workspace_bytes = norm_grad_workspace<true>,
                 .inplace = true});
REGISTER_KERNEL({.op = "CastSkipLayerNormalizationGrad",
                 .name = "cast_skip_layer_norm_grad_cuda",
                 .device = Device::CUDA,
                 .dtypes = kAllFloats,
                 .run = run_cast_layer_norm_grad,
                 .workspace_bytes = norm_grad_workspace<true>,
                 .inplace = true});

}  // namespace
}  // namespace ortmodule::cuda
