#include "onnx/onnx_file.h"

#include <algorithm>
#include <filesystem>
#include <optional>

#include "base/error.h"
#include "base/version.h"
#include "onnx/mapped_file.h"
#include "onnx/onnx_fingerprint.h"
#include "onnx/onnx_types.h"
#include "onnx/onnx_wire.h"
#include "onnx/replacing_file.h"
#include "ortmodule_onnx.pb.h"

namespace ortmodule {
namespace {

constexpr int kIrVersion = 11;       // the IR version of opset 23
constexpr size_t kAlignment = 4096;  // of external data: readers map the file into memory
constexpr size_t kMessageLimit = size_t{1} << 31;  // protobuf's
constexpr size_t kPieceBytes = size_t{8} << 20;    // of a tensor that is copied

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

// Fields that the model has no member for are added to the message as they were read.
template <class Message>
void write_rest(const OnnxRest& rest, Message* to) {
  if (rest && !to->MergeFromString(*rest))
    throw Error("[onnx] fields that were read must be of the right kinds, but found others");
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
  write_rest(tensor.rest, to);
}

// The elements in pieces. A mapped file's pages leave memory once they are copied.
void each_piece(const OnnxTensor& tensor, const std::function<void(std::string_view)>& write) {
  if (tensor.source) return tensor.source->produce(write);
  const std::string_view bytes = tensor.bytes.view();
  for (size_t at = 0; at < bytes.size(); at += kPieceBytes) {
    const std::string_view piece = bytes.substr(at, kPieceBytes);
    write(piece);
    drop_pages(tensor.bytes, at, piece.size());
  }
}

void write_raw(const OnnxTensor& tensor, std::string* to) {
  to->reserve(tensor.size_bytes());
  each_piece(tensor, [&](std::string_view piece) { to->append(piece); });
}

void write_tensor(const OnnxTensor& tensor, onnx::TensorProto* to) {
  write_tensor_type(tensor, to);
  if (to->data_type() == onnx::TensorProto::STRING)
    for (const std::string& text : tensor.strings) to->add_string_data(text);
  else
    write_raw(tensor, to->mutable_raw_data());
}

void write_dims(const OnnxType& type, onnx::TensorShapeProto* shape) {
  for (size_t i = 0; i < type.dims->size(); ++i) {
    const OnnxDim& dim = (*type.dims)[i];
    auto* to = shape->add_dim();
    if (i < type.denotations.size() && !type.denotations[i].empty())
      to->set_denotation(type.denotations[i]);
    if (const auto* size = std::get_if<int64_t>(&dim)) to->set_dim_value(*size);
    if (const auto* name = std::get_if<std::string>(&dim)) to->set_dim_param(*name);
  }
}

template <class TensorType>
void write_tensor_type(const OnnxType& type, TensorType* to) {
  to->set_elem_type(element_number(type.dtype, type.element_type));
  if (type.dims) write_dims(type, to->mutable_shape());
}

void write_type(const OnnxType& type, onnx::TypeProto* to) {
  write_rest(type.rest, to);
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
    if (value.sparse) {
      to.set_type(onnx::AttributeProto::SPARSE_TENSOR);
      return write_rest(value.sparse, to.mutable_sparse_tensor());
    }
    to.set_type(onnx::AttributeProto::TENSOR);
    write_tensor(value, to.mutable_t());
  }
  void operator()(const std::vector<OnnxTensor>& values) const {
    if (!values.empty() &&
        std::all_of(values.begin(), values.end(), [](const auto& each) { return each.sparse; })) {
      to.set_type(onnx::AttributeProto::SPARSE_TENSORS);
      for (const OnnxTensor& value : values) write_rest(value.sparse, to.add_sparse_tensors());
      return;
    }
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
  if (!node.name.empty()) to->set_name(node.name);
  if (!node.domain.empty()) to->set_domain(node.domain);
  if (!node.overload.empty()) to->set_overload(node.overload);
  for (const std::string& input : node.inputs) to->add_input(input);
  for (const std::string& output : node.outputs) to->add_output(output);
  for (const auto& attr : node.attrs) write_attr(attr, to->add_attribute());
  write_metadata(node.metadata, to->mutable_metadata_props());
  write_rest(node.rest, to);
}

void write_value(const OnnxValue& value, onnx::ValueInfoProto* to) {
  to->set_name(value.name);
  if (value.type.kind != OnnxType::Kind::Unknown || value.type.rest)
    write_type(value.type, to->mutable_type());
  write_rest(value.rest, to);
}

// Everything but the initializers.
void write_graph_body(const OnnxGraph& graph, onnx::GraphProto* to) {
  to->set_name(graph.name.empty() ? "graph" : graph.name);
  for (const OnnxNode& node : graph.nodes) write_node(node, to->add_node());
  for (const OnnxValue& value : graph.inputs) write_value(value, to->add_input());
  for (const OnnxValue& value : graph.outputs) write_value(value, to->add_output());
  for (const OnnxValue& value : graph.values) write_value(value, to->add_value_info());
  write_rest(graph.rest, to);
}

void write_graph(const OnnxGraph& graph, onnx::GraphProto* to) {
  write_graph_body(graph, to);
  for (const OnnxInitializer& initializer : graph.initializers) {
    if (initializer.tensor.sparse) {
      write_rest(initializer.tensor.sparse, to->add_sparse_initializer());
      continue;
    }
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
  write_rest(function.rest, to);
}

void add_entry(onnx::TensorProto* tensor, const char* key, const std::string& value) {
  auto* entry = tensor->add_external_data();
  entry->set_key(key);
  entry->set_value(value);
}

// Appends the data of one initializer and records its location in the model.
void write_external(const OnnxTensor& tensor, const std::string& location, ReplacingFile& out,
                    onnx::TensorProto* to) {
  const size_t gap = (kAlignment - out.size_bytes() % kAlignment) % kAlignment;
  out.write(std::string(gap, '\0'));
  const size_t offset = out.size_bytes();
  each_piece(tensor, [&](std::string_view piece) { out.write(piece); });
  to->set_data_location(onnx::TensorProto::EXTERNAL);
  add_entry(to, "location", location);
  add_entry(to, "offset", std::to_string(offset));
  add_entry(to, "length", std::to_string(tensor.size_bytes()));
}

onnx::ModelProto to_proto(const OnnxModel& model, const onnx::GraphProto& graph) {
  onnx::ModelProto proto;
  const bool ours = model.ir_version == 0;
  proto.set_ir_version(ours ? kIrVersion : model.ir_version);
  proto.set_producer_name(ours ? "ortmodule_py" : model.producer);
  if (ours) proto.set_producer_version(std::string(version()));
  static const std::vector<OnnxOpset> exported = {
      {"", kOnnxOpset}, {"com.microsoft", 1}, {"org.pytorch.aten", 1}};
  write_opsets(model.opsets.empty() ? exported : model.opsets, proto.mutable_opset_import());
  for (const OnnxFunction& function : model.functions)
    write_function(function, proto.add_functions());
  OnnxMetadata metadata = model.metadata;
  if (ours) metadata.emplace_back(OnnxFingerprint::kKey, fingerprint(graph));
  write_metadata(metadata, proto.mutable_metadata_props());
  write_rest(model.rest, &proto);
  return proto;
}

// An initializer as a field of the graph: its data follow `head`, or are in `head` or elsewhere.
struct InitializerField {
  const OnnxTensor* data = nullptr;
  std::string head;
};

// Numbers of fields in GraphProto, TensorProto and ModelProto.
constexpr int kInitializer = 5, kSparseInitializer = 15, kRawData = 9, kGraph = 7;

// `external`: where its data go; null for the model itself.
InitializerField initializer_field(const OnnxInitializer& from, const std::string& location,
                                   ReplacingFile* external) {
  InitializerField field;
  if (from.tensor.sparse) {
    append_bytes_header(field.head, kSparseInitializer, from.tensor.sparse->size());
    field.head += *from.tensor.sparse;
    return field;
  }
  onnx::TensorProto tensor;
  tensor.set_name(from.name);
  const size_t size = from.tensor.size_bytes();
  std::string raw;
  if (!from.tensor.strings.empty() || size == 0) {
    write_tensor(from.tensor, &tensor);
  } else {
    write_tensor_type(from.tensor, &tensor);
    if (external) {
      write_external(from.tensor, location, *external, &tensor);
    } else {
      append_bytes_header(raw, kRawData, size);
      field.data = &from.tensor;
    }
  }
  const std::string message = tensor.SerializeAsString() + raw;
  append_bytes_header(field.head, kInitializer, message.size() + (field.data ? size : 0));
  field.head += message;
  return field;
}

// The name of the file of data, as the model has it.
std::string data_location(const std::string& path, const std::string& wanted) {
  const std::filesystem::path own = std::filesystem::path(path).filename();
  if (wanted.empty()) return own.string() + ".data";
  const std::filesystem::path file = std::filesystem::path(wanted).lexically_normal();
  const bool inside = file.is_relative() && !file.filename().empty() && *file.begin() != "..";
  if (!inside || file == own)
    fail(path, str("external data must go to another file in the model's folder, but found '",
                   wanted, "'"));
  return file.generic_string();
}

}  // namespace

// The graph is the last field of the model and the initializers its last fields, so that their data
// go from their places to the file without a message that holds all of them.
void write_onnx_file(const OnnxModel& model, const std::string& path,
                     const OnnxDataPlacement& placement) {
  size_t total = 0, largest = 0;
  for (const OnnxInitializer& initializer : model.graph.initializers) {
    total += initializer.tensor.size_bytes();
    largest = std::max(largest, initializer.tensor.size_bytes());
  }
  const std::string location = data_location(path, placement.file);
  std::optional<ReplacingFile> data;
  if (total > placement.threshold && largest >= placement.least_bytes)
    data.emplace((std::filesystem::path(path).parent_path() / location).string());
  std::vector<InitializerField> fields;
  size_t graph_bytes = 0;
  for (const OnnxInitializer& initializer : model.graph.initializers) {
    const bool beside = data && initializer.tensor.size_bytes() >= placement.least_bytes;
    fields.push_back(initializer_field(initializer, location, beside ? &*data : nullptr));
    graph_bytes += fields.back().head.size();
    if (fields.back().data) graph_bytes += fields.back().data->size_bytes();
  }
  if (data) data->finish();
  onnx::GraphProto graph;
  write_graph_body(model.graph, &graph);
  if (graph.ByteSizeLong() >= kMessageLimit)
    fail(path, str("nodes must have less than 2 GiB, their constants included, but found ",
                   graph.ByteSizeLong(), " bytes"));
  const std::string body = graph.SerializeAsString();
  std::string head = to_proto(model, graph).SerializeAsString();
  append_bytes_header(head, kGraph, body.size() + graph_bytes);
  const size_t size = head.size() + body.size() + graph_bytes;
  if (size >= kMessageLimit)
    fail(path, str("must have less than 2 GiB without external data, but found ", size, " bytes"));
  ReplacingFile file(path);
  file.write(head);
  file.write(body);
  for (const InitializerField& field : fields) {
    file.write(field.head);
    if (field.data) each_piece(*field.data, [&](std::string_view piece) { file.write(piece); });
  }
  file.finish();
  // Only a crash between these two leaves the old model with new data.
  if (data) data->replace();
  file.replace();
}

}  // namespace ortmodule
