// Runs the optimizers' kernels on lists of torch tensors, bucketed by device and type.
#include <ATen/OpMathType.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <torch/csrc/utils/pybind.h>

#include <optional>
#include <tuple>
#include <vector>

#include "bindings/casts/sizes.h"
#include "bindings/device_runtime.h"
#include "bindings/engine.h"
#include "bindings/topics.h"
#include "kernels/adam.h"

namespace ortmodule::bindings {
namespace py = pybind11;
namespace {

using Tensors = std::vector<at::Tensor>;

/// Tensors with the same device and types, for one run of a kernel.
struct Bucket {
  at::Device device;
  std::vector<at::ScalarType> types;
  std::vector<size_t> members;
};

/// Buckets by the device of the first list and the types of all lists; nearly always one.
std::vector<Bucket> buckets_of(const std::vector<const Tensors*>& lists) {
  std::vector<Bucket> buckets;
  for (size_t i = 0; i < lists[0]->size(); ++i) {
    const at::Device device = (*lists[0])[i].device();
    const auto belongs = [&](const Bucket& bucket) {
      if (bucket.device != device) return false;
      for (size_t k = 0; k < lists.size(); ++k)
        if (bucket.types[k] != (*lists[k])[i].scalar_type()) return false;
      return true;
    };
    auto found = std::find_if(buckets.begin(), buckets.end(), belongs);
    if (found == buckets.end()) {
      Bucket& bucket = buckets.emplace_back(Bucket{device, {}, {}});
      for (const Tensors* list : lists) bucket.types.push_back((*list)[i].scalar_type());
      found = buckets.end() - 1;
    }
    found->members.push_back(i);
  }
  return buckets;
}

bool dense_alike(const at::Tensor& tensor, const at::Tensor& like) {
  if (tensor.is_contiguous() && like.is_contiguous()) return true;
  return like.is_non_overlapping_and_dense() && tensor.strides() == like.strides();
}

/// Whether the memory does not hold the tensor's values: the conjugate or negative bit is set, or
/// it is a zero tensor without memory.
bool is_lazy(const at::Tensor& tensor) {
  return tensor.is_conj() || tensor.is_neg() || tensor._is_zerotensor();
}

/// The operands of a bucket as kernel views; complex tensors become real vectors. Tensors in
/// another element order than the parameter, or whose memory does not hold their values, are
/// replaced by copies.
class Operands {
 public:
  explicit Operands(size_t tensors) { counts_.reserve(tensors + 1); }

  /// The elements of `tensor` in the order of `like`, which is dense. If `written`, results are
  /// copied back.
  void add(std::vector<TensorView>& views, const at::Tensor& tensor, const at::Tensor& like,
           bool written) {
    at::Tensor operand = tensor;
    if (is_lazy(tensor) || !dense_alike(tensor, like)) {
      operand = at::empty_strided(like.sizes(), like.strides(), tensor.options());
      operand.copy_(tensor);
      if (written) copied_.emplace_back(tensor, operand);
    } else if (written) {
      operand.unsafeGetTensorImpl()->bump_version();
    }
    views.push_back(
        {written ? operand.mutable_data_ptr() : const_cast<void*>(operand.const_data_ptr()),
         to_dtype(c10::toRealValueType(operand.scalar_type())), 1, &counts_.back(), &kStride});
    kept_.push_back(std::move(operand));
  }
  /// Starts the operands of the next tensor, whose elements are in the order of `like`.
  void begin_tensor(const at::Tensor& like) {
    counts_.push_back(like.numel() * (like.is_complex() ? 2 : 1));
  }

  void write_back() {
    for (auto& [tensor, copy] : copied_) tensor.copy_(copy);
  }

 private:
  static constexpr int64_t kStride = 1;
  std::vector<int64_t> counts_;
  std::vector<std::pair<at::Tensor, at::Tensor>> copied_;
  Tensors kept_;  // the views point into them
};

/// Runs the kernel of `op` for a bucket on its device.
void run_on(const Bucket& bucket, std::string_view op, Attrs attrs,
            const std::vector<TensorView>& in, const std::vector<TensorView>& out,
            bool emulate_cuda) {
  StepFacts facts;
  NodeFacts& node = facts.nodes.emplace_back();
  node.op = op;
  node.attrs = std::move(attrs);
  node.attrs.set("tensors", DimExpr(static_cast<int64_t>(bucket.members.size())));
  facts.inputs.push_back({in.front().dtype, {}});
  DeviceRuntime& runtime = device_runtime(bucket.device, emulate_cuda);
  std::string why;
  const KernelDef* kernel = select_kernel(op, runtime.kernels(), facts, &why);
  ORTM_CHECK(kernel, "[", op, "] there must be a kernel for tensors on ", bucket.device.str(),
             ", but found ", why);
  const DeviceScope scope(runtime);
  KernelContext context;
  runtime.fill(context);
  const size_t bytes = kernel->workspace_bytes ? kernel->workspace_bytes(facts) : 0;
  Buffer workspace;
  if (bytes > 0) workspace = runtime.allocator().allocate(static_cast<int64_t>(bytes));
  kernel->run({facts, in, out, workspace.data(), nullptr, context});
}

/// A single float32 on `device`, or nothing.
TensorView single(const std::optional<at::Tensor>& tensor, at::Device device, Tensors& kept) {
  if (!tensor) return {};
  // The CPU reads it at once, so the copy must be synchronous.
  kept.push_back(tensor->to(device, at::kFloat, /*non_blocking=*/device.is_cuda()));
  return {kept.back().mutable_data_ptr(), DType::Float32, 0, nullptr, nullptr};
}

void check_gradient(std::string_view where, const at::Tensor& grad, at::ScalarType type,
                    const at::Tensor& like) {
  ORTM_CHECK(!grad.unsafeGetTensorImpl()->key_set().has(c10::DispatchKey::Python) &&
                 !like.unsafeGetTensorImpl()->key_set().has(c10::DispatchKey::Python),
             "[", where,
             "] parameters and gradients must be plain tensors, but found a subclass (a DTensor "
             "of FSDP2, for example); use torch.optim.AdamW(..., fused=True) for it");
  ORTM_CHECK(like.is_cpu() || like.is_cuda(), "[", where,
             "] parameters must be on the CPU or on CUDA devices, but found one on ",
             like.device());
  ORTM_CHECK(grad.layout() == at::kStrided, "[", where,
             "] gradients must be dense, but found one of layout ", grad.layout(),
             " for a parameter of sizes ", like.sizes(),
             "; use torch.optim.SparseAdam for it, or an Embedding with sparse=False");
  ORTM_CHECK(
      type == like.scalar_type() && grad.device() == like.device() && grad.sizes() == like.sizes(),
      "[", where, "] a gradient must have the type, device and sizes ", like.scalar_type(), ", ",
      like.device(), ", ", like.sizes(), " of its parameter, but found ", type, ", ", grad.device(),
      ", ", grad.sizes());
}

void check_state(const at::Tensor& param, const at::Tensor& exp_avg, const at::Tensor& exp_avg_sq,
                 const at::Tensor& step) {
  const at::ScalarType type = exp_avg.scalar_type(), wide = at::toOpMathType(param.scalar_type());
  for (const at::Tensor* moment : {&exp_avg, &exp_avg_sq})
    ORTM_CHECK(moment->device() == param.device() && moment->sizes() == param.sizes() &&
                   moment->scalar_type() == type && (type == wide || type == param.scalar_type()),
               "[FusedAdam] moments must have the device and sizes ", param.device(), ", ",
               param.sizes(), " of their parameter and its type or ", wide, ", but found ",
               moment->scalar_type(), ", ", moment->device(), ", ", moment->sizes(),
               "; move the model before the optimizer is made or its state is loaded");
  ORTM_CHECK(
      step.scalar_type() == at::kFloat && step.numel() == 1 && step.device() == param.device(),
      "[FusedAdam] a step count must be one Float on ", param.device(), ", but found ",
      step.toString(), " of ", step.sizes(), " on ", step.device());
}

void fused_adam(const Tensors& params, const Tensors& grads, const Tensors& exp_avgs,
                const Tensors& exp_avg_sqs, const Tensors& steps, int64_t mode,
                bool bias_correction, double lr, const std::optional<at::Tensor>& lr_tensor,
                double beta1, double beta2, double epsilon, double weight_decay,
                const std::optional<at::Tensor>& grad_scale,
                const std::optional<at::Tensor>& found_inf, bool emulate_cuda) {
  const size_t n = params.size();
  ORTM_ASSERT(
      grads.size() == n && exp_avgs.size() == n && exp_avg_sqs.size() == n && steps.size() == n,
      "lists of different lengths");
  for (size_t i = 0; i < n; ++i) {
    check_gradient("FusedAdam", grads[i], grads[i].scalar_type(), params[i]);
    check_state(params[i], exp_avgs[i], exp_avg_sqs[i], steps[i]);
  }
  for (const Bucket& bucket : buckets_of({&params, &exp_avgs, &exp_avg_sqs})) {
    Operands operands(bucket.members.size());
    std::vector<TensorView> in;
    in.reserve(5 * bucket.members.size() + 3);
    for (size_t i : bucket.members) {
      const at::Tensor& exp_avg = exp_avgs[i];
      const at::Tensor like = exp_avg.is_non_overlapping_and_dense()
                                  ? exp_avg
                                  : at::empty(exp_avg.sizes(), exp_avg.options());
      operands.begin_tensor(like);
      operands.add(in, params[i], like, true);
      // A zero tensor without memory cannot be written, and unscaling would not change it.
      operands.add(in, grads[i], like, grad_scale.has_value() && !grads[i]._is_zerotensor());
      operands.add(in, exp_avg, like, true);
      operands.add(in, exp_avg_sqs[i], like, true);
      operands.add(in, steps[i], steps[i], true);
    }
    Tensors kept;
    in.push_back(single(lr_tensor, bucket.device, kept));
    in.push_back(single(grad_scale, bucket.device, kept));
    in.push_back(single(found_inf, bucket.device, kept));
    run_on(bucket, "FusedAdam",
           {{"mode", DimExpr(mode)},
            {"bias_correction", DimExpr(int64_t{bias_correction})},
            {"lr", lr},
            {"beta1", beta1},
            {"beta2", beta2},
            {"epsilon", epsilon},
            {"weight_decay", weight_decay}},
           in, {}, emulate_cuda);
    operands.write_back();
  }
}

void unscale_gradients(const Tensors& grads, const Tensors& master_grads, double factor,
                       const at::Tensor& found_inf, bool emulate_cuda) {
  ORTM_ASSERT(grads.size() == master_grads.size(), "lists of different lengths");
  for (size_t i = 0; i < grads.size(); ++i)
    check_gradient("FP16_Optimizer", grads[i], at::toOpMathType(grads[i].scalar_type()),
                   master_grads[i]);
  for (const Bucket& bucket : buckets_of({&grads})) {
    Operands operands(bucket.members.size());
    std::vector<TensorView> in, out;
    for (size_t i : bucket.members) {
      operands.begin_tensor(grads[i]);
      operands.add(in, grads[i], master_grads[i], false);
      operands.add(out, master_grads[i], master_grads[i], true);
    }
    at::Tensor found =
        found_inf.device() == bucket.device ? found_inf : found_inf.to(bucket.device);
    out.push_back({found.mutable_data_ptr(), DType::Float32, 0, nullptr, nullptr});
    run_on(bucket, "UnscaleGradients", {{"factor", factor}}, in, out, emulate_cuda);
    operands.write_back();
    if (!found.is_same(found_inf)) found_inf.copy_(found);
  }
}

}  // namespace

void init_optim(py::module_& m) {
  m.def("fused_adam", &fused_adam, py::call_guard<py::gil_scoped_release>(),
        "One step of Adam over lists of tensors; raises their step counts.");
  m.def("unscale_gradients", &unscale_gradients, py::call_guard<py::gil_scoped_release>(),
        "master_grads = factor * grads; found_inf becomes 1 if one of them is not finite.");
}

}  // namespace ortmodule::bindings
