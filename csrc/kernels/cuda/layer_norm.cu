// LayerNormalization, SkipLayerNormalization and LayerNormalizationGrad as in cpu/layer_norm.cpp;
// method and bytes moved: norm.cuh.
#include "kernels/cuda/norm.cuh"

namespace ortmodule::cuda {
namespace {

// scale, bias and the outputs follow x or, with a skip, x and skip.
template <class T>
NormForward<T> forward_of(const KernelArgs& args, size_t scale) {
  using C = ComputeOf<T>;
  NormForward<T> f;
  f.x = args.in[0].as<T>();
  f.scale = data_or_null<T>(args.in, scale);
  f.bias = data_or_null<T>(args.in, scale + 1);
  f.y = args.out[0].as<T>();
  f.mean = data_or_null<C>(args.out, 1);
  f.inv_std_dev = data_or_null<C>(args.out, 2);
  return f;
}

void run_layer_norm(const KernelArgs& args) {
  dispatch_float(args.in[0].dtype,
                 [&]<class T> { run_norm_forward<T, true>(args, forward_of<T>(args, 1)); });
}

void run_skip_layer_norm(const KernelArgs& args) {
  dispatch_float(args.in[0].dtype, [&]<class T> {
    NormForward<T> f = forward_of<T>(args, 2);
    f.skip = args.in[1].as<T>();
    f.sum = data_or_null<T>(args.out, 3);
    run_norm_forward<T, true>(args, f);
  });
}

void run_layer_norm_grad(const KernelArgs& args) {
  dispatch_float(args.in[1].dtype, [&]<class T> {
    using C = ComputeOf<T>;
    NormBackward<T> b;
    b.dy = args.in[0].as<T>();
    b.x = args.in[1].as<T>();
    b.scale = args.in[2].as<T>();
    b.mean = args.in[3].as<C>();
    b.inv_std_dev = args.in[4].as<C>();
    b.dx = args.out[0].as<T>();
    b.dscale = data_or_null<T>(args.out, 1);
    b.dbias = data_or_null<T>(args.out, 2);
    run_norm_backward<T, true>(args, b);
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
REGISTER_KERNEL({.op = "LayerNormalizationGrad",
                 .name = "layer_norm_grad_cuda",
                 .device = Device::CUDA,
                 .dtypes = kAllFloats,
                 .run = run_layer_norm_grad,
                 .workspace_bytes = norm_grad_workspace<true>,
                 .inplace = true});

}  // namespace
}  // namespace ortmodule::cuda
