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
  f.scale = view_or_absent(args.in, scale).as<T>();
  f.bias = view_or_absent(args.in, scale + 1).as<T>();
  f.y = args.out[0].as<T>();
  f.mean = view_or_absent(args.out, 1).as<C>();
  f.inv_std_dev = view_or_absent(args.out, 2).as<C>();
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
    f.sum = view_or_absent(args.out, 3).as<T>();
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
    b.dscale = view_or_absent(args.out, 1).as<T>();
    b.dbias = view_or_absent(args.out, 2).as<T>();
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
