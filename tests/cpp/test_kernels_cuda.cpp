// The CUDA kernels as a set: which ops have one, and whether the registrations of both devices
// agree.
#include <set>

#include "kernels/cuda_emulation.h"
#include "test_kernels_harness.h"

namespace ortmodule::testing {
namespace {

const KernelDef* kernel_on(std::string_view op, Device device) {
  for (const KernelDef* def : kernels_of(op))
    if (def->device == device) return def;
  return nullptr;
}

TEST(CudaKernels, AreEmulatedHere) {
  EXPECT_TRUE(cuda::emulated());
  EXPECT_NE(kernel_on("PointwiseGroup", Device::CUDA), nullptr);
}

// One test per op that the CPU has a kernel for; all tests of kernels run the CUDA kernel, too.
class CudaKernel : public ::testing::TestWithParam<std::string> {};

TEST_P(CudaKernel, TakesWhatTheCpuTakes) {
  const KernelDef* cpu = kernel_on(GetParam(), Device::CPU);
  const KernelDef* cuda = kernel_on(GetParam(), Device::CUDA);
  ASSERT_NE(cuda, nullptr) << "no CUDA kernel for " << GetParam();
  for (int i = 1; i <= static_cast<int>(DType::Complex128); ++i) {
    const DType dtype = static_cast<DType>(i);
    if (!cpu->dtypes.contains(dtype)) continue;
    EXPECT_TRUE(cuda->dtypes.contains(dtype)) << cuda->name << " does not take " << name_of(dtype);
  }
  EXPECT_TRUE(cuda->deterministic) << cuda->name;
  EXPECT_NE(cuda->run, nullptr);
}

std::vector<std::string> cpu_ops() {
  std::set<std::string> ops;
  // A kernel of higher priority is one beside torch's, which runs on both devices.
  for (const KernelDef* def : all_kernels())
    if (def->device == Device::CPU && def->priority == 0) ops.emplace(def->op);
  // On CUDA attention is one of torch's fused kernels.
  ops.erase("ScaledDotProductAttention");
  ops.erase("ScaledDotProductAttentionGrad");
  // Packed weights, products of integers and of weights of few bits, and operators of ai.onnx.ml
  // are for runs on the host.
  for (const char* op : {"AsStridedGrad",     // pieces with it are left to eager on CUDA
                         "LinearRecurrence",  // cumulative products are of ATen there
                         "CoupledProbabilities",
                         "FourierTransform",
                         "LookUp",
                         "NarrowCast",
                         "PowerDistances",
                         "RotaryEmbedding",
                         "TfIdfVectorizer",
                         "TreeEnsemble",
                         "ConvInteger",
                         "ConvIntegerToFloat",
                         "DynamicQuantizeLinear",
                         "ExpertMatMul",
                         "GroupedMatMul",  // of ATen on CUDA
                         "GroupedOuterProduct",
                         "MatMulInteger",
                         "MatMulIntegerToFloat",
                         "MatMulNBits",
                         "PackIntegerMatrix",
                         "PackIntegerConvWeights",
                         "PackWeights",
                         "PackedMatMul",
                         "PackedMatMulInteger",
                         "QuantizedAdd",
                         "QuantizedIntegerMul",
                         "QuantizedLSTMSteps",
                         "QuantizedMul",
                         "Requantize",
                         "WeightedGather",
                         "WidenedMatMul"})
    ops.erase(op);
  return {ops.begin(), ops.end()};
}

INSTANTIATE_TEST_SUITE_P(Ops, CudaKernel, ::testing::ValuesIn(cpu_ops()),
                         [](const auto& op) { return op.param; });

}  // namespace
}  // namespace ortmodule::testing
