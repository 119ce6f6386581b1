// Values that are not numbers for callers: texts, and the maps of a ZipMap.
#include "base/error.h"
#include "base/layout.h"
#include "importer/importer.h"
#include "onnx/onnx_types.h"
#include "ops/torch_call.h"

namespace ortmodule {

ImportedRef Importer::of_constant(const OnnxTensor& tensor) const {
  auto value = std::make_shared<Imported>();
  value->dtype = tensor.dtype;
  value->dims = Dims(tensor.dims.begin(), tensor.dims.end());
  value->constant = tensor;
  if (tensor.element_type != kOnnxString || !request_.texts) return value;
  ORTM_CHECK(static_cast<int64_t>(tensor.strings.size()) == element_count(tensor.dims),
             "[import] a tensor of texts must have one for each element, but found ",
             tensor.strings.size());
  std::string numbers;
  for (const std::string& text : tensor.strings) {
    const int64_t number = text_number(text);
    numbers.append(reinterpret_cast<const char*>(&number), sizeof(number));
  }
  value->dtype = DType::Int64;
  value->meaning = OnnxMeaning::Texts;
  value->texts = std::make_shared<const OnnxTensor>(tensor);
  value->constant = OnnxTensor{DType::Int64, tensor.dims, std::move(numbers)};
  return value;
}

int64_t Importer::text_number(const std::string& text) const {
  const std::optional<int64_t> number = request_.texts ? request_.texts->find(text) : std::nullopt;
  if (!number)
    throw Unsupported(str("it has the text '", text, "', which the model does not hold"));
  return *number;
}

bool check_meanings(const OnnxCall& call, const OnnxRow& row,
                    const std::vector<ImportedRef>& operands) {
  size_t found = 0, possible = 0;
  for (size_t i = 0; i < operands.size(); ++i) {
    if (!operands[i]) continue;
    const bool known = i < 32 ? (row.texts.operands >> i & 1u) != 0 : row.texts.operands == ~0u;
    possible += known ? 1 : 0;
    if (operands[i]->meaning == OnnxMeaning::Numbers) continue;
    if (operands[i]->meaning == OnnxMeaning::Maps)
      call.refuse(str("operand ", i, " must be a tensor, but is a list of maps"));
    if (!known)
      call.unsupported(str("operand ", i, " must be numbers, but is a tensor of strings"));
    ++found;
  }
  if (found > 0 && found < possible && !row.texts.mixed)
    call.refuse("all of its operands must be strings, but some are numbers");
  return found > 0;
}

void check_type(const OnnxType& type, const Imported& value) {
  OnnxMeaning declared = OnnxMeaning::Numbers;
  if (type.kind == OnnxType::Kind::Tensor && type.element_type == kOnnxString)
    declared = OnnxMeaning::Texts;
  if (type.kind == OnnxType::Kind::Sequence && type.element &&
      type.element->kind == OnnxType::Kind::Map)
    declared = OnnxMeaning::Maps;
  const bool unknown = type.kind == OnnxType::Kind::Unknown ||
                       (type.kind == OnnxType::Kind::Tensor && type.element_type == 0);
  if (value.meaning != declared && !unknown)
    throw Refused(
        "it must have the type that the file declares, but is another: strings, maps "
        "and numbers differ");
  const bool numbers = declared == OnnxMeaning::Numbers && type.kind == OnnxType::Kind::Tensor;
  const bool is_tensor = !value.sequence && !value.is_absent;
  const bool is_list = type.kind == OnnxType::Kind::Sequence && declared == OnnxMeaning::Numbers;
  if ((type.kind == OnnxType::Kind::Tensor && value.sequence) || (is_list && is_tensor))
    throw Refused(str("it must be what the file declares, a ", is_list ? "sequence" : "tensor",
                      ", but is a ", is_list ? "tensor" : "sequence"));
  if (numbers && is_tensor && type.dtype != DType::Undefined && value.dtype != type.dtype)
    throw Refused(str("it must have the type that the file declares, ",
                      onnx_type_name(type.element_type), ", but is ",
                      onnx_type_name(onnx_number(value.dtype))));
}

void check_declared(const OnnxValue& output, const Imported& value) {
  check_type(output.type, value);
  for (const auto& element : value.sequence ? *value.sequence : std::vector<ImportedRef>())
    if (element->meaning != OnnxMeaning::Numbers)
      throw Unsupported("a sequence must be of numbers, but is of strings");
}

}  // namespace ortmodule
