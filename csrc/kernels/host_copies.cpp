// The steps that begin and end copies between a device and the host. The copies themselves belong
// to the run (KernelContext::host_copies), which knows the streams.

#include "kernels/host_copies.h"

#include "kernels/kernel.h"

namespace ortmodule {
namespace {

/// The bytes from the first to the last element: gaps are copied along.
int64_t extent_bytes(const OperandFacts& operand) {
  return extent(operand.layout) * static_cast<int64_t>(size_of(operand.dtype));
}

HostCopies& copies_of(const KernelArgs& args) {
  ORTM_ASSERT(args.context.host_copies, "a plan with copies to the host runs without them");
  return *args.context.host_copies;
}

void copy_to_host(const KernelArgs& args) {
  copies_of(args).to_host(args.out[0].data, args.in[0].data, extent_bytes(args.facts.inputs[0]));
}

void copy_to_device(const KernelArgs& args) {
  copies_of(args).to_device(args.out[0].data, args.in[0].data, extent_bytes(args.facts.inputs[0]));
}

/// Operands: source and destination of the copy.
void await_copy(const KernelArgs& args) { copies_of(args).await(args.in[1].data); }

std::vector<Sizes> strides_of_input(const StepFacts& facts) {
  return {facts.inputs[0].layout.strides};
}

KernelDef to_host_on(Device device, std::string_view name) {
  return {.op = "CopyToHost",
          .name = name,
          .device = device,
          .dtypes = kEveryType,
          .run = copy_to_host,
          .output_strides = strides_of_input,
          .layout = LayoutRule::Any,
          .host_outputs = true};
}

KernelDef to_device_on(Device device, std::string_view name) {
  return {.op = "CopyToDevice",
          .name = name,
          .device = device,
          .dtypes = kEveryType,
          .run = copy_to_device,
          .output_strides = strides_of_input,
          .layout = LayoutRule::Any};
}

KernelDef await_on(Device device, std::string_view name) {
  return {.op = "AwaitCopy",
          .name = name,
          .device = device,
          .dtypes = kEveryType,
          .run = await_copy,
          .layout = LayoutRule::Any};
}

// Those of the CPU are for plans alone: a host has no other memory to copy to.
const KernelRegistrar kKernels[] = {
    KernelRegistrar(to_host_on(Device::CUDA, "copy_to_host_cuda")),
    KernelRegistrar(to_device_on(Device::CUDA, "copy_to_device_cuda")),
    KernelRegistrar(await_on(Device::CUDA, "await_copy_cuda")),
    KernelRegistrar(to_host_on(Device::CPU, "copy_to_host_cpu")),
    KernelRegistrar(to_device_on(Device::CPU, "copy_to_device_cpu")),
    KernelRegistrar(await_on(Device::CPU, "await_copy_cpu"))};

}  // namespace
}  // namespace ortmodule
