#include "inference/check_feeds.h"

#include <string_view>

#include "base/error.h"
#include "onnx/onnx_types.h"

namespace ortmodule {

std::string sizes_text(const Sizes& sizes) {
  std::string text = "[";
  for (size_t i = 0; i < sizes.size(); ++i) text += str(i ? "," : "", sizes[i]);
  return text + "]";
}

namespace {

std::string_view kind_of(const HostFeed& feed) {
  return feed.is_map ? "a dict" : feed.is_sequence ? "a list" : "a tensor";
}

void check_tensor(const OnnxValue& input, const HostTensorView& tensor) {
  const OnnxType* type = &input.type;
  while (type->element) type = type->element.get();
  const int number = tensor.texts ? kOnnxString : onnx_number(tensor.dtype);
  ORTM_CHECK(type->element_type == 0 ? !tensor.texts : number == type->element_type,
             "[run] input '", input.name, "' must have type ", onnx_type_name(type->element_type),
             ", but found ", onnx_type_name(number));
  if (!input.type.dims) return;
  const std::vector<OnnxDim>& dims = *input.type.dims;
  if (dims.empty()) return;  // as in onnxruntime: files write no sizes where they know none
  ORTM_CHECK(tensor.sizes.size() == dims.size(), "[run] input '", input.name, "' must have rank ",
             dims.size(), ", but found sizes ", sizes_text(tensor.sizes));
  for (size_t d = 0; d < dims.size(); ++d)
    if (const auto* fixed = std::get_if<int64_t>(&dims[d]); fixed && *fixed >= 0)
      ORTM_CHECK(tensor.sizes[d] == *fixed, "[run] input '", input.name, "' must have size ",
                 *fixed, " in dimension ", d, ", but found sizes ", sizes_text(tensor.sizes));
}

void check_map(const OnnxValue& input, const HostFeed& feed) {
  ORTM_CHECK(feed.is_map && feed.tensors.size() == 2, "[run] input '", input.name,
             "' must be a dict, but found ", kind_of(feed));
  const HostTensorView &keys = feed.tensors[0], &values = feed.tensors[1];
  ORTM_CHECK(keys.dtype == DType::Int64 && keys.sizes.size() == 1 && keys.sizes == values.sizes,
             "[run] input '", input.name,
             "' must be a dict of numbers by str or int, with one or more of them");
  check_tensor(input, values);
}

void check_feed(const OnnxValue& input, const HostFeed& feed) {
  const OnnxType* type = &input.type;
  if (type->kind == OnnxType::Kind::Optional && type->element) {
    if (feed.tensors.empty() && !feed.is_sequence) return;
    type = type->element.get();
  }
  if (type->kind == OnnxType::Kind::Map) return check_map(input, feed);
  const bool sequence = type->kind == OnnxType::Kind::Sequence;
  ORTM_CHECK(
      sequence || type->kind == OnnxType::Kind::Tensor || type->kind == OnnxType::Kind::Unknown,
      "[run] input '", input.name,
      "' must be a tensor, a sequence of tensors or a map: others cannot be fed");
  ORTM_CHECK(feed.is_sequence == sequence && !feed.is_map && (sequence || feed.tensors.size() == 1),
             "[run] input '", input.name, "' must be ", sequence ? "a list" : "a tensor",
             ", but found ", feed.tensors.empty() ? "none" : kind_of(feed));
  for (const HostTensorView& tensor : feed.tensors) {
    ORTM_CHECK(!sequence || !tensor.texts, "[run] input '", input.name,
               "' must be a list of numbers, but found strings");
    check_tensor(input, tensor);
  }
}

}  // namespace

void check_feeds(const std::vector<const OnnxValue*>& inputs,
                 const std::vector<const OnnxValue*>& overridable,
                 const std::vector<HostFeed>& feeds) {
  const size_t called = inputs.size();
  ORTM_CHECK(feeds.size() >= called && feeds.size() <= called + overridable.size(),
             "[run] there must be ", called, " inputs, but found ", feeds.size());
  for (size_t i = 0; i < feeds.size(); ++i) {
    if (i >= called && feeds[i].tensors.empty() && !feeds[i].is_sequence) continue;
    check_feed(i < called ? *inputs[i] : *overridable[i - called], feeds[i]);
  }
}

}  // namespace ortmodule
