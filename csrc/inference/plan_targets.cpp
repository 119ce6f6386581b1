#include "inference/plan_targets.h"

#include <string>
#include <utility>

#include "base/error.h"
#include "inference/check_feeds.h"
#include "inference/copy_elements.h"
#include "onnx/onnx_types.h"
#include "runtime/run_device.h"

namespace ortmodule {

HostTargets plan_targets(const Plan& plan, const std::vector<ValueForm>& forms,
                         const std::vector<OnnxValue>& outputs, int device,
                         const HostTargets& targets) {
  if (targets.empty()) return {};
  ORTM_CHECK(targets.size() == outputs.size(), "[run] there must be ", outputs.size(),
             " targets, but found ", targets.size());
  HostTargets planned(plan.output_tensors.size());
  std::vector<std::pair<ByteRange, size_t>> ranges;
  for (size_t i = 0; i < targets.size(); ++i) {
    if (!targets[i]) continue;
    const HostTarget& target = *targets[i];
    ORTM_CHECK(target.device == kOnHost || target.device == device, "[run] output '",
               outputs[i].name, "' must be bound to memory of the host or of the session's ",
               "device, but found it on device ", target.device);
    const ValueForm& form = forms.at(i);
    const std::string& name = outputs[i].name;
    ORTM_CHECK(form.kind == ValueForm::Kind::Tensor, "[run] output '", name,
               "' must be a tensor to be bound to memory: bind it without a buffer");
    if (target.device != kOnHost && !target.data) {
      planned.at(form.first) = target;
      continue;
    }
    const PlannedTensor& tensor = plan.tensors[plan.output_tensors.at(form.first)];
    ORTM_CHECK(target.dtype == tensor.dtype && target.sizes == tensor.layout.sizes,
               "[run] the memory bound to output '", name, "' must have type ",
               onnx_type_name(onnx_number(tensor.dtype)), " and sizes ",
               sizes_text(tensor.layout.sizes), ", but found ",
               onnx_type_name(onnx_number(target.dtype)), " ", sizes_text(target.sizes));
    ORTM_CHECK(!has_shared_elements(target.sizes, target.strides), "[run] the memory bound to '",
               name, "' must have a place for each element, but found overlapping strides");
    const ByteRange range =
        byte_range(target.data, target.sizes, target.strides, size_of(target.dtype));
    for (const auto& [other, k] : ranges)
      ORTM_CHECK(!range.overlaps(other), "[run] outputs must be bound to memory of their own, but ",
                 "found '", outputs[k].name, "' and '", name, "' in the same");
    ranges.emplace_back(range, i);
    planned.at(form.first) = target;
  }
  return planned;
}

namespace {

// An output that is to stay on the device: its size was not known there, so it is on the host.
bool is_left_open(const HostTarget& target) { return target.device != kOnHost && !target.data; }

}  // namespace

int64_t copy_to_targets(std::vector<HostResult>& results, const HostTargets& targets,
                        const std::vector<OnnxValue>& outputs) {
  ORTM_CHECK(targets.size() == results.size(), "[run] there must be ", results.size(),
             " targets, but found ", targets.size());
  for (size_t i = 0; i < targets.size(); ++i) {
    if (!targets[i] || is_left_open(*targets[i])) continue;
    const HostResult& result = results[i];
    const bool is_tensor = !result.is_sequence && result.tensors.size() == 1;
    ORTM_CHECK(is_tensor && targets[i]->dtype == result.tensors[0].dtype &&
                   targets[i]->sizes == result.tensors[0].sizes,
               "[run] the memory bound to output '", outputs[i].name, "' must have its type ",
               is_tensor ? onnx_type_name(onnx_number(result.tensors[0].dtype)) : "sequence",
               " and the sizes that data gave it");
  }
  int64_t copied_bytes = 0;
  for (size_t i = 0; i < targets.size(); ++i) {
    if (!targets[i] || is_left_open(*targets[i])) continue;
    HostTensor& tensor = results[i].tensors[0];
    if (targets[i]->device != kOnHost) {
      run_device(targets[i]->device)
          .upload(targets[i]->data, tensor.memory.data(), tensor.byte_count());
      copied_bytes += tensor.byte_count();
      tensor.memory = Buffer();
      continue;
    }
    copy_elements(tensor.sizes, size_of(tensor.dtype), tensor.memory.data(), {}, targets[i]->data,
                  targets[i]->strides);
    copied_bytes += tensor.byte_count();
    tensor.memory = Buffer();
  }
  return copied_bytes;
}

}  // namespace ortmodule
