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

/// The results of both copies are laid out like their operands; a wait has none.
KernelDef copies_on(Device device, std::string_view op, std::string_view name,
                    void (*run)(const KernelArgs&)) {
  return {.op = op,
          .name = name,
          .device = device,
          .dtypes = kEveryType,
          .run = run,
          .output_strides = run == await_copy ? nullptr : strides_of_input,
          .layout = LayoutRule::Any,
          .host_outputs = run == copy_to_host};
}

// Those of the CPU are for plans alone: a host has no other memory to copy to.
const KernelRegistrar kKernels[] = {
    KernelRegistrar(copies_on(Device::CUDA, "CopyToHost", "copy_to_host_cuda", copy_to_host)),
    KernelRegistrar(copies_on(Device::CUDA, "CopyToDevice", "copy_to_device_cuda", copy_to_device)),
    KernelRegistrar(copies_on(Device::CUDA, "AwaitCopy", "await_copy_cuda", await_copy)),
    KernelRegistrar(copies_on(Device::CPU, "CopyToHost", "copy_to_host_cpu", copy_to_host)),
    KernelRegistrar(copies_on(Device::CPU, "CopyToDevice", "copy_to_device_cpu", copy_to_device)),
    KernelRegistrar(copies_on(Device::CPU, "AwaitCopy", "await_copy_cpu", await_copy))};

}  // namespace
}  // namespace ortmodule
