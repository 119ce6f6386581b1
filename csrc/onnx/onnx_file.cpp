#include "onnx/onnx_file.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>

#include "base/error.h"
#include "base/version.h"
#include "onnx/onnx_fingerprint.h"
#include "onnx/onnx_types.h"
#include "ortmodule_onnx.pb.h"

namespace ortmodule {
namespace {

constexpr int kIrVersion = 11;         // the IR version of opset 23
constexpr size_t kAlignment = 4096;    // of external data: readers map the file into memory
constexpr size_t kSmallTensor = 1024;  // bytes; smaller ones stay in the model
constexpr size_t kMessageLimit = size_t{1} << 31;  // protobuf's

[[noreturn]] void fail(const std::string& path, const std::string& message) {
  throw Error(str("[onnx] ", path, ": ", message));
}

std::string fingerprint(const onnx::GraphProto& graph) {
  OnnxFingerprint hash;
  for (const auto& node : graph.node()) hash.add(node.SerializeAsString());
  for (const auto& input : graph.input()) hash.add(input.SerializeAsString());
  for (const auto& output : graph.output()) hash.add(output.SerializeAsString());
  return hash.text();
}

template <class Entries>
void write_metadata(const OnnxMetadata& metadata, Entries* entries) {
  for (const auto& [key, value] : metadata) {
    auto* entry = entries->Add();
    entry->set_key(key);
    entry->set_value(value);
  }
}

int element_number(DType dtype, int element_type) {
  return dtype == DType::Undefined ? element_type : onnx_number(dtype);
}

void write_graph(const OnnxGraph& graph, onnx::GraphProto* to);

// Everything but the elements.
void write_tensor_type(const OnnxTensor& tensor, onnx::TensorProto* to) {
  to->set_data_type(element_number(tensor.dtype, tensor.element_type));
  for (int64_t dim : tensor.dims) to->add_dims(dim);
}

void write_tensor(const OnnxTensor& tensor, onnx::TensorProto* to) {
  write_tensor_type(tensor, to);
  if (to->data_type() == onnx::TensorProto::STRING)
    for (const std::string& text : tensor.strings) to->add_string_data(text);
  else
    to->set_raw_data(tensor.bytes.data(), tensor.bytes.size());
}

void write_dims(const std::vector<OnnxDim>& dims, onnx::TensorShapeProto* shape) {
  for (const OnnxDim& dim : dims) {
    auto* to = shape->add_dim();
    if (const auto* size = std::get_if<int64_t>(&dim)) to->set_dim_value(*size);
    if (const auto* name = std::get_if<std::string>(&dim)) to->set_dim_param(*name);
  }
}

template <class TensorType>
void write_tensor_type(const OnnxType& type, TensorType* to) {
  to->set_elem_type(element_number(type.dtype, type.element_type));
  if (type.dims) write_dims(*type.dims, to->mutable_shape());
}

void write_type(const OnnxType& type, onnx::TypeProto* to) {
  onnx::TypeProto* element = nullptr;
  switch (type.kind) {
    case OnnxType::Kind::Unknown: return;
    case OnnxType::Kind::Tensor: return write_tensor_type(type, to->mutable_tensor_type());
    case OnnxType::Kind::SparseTensor:
      return write_tensor_type(type, to->mutable_sparse_tensor_type());
    case OnnxType::Kind::Sequence:
      element = to->mutable_sequence_type()->mutable_elem_type();
      break;
    case OnnxType::Kind::Optional:
      element = to->mutable_optional_type()->mutable_elem_type();
      break;
    case OnnxType::Kind::Map:
      to->mutable_map_type()->set_key_type(element_number(type.dtype, type.element_type));
      element = to->mutable_map_type()->mutable_value_type();
      break;
  }
  if (type.element) write_type(*type.element, element);
}

struct AttrWriter {
  onnx::AttributeProto& to;

  void operator()(int64_t value) const {
    to.set_type(onnx::AttributeProto::INT);
    to.set_i(value);
  }
  void operator()(DType value) const { (*this)(static_cast<int64_t>(onnx_number(value))); }
  void operator()(double value) const {
    to.set_type(onnx::AttributeProto::FLOAT);
    to.set_f(static_cast<float>(value));
  }
  void operator()(const std::string& value) const {
    to.set_type(onnx::AttributeProto::STRING);
    to.set_s(value);
  }
  void operator()(const std::vector<int64_t>& values) const {
    to.set_type(onnx::AttributeProto::INTS);
    for (int64_t value : values) to.add_ints(value);
  }
  void operator()(const std::vector<double>& values) const {
    to.set_type(onnx::AttributeProto::FLOATS);
    for (double value : values) to.add_floats(static_cast<float>(value));
  }
  void operator()(const std::vector<std::string>& values) const {
    to.set_type(onnx::AttributeProto::STRINGS);
    for (const std::string& value : values) to.add_strings(value);
  }
  void operator()(const OnnxTensor& value) const {
    to.set_type(onnx::AttributeProto::TENSOR);
    write_tensor(value, to.mutable_t());
  }
  void operator()(const std::vector<OnnxTensor>& values) const {
    to.set_type(onnx::AttributeProto::TENSORS);
    for (const OnnxTensor& value : values) write_tensor(value, to.add_tensors());
  }
  void operator()(const std::shared_ptr<const OnnxGraph>& value) const {
    to.set_type(onnx::AttributeProto::GRAPH);
    write_graph(*value, to.mutable_g());
  }
  void operator()(const std::vector<std::shared_ptr<const OnnxGraph>>& values) const {
    to.set_type(onnx::AttributeProto::GRAPHS);
    for (const auto& value : values) write_graph(*value, to.add_graphs());
  }
  void operator()(const OnnxType& value) const {
    to.set_type(onnx::AttributeProto::TYPE_PROTO);
    write_type(value, to.mutable_tp());
  }
  void operator()(const std::vector<OnnxType>& values) const {
    to.set_type(onnx::AttributeProto::TYPE_PROTOS);
    for (const OnnxType& value : values) write_type(value, to.add_type_protos());
  }
  void operator()(const OnnxAttrReference& value) const {
    to.set_type(static_cast<onnx::AttributeProto::AttributeType>(value.type));
    to.set_ref_attr_name(value.name);
  }
};

void write_attr(const std::pair<std::string, OnnxAttr>& attr, onnx::AttributeProto* to) {
  to->set_name(attr.first);
  std::visit(AttrWriter{*to}, attr.second);
}

void write_node(const OnnxNode& node, onnx::NodeProto* to) {
  to->set_op_type(node.op);
  to->set_name(node.name);
  if (!node.domain.empty()) to->set_domain(node.domain);
  if (!node.overload.empty()) to->set_overload(node.overload);
  for (const std::string& input : node.inputs) to->add_input(input);
  for (const std::string& output : node.outputs) to->add_output(output);
  for (const auto& attr : node.attrs) write_attr(attr, to->add_attribute());
  write_metadata(node.metadata, to->mutable_metadata_props());
}

void write_value(const OnnxValue& value, onnx::ValueInfoProto* to) {
  to->set_name(value.name);
  if (value.type.kind != OnnxType::Kind::Unknown) write_type(value.type, to->mutable_type());
}

// Everything but the initializers.
void write_graph_body(const OnnxGraph& graph, onnx::GraphProto* to) {
  to->set_name(graph.name.empty() ? "graph" : graph.name);
  for (const OnnxNode& node : graph.nodes) write_node(node, to->add_node());
  for (const OnnxValue& value : graph.inputs) write_value(value, to->add_input());
  for (const OnnxValue& value : graph.outputs) write_value(value, to->add_output());
  for (const OnnxValue& value : graph.values) write_value(value, to->add_value_info());
}

void write_graph(const OnnxGraph& graph, onnx::GraphProto* to) {
  write_graph_body(graph, to);
  for (const OnnxInitializer& initializer : graph.initializers) {
    auto* tensor = to->add_initializer();
    tensor->set_name(initializer.name);
    write_tensor(initializer.tensor, tensor);
  }
}

template <class Opsets>
void write_opsets(const std::vector<OnnxOpset>& opsets, Opsets* to) {
  for (const OnnxOpset& opset : opsets) {
    auto* added = to->Add();
    added->set_domain(opset.domain);
    added->set_version(opset.version);
  }
}

void write_function(const OnnxFunction& function, onnx::FunctionProto* to) {
  to->set_name(function.name);
  to->set_domain(function.domain);
  if (!function.overload.empty()) to->set_overload(function.overload);
  for (const std::string& input : function.inputs) to->add_input(input);
  for (const std::string& output : function.outputs) to->add_output(output);
  for (const std::string& attr : function.attrs) to->add_attribute(attr);
  for (const auto& attr : function.defaults) write_attr(attr, to->add_attribute_proto());
  for (const OnnxNode& node : function.nodes) write_node(node, to->add_node());
  write_opsets(function.opsets, to->mutable_opset_import());
}

// A temporary file that replaces `path` once complete, and is removed otherwise.
class ReplacingFile {
 public:
  explicit ReplacingFile(const std::string& path)
      : path_(path),
        temporary_(str(path, ".", getpid(), ".tmp")),
        out_(temporary_, std::ios::binary | std::ios::trunc) {
    if (!out_) fail(path_, str("cannot be written: ", std::strerror(errno)));
  }
  ~ReplacingFile() {
    std::error_code ignored;
    if (!done_) std::filesystem::remove(temporary_, ignored);
  }
  ReplacingFile(const ReplacingFile&) = delete;
  ReplacingFile& operator=(const ReplacingFile&) = delete;

  std::ostream& stream() { return out_; }
  void finish() {
    out_.close();
    if (!out_) fail(path_, "cannot be written completely");
  }
  void replace() {
    std::error_code error;
    std::filesystem::rename(temporary_, path_, error);
    if (error) fail(path_, str("cannot be replaced: ", error.message()));
    done_ = true;
  }

 private:
  std::string path_;
  std::string temporary_;
  std::ofstream out_;
  bool done_ = false;
};

void add_entry(onnx::TensorProto* tensor, const char* key, const std::string& value) {
  auto* entry = tensor->add_external_data();
  entry->set_key(key);
  entry->set_value(value);
}

// Appends the data of one initializer and records its location in the model.
void write_external(const SharedBytes& bytes, const std::string& location, std::ostream& out,
                    onnx::TensorProto* to) {
  auto offset = static_cast<size_t>(out.tellp());
  const size_t gap = (kAlignment - offset % kAlignment) % kAlignment;
  out << std::string(gap, '\0');
  offset += gap;
  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  to->set_data_location(onnx::TensorProto::EXTERNAL);
  add_entry(to, "location", location);
  add_entry(to, "offset", std::to_string(offset));
  add_entry(to, "length", std::to_string(bytes.size()));
}

void write_initializers(const OnnxModel& model, const std::string& path, std::ostream* external,
                        onnx::GraphProto* to) {
  const std::string location = std::filesystem::path(path).filename().string() + ".data";
  for (const auto& [name, from] : model.graph.initializers) {
    auto* tensor = to->add_initializer();
    tensor->set_name(name);
    if (external && from.bytes.size() >= kSmallTensor) {
      write_tensor_type(from, tensor);
      write_external(from.bytes, location, *external, tensor);
    } else {
      write_tensor(from, tensor);
    }
  }
}

onnx::ModelProto to_proto(const OnnxModel& model) {
  onnx::ModelProto proto;
  proto.set_ir_version(kIrVersion);
  proto.set_producer_name("ortmodule_py");
  proto.set_producer_version(std::string(version()));
  static const std::vector<OnnxOpset> ours = {
      {"", kOnnxOpset}, {"com.microsoft", 1}, {"org.pytorch.aten", 1}};
  write_opsets(model.opsets.empty() ? ours : model.opsets, proto.mutable_opset_import());
  auto* graph = proto.mutable_graph();
  write_graph_body(model.graph, graph);
  for (const OnnxFunction& function : model.functions)
    write_function(function, proto.add_functions());
  OnnxMetadata metadata = model.metadata;
  metadata.emplace_back(OnnxFingerprint::kKey, fingerprint(*graph));
  write_metadata(metadata, proto.mutable_metadata_props());
  return proto;
}

}  // namespace

void write_onnx_file(const OnnxModel& model, const std::string& path, size_t external_threshold) {
  size_t total = 0;
  for (const OnnxInitializer& initializer : model.graph.initializers)
    total += initializer.tensor.bytes.size();
  onnx::ModelProto proto = to_proto(model);
  std::optional<ReplacingFile> data;
  if (total > external_threshold) data.emplace(path + ".data");
  write_initializers(model, path, data ? &data->stream() : nullptr, proto.mutable_graph());
  if (data) data->finish();
  if (proto.ByteSizeLong() >= kMessageLimit)
    fail(path, str("must have less than 2 GiB without external data, but found ",
                   proto.ByteSizeLong(), " bytes"));
  ReplacingFile file(path);
  if (!proto.SerializeToOstream(&file.stream())) fail(path, "cannot be serialized");
  file.finish();
  // Only a crash between these two leaves the old model with new data.
  if (data) data->replace();
  file.replace();
}

}  // namespace ortmodule
