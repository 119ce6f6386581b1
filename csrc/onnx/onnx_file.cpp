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
#include "ortmodule_onnx.pb.h"

namespace ortmodule {
namespace {

constexpr int kIrVersion = 11;  // the IR version of opset 23
constexpr std::string_view kFingerprint = "ortmodule.fingerprint";
constexpr size_t kAlignment = 4096;    // of external data: readers map the file into memory
constexpr size_t kSmallTensor = 1024;  // bytes; smaller ones stay in the model
constexpr size_t kMessageLimit = size_t{1} << 31;  // protobuf's

int onnx_dtype(DType dtype) {
  switch (dtype) {
    case DType::Float32: return onnx::TensorProto::FLOAT;
    case DType::Float64: return onnx::TensorProto::DOUBLE;
    case DType::Float16: return onnx::TensorProto::FLOAT16;
    case DType::BFloat16: return onnx::TensorProto::BFLOAT16;
    case DType::Int64: return onnx::TensorProto::INT64;
    case DType::Int32: return onnx::TensorProto::INT32;
    case DType::Int16: return onnx::TensorProto::INT16;
    case DType::Int8: return onnx::TensorProto::INT8;
    case DType::UInt8: return onnx::TensorProto::UINT8;
    case DType::Bool: return onnx::TensorProto::BOOL;
    case DType::Complex64: return onnx::TensorProto::COMPLEX64;
    case DType::Complex128: return onnx::TensorProto::COMPLEX128;
    case DType::Undefined: break;
  }
  return onnx::TensorProto::UNDEFINED;
}

DType dtype_of(int number) {
  for (int i = 0; i <= static_cast<int>(DType::Complex128); ++i)
    if (onnx_dtype(static_cast<DType>(i)) == number) return static_cast<DType>(i);
  return DType::Undefined;
}

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

void write_tensor(const OnnxTensor& tensor, onnx::TensorProto* to) {
  to->set_data_type(onnx_dtype(tensor.dtype));
  for (int64_t dim : tensor.dims) to->add_dims(dim);
  to->set_raw_data(tensor.bytes);
}

struct AttrWriter {
  onnx::AttributeProto& to;

  void operator()(int64_t value) const {
    to.set_type(onnx::AttributeProto::INT);
    to.set_i(value);
  }
  void operator()(DType value) const { (*this)(static_cast<int64_t>(onnx_dtype(value))); }
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
};

void write_node(const OnnxNode& node, onnx::NodeProto* to) {
  to->set_op_type(node.op);
  to->set_name(node.name);
  if (!node.domain.empty()) to->set_domain(node.domain);
  for (const std::string& input : node.inputs) to->add_input(input);
  for (const std::string& output : node.outputs) to->add_output(output);
  for (const auto& [name, value] : node.attrs) {
    auto* attr = to->add_attribute();
    attr->set_name(name);
    std::visit(AttrWriter{*attr}, value);
  }
  write_metadata(node.metadata, to->mutable_metadata_props());
}

void write_value(const OnnxValue& value, onnx::ValueInfoProto* to) {
  to->set_name(value.name);
  auto* type = to->mutable_type()->mutable_tensor_type();
  type->set_elem_type(onnx_dtype(value.dtype));
  auto* shape = type->mutable_shape();
  for (const DimExpr& dim : value.dims) {
    if (dim.is_constant())
      shape->add_dim()->set_dim_value(dim.value());
    else
      shape->add_dim()->set_dim_param(dim.text());
  }
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
void write_external(const OnnxInitializer& initializer, const std::string& location,
                    std::ostream& out, onnx::TensorProto* to) {
  auto offset = static_cast<size_t>(out.tellp());
  const size_t gap = (kAlignment - offset % kAlignment) % kAlignment;
  out << std::string(gap, '\0');
  offset += gap;
  out.write(static_cast<const char*>(initializer.data),
            static_cast<std::streamsize>(initializer.bytes));
  to->set_data_location(onnx::TensorProto::EXTERNAL);
  add_entry(to, "location", location);
  add_entry(to, "offset", std::to_string(offset));
  add_entry(to, "length", std::to_string(initializer.bytes));
}

void write_initializers(const OnnxModel& model, const std::string& path, std::ostream* external,
                        onnx::GraphProto* to) {
  const std::string location = std::filesystem::path(path).filename().string() + ".data";
  for (const OnnxInitializer& initializer : model.initializers) {
    auto* tensor = to->add_initializer();
    tensor->set_name(initializer.name);
    tensor->set_data_type(onnx_dtype(initializer.dtype));
    for (int64_t dim : initializer.dims) tensor->add_dims(dim);
    if (external && initializer.bytes >= kSmallTensor)
      write_external(initializer, location, *external, tensor);
    else
      tensor->set_raw_data(initializer.data, initializer.bytes);
  }
}

onnx::ModelProto to_proto(const OnnxModel& model) {
  onnx::ModelProto proto;
  proto.set_ir_version(kIrVersion);
  proto.set_producer_name("ortmodule_py");
  proto.set_producer_version(std::string(version()));
  const std::pair<const char*, int> opsets[] = {
      {"", kOnnxOpset}, {"com.microsoft", 1}, {"org.pytorch.aten", 1}};
  for (const auto& [domain, number] : opsets) {
    auto* opset = proto.add_opset_import();
    opset->set_domain(domain);
    opset->set_version(number);
  }
  auto* graph = proto.mutable_graph();
  graph->set_name(model.name.empty() ? "graph" : model.name);
  for (const OnnxNode& node : model.nodes) write_node(node, graph->add_node());
  for (const OnnxValue& value : model.inputs) write_value(value, graph->add_input());
  for (const OnnxValue& value : model.outputs) write_value(value, graph->add_output());
  for (const OnnxValue& value : model.values) write_value(value, graph->add_value_info());
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
  return {dtype_of(from.data_type()), {from.dims().begin(), from.dims().end()}, from.raw_data()};
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
  OnnxValue value{from.name(), dtype_of(type.elem_type()), {}};
  for (const auto& dim : type.shape().dim())
    value.dims.push_back(dim.value_case() == onnx::TensorShapeProto::Dimension::kDimParam
                             ? DimExpr::parse(dim.dim_param())
                             : DimExpr(dim.dim_value()));
  return value;
}

void read_graph(const onnx::GraphProto& graph, OnnxModel& model) {
  for (const auto& node : graph.node()) model.nodes.push_back(read_node(node));
  for (const auto& value : graph.input()) model.inputs.push_back(read_value(value));
  for (const auto& value : graph.output()) model.outputs.push_back(read_value(value));
  for (const auto& value : graph.value_info()) model.values.push_back(read_value(value));
  for (const auto& tensor : graph.initializer())
    model.initializers.push_back({tensor.name(),
                                  dtype_of(tensor.data_type()),
                                  {tensor.dims().begin(), tensor.dims().end()},
                                  nullptr,
                                  0});
}

OnnxModel from_proto(const onnx::ModelProto& proto) {
  OnnxModel model;
  model.name = proto.graph().name();
  for (auto& [key, value] : read_metadata(proto.metadata_props())) {
    if (key == kFingerprint)
      model.intact = value == fingerprint(proto.graph());
    else
      model.metadata.emplace_back(key, value);
  }
  // Graphs of other tools may contain what this reader does not support.
  if (model.intact) read_graph(proto.graph(), model);
  return model;
}

}  // namespace

void write_onnx_file(const OnnxModel& model, const std::string& path, size_t external_threshold) {
  size_t total = 0;
  for (const OnnxInitializer& initializer : model.initializers) total += initializer.bytes;
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
