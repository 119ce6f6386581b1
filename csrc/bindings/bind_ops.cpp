// The op registry as Python values, for `python -m ortmodule_py.ops`.

#include <string>
#include <vector>

#include "bindings/casts/sizes.h"
#include "bindings/topics.h"
#include "kernels/kernel.h"
#include "ops/op_def.h"

namespace ortmodule::bindings {
namespace py = pybind11;
namespace {

const char* gradient_of(const OpDef& op) {
  if (op.grad) return "rule";
  if (!op.body.empty()) return "body";
  return op.domain.empty() ? "none" : "";
}

const char* onnx_form_of(const OpDef& op) {
  if (op.onnx.write) return op.domain.empty() ? "standard" : "standard parts";
  if (!op.body.empty()) return "standard parts";
  return op.domain.empty() ? "standard" : "own domain";
}

/// Whether a pointwise group supports the op for one of these operand types.
bool runs_in_group(const OpDef& op, Device device) {
  if (op.kind != OpKind::Pointwise || op.outputs.size() != 1) return false;
  for (DType in : {DType::Float32, DType::Bool, DType::Int64})
    for (DType out : {in, DType::Bool, DType::Float32}) {
      StepFacts facts;
      NodeFacts& node = facts.nodes.emplace_back();
      node.op = op.name;
      node.attrs = op.attrs;
      for (size_t i = 0; i < op.inputs.size(); ++i) {
        node.inputs.push_back({OperandRef::Kind::Input, static_cast<int>(i), 0.0});
        node.input_dtypes.push_back(in);
        facts.inputs.push_back({in, {}});
      }
      node.outputs.push_back(0);
      node.output_dtypes.push_back(out);
      node.output_sizes.emplace_back();
      facts.outputs.push_back({out, {}});
      if (select_kernel("PointwiseGroup", device, facts, nullptr)) return true;
    }
  return false;
}

py::list kernels_of_op(const OpDef& op) {
  py::list result;
  const auto add = [&](const KernelDef& kernel) {
    py::dict item;
    item["name"] = std::string(kernel.name);
    item["device"] = kernel.device == Device::CPU ? "cpu" : "cuda";
    std::vector<std::string> dtypes;
    for (DType dtype : {DType::Float32, DType::Float64, DType::Float16, DType::BFloat16,
                        DType::Int64, DType::Int32, DType::Bool})
      if (kernel.dtypes.contains(dtype)) dtypes.emplace_back(name_of(dtype));
    item["dtypes"] = dtypes;
    result.append(item);
  };
  for (const KernelDef* kernel : kernels_of(op.name)) add(*kernel);
  for (Device device : {Device::CPU, Device::CUDA})
    if (runs_in_group(op, device))
      for (const KernelDef* kernel : kernels_of("PointwiseGroup"))
        if (kernel->device == device) {
          add(*kernel);
          break;  // one per instruction set
        }
  return result;
}

const char* kind_of(OpKind kind) {
  switch (kind) {
    case OpKind::View: return "view";
    case OpKind::Pointwise: return "pointwise";
    case OpKind::Reduction: return "reduction";
    case OpKind::Norm: return "norm";
    case OpKind::MatMul: return "matmul";
    case OpKind::Data: return "data";
    case OpKind::Opaque: return "opaque";
  }
  return "?";
}

py::list list_ops() {
  py::list result;
  for (const OpDef* op : all_ops()) {
    py::dict item;
    item["name"] = std::string(op->name);
    item["domain"] = std::string(op->domain);
    item["kind"] = kind_of(op->kind);
    const std::string_view file = file_of(*op);
    const size_t from = file.rfind("csrc/");
    item["file"] = std::string(from == std::string_view::npos ? file : file.substr(from));
    item["gradient"] = gradient_of(*op);
    item["body"] = has_body(*op);
    item["onnx"] = onnx_form_of(*op);
    item["kernels"] = kernels_of_op(*op);
    std::vector<std::string> targets;
    for (const TorchRow& row : op->from_torch) targets.emplace_back(row.target);
    item["torch"] = targets;
    result.append(item);
  }
  return result;
}

}  // namespace

void init_ops(py::module_& m) {
  m.def("ops", &list_ops, "Every op with its file, gradient, kernels and ONNX form.");
  m.def(
      "torch_targets",
      [] {
        std::vector<std::string> targets;
        for (std::string_view target : all_torch_targets()) targets.emplace_back(target);
        return targets;
      },
      "ATen overloads with a conversion of their own.");
}

}  // namespace ortmodule::bindings
