// SimplifiedLayerNormalization (RMS norm) and its gradient as in cpu/simplified_layer_norm.cpp;
// method and bytes moved: norm.cuh.
#include "kernels/cuda/norm.cuh"

namespace ortmodule::cuda {
namespace {

void run_rms_norm(const KernelArgs& args) {
  dispatch_float(args.in[0].dtype, [&]<class T> {
    NormForward<T> f;
    f.x = args.in[0].as<T>();
    f.scale = data_or_null<T>(args.in, 1);
    f.y = args.out[0].as<T>();
    f.inv_std_dev = data_or_null<ComputeOf<T>>(args.out, 1);
    run_norm_forward<T, false>(args, f);
  });
}

void run_rms_norm_grad(const KernelArgs& args) {
  dispatch_float(args.in[1].dtype, [&]<class T> {
    NormBackward<T> b;
    b.dy = args.in[0].as<T>();
    b.x = args.in[1].as<T>();
    b.scale = args.in[2].as<T>();
    b.inv_std_dev = args.in[3].as<ComputeOf<T>>();
    b.dx = args.out[0].as<T>();
    b.dscale = data_or_null<T>(args.out, 1);
    run_norm_backward<T, false>(args, b);
  });
}

REGISTER_KERNEL({.op = "SimplifiedLayerNormalization",
                 .name = "simplified_layer_norm_cuda",
                 .device = Device::CUDA,
                 .dtypes = kAllFloats,
                 .run = run_rms_norm,
                 .inplace = true});
REGISTER_KERNEL({.op = "SimplifiedLayerNormalizationGrad",
                 .name = "simplified_layer_norm_grad_cuda",
                 .device = Device::CUDA,
                 .dtypes = kAllFloats,
                 .run = run_rms_norm_grad,
                 .workspace_bytes = norm_grad_workspace<false>,
                 .inplace = true});

}  // namespace
}  // namespace ortmodule::cuda
