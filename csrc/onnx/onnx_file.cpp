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
#include "onnx/onnx_element.h"
#include "ortmodule_onnx.pb.h"

namespace ortmodule {
namespace {

constexpr int kIrVersion = 11;  // the IR version of opset 23
constexpr std::string_view kFingerprint = "ortmodule.fingerprint";
constexpr size_t kAlignment = 4096;    // of external data: readers map the file into memory
constexpr size_t kSmallTensor = 1024;  // bytes; smaller ones stay in the model
constexpr size_t kMessageLimit = size_t{1} << 31;  // protobuf's

[[noreturn]] void fail(const std::string& path, const std::string& message) {
  throw Error(str("[onnx] ", path, " ", message));
}

// FNV-1a hash of nodes, inputs and outputs, to detect edits of the graph.
std::string fingerprint(const onnx::GraphProto& graph) {
  uint64_t hash = 0xcbf29ce484222325u;
  auto add = [&](const std::string& bytes) {
    for (char c : bytes) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
    hash = (hash ^ bytes.size()) * 0x100000001b3u;
  };
  for (const auto& node : graph.node()) add(node.SerializeAsString());
  for (const auto& input : graph.input()) add(input.SerializeAsString());
  for (const auto& output : graph.output()) add(output.SerializeAsString());
  return std::to_string(hash);
}

// ---- writing -----------------------------------------------------------------------------------

template <class Entries>
void write_metadata(const OnnxMetadata& metadata, Entries* entries) {
  for (const auto& [key, value] : metadata) {
    auto* entry = entries->Add();
    entry->set_key(key);
    entry->set_value(value);
  }
}

int element_number(DType dtype, int element_type) {
  return dtype == DType::Undefined ? element_type : onnx_number_of(dtype);
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
  void operator()(DType value) const { (*this)(static_cast<int64_t>(onnx_number_of(value))); }
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
  metadata.emplace_back(kFingerprint, fingerprint(*graph));
  write_metadata(metadata, proto.mutable_metadata_props());
  return proto;
}

// ---- reading -----------------------------------------------------------------------------------

template <class Entries>
OnnxMetadata read_metadata(const Entries& entries) {
  OnnxMetadata metadata;
  for (const auto& entry : entries) metadata.emplace_back(entry.key(), entry.value());
  return metadata;
}

// Reads only raw_data, the form that we write.
OnnxTensor read_tensor(const onnx::TensorProto& from) {
  return {
      dtype_of_onnx(from.data_type()), {from.dims().begin(), from.dims().end()}, from.raw_data()};
}

OnnxAttr read_attr(const onnx::AttributeProto& from) {
  switch (from.type()) {
    case onnx::AttributeProto::FLOAT: return static_cast<double>(from.f());
    case onnx::AttributeProto::INT: return from.i();
    case onnx::AttributeProto::STRING: return from.s();
    case onnx::AttributeProto::TENSOR: return read_tensor(from.t());
    case onnx::AttributeProto::FLOATS:
      return std::vector<double>(from.floats().begin(), from.floats().end());
    case onnx::AttributeProto::INTS:
      return std::vector<int64_t>(from.ints().begin(), from.ints().end());
    case onnx::AttributeProto::STRINGS:
      return std::vector<std::string>(from.strings().begin(), from.strings().end());
    default: break;
  }
  throw Error(str("[onnx] attribute '", from.name(), "' must be a number, string, list or tensor"));
}

OnnxNode read_node(const onnx::NodeProto& from) {
  OnnxNode node;
  node.op = from.op_type();
  node.domain = from.domain();
  node.name = from.name();
  node.inputs.assign(from.input().begin(), from.input().end());
  node.outputs.assign(from.output().begin(), from.output().end());
  for (const auto& attr : from.attribute()) node.attrs.emplace_back(attr.name(), read_attr(attr));
  node.metadata = read_metadata(from.metadata_props());
  return node;
}

OnnxValue read_value(const onnx::ValueInfoProto& from) {
  const auto& type = from.type().tensor_type();
  OnnxValue value{
      from.name(),
      {OnnxType::Kind::Tensor, dtype_of_onnx(type.elem_type()), std::vector<OnnxDim>{}}};
  for (const auto& dim : type.shape().dim()) {
    if (dim.value_case() == onnx::TensorShapeProto::Dimension::kDimParam)
      value.type.dims->emplace_back(dim.dim_param());
    else
      value.type.dims->emplace_back(dim.dim_value());
  }
  return value;
}

void read_graph(const onnx::GraphProto& graph, OnnxGraph& to) {
  for (const auto& node : graph.node()) to.nodes.push_back(read_node(node));
  for (const auto& value : graph.input()) to.inputs.push_back(read_value(value));
  for (const auto& value : graph.output()) to.outputs.push_back(read_value(value));
  for (const auto& value : graph.value_info()) to.values.push_back(read_value(value));
  for (const auto& tensor : graph.initializer())
    to.initializers.push_back({tensor.name(), read_tensor(tensor)});
}

OnnxModel from_proto(const onnx::ModelProto& proto) {
  OnnxModel model;
  model.graph.name = proto.graph().name();
  for (auto& [key, value] : read_metadata(proto.metadata_props())) {
    if (key == kFingerprint)
      model.intact = value == fingerprint(proto.graph());
    else
      model.metadata.emplace_back(key, value);
  }
  // Graphs of other tools may contain what this reader does not support.
  if (model.intact) read_graph(proto.graph(), model.graph);
  return model;
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

OnnxModel read_onnx_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) fail(path, str("cannot be read: ", std::strerror(errno)));
  onnx::ModelProto proto;
  if (!proto.ParseFromIstream(&in) || !proto.has_graph()) fail(path, "must be an ONNX model");
  return from_proto(proto);
}

}  // namespace ortmodule
