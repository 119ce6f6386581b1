// An ONNX model as plain data: what a file holds. onnx_file.h writes it, onnx_reader.h reads it;
// exporter/onnx_export makes models of graphs, importer/ graphs of models.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/dtype.h"
#include "onnx/shared_bytes.h"

namespace ortmodule {

struct OnnxGraph;

/// The fields of a message that have no member here (doc strings, metadata, annotations ...), as
/// they were in the file that was read, so that they are written again; null for none.
using OnnxRest = std::shared_ptr<const std::string>;

/// Makes the bytes of a tensor while its file is written, so that large tensors need not be in
/// memory together.
class OnnxTensorSource {
 public:
  OnnxTensorSource() = default;
  virtual ~OnnxTensorSource() = default;
  OnnxTensorSource(const OnnxTensorSource&) = delete;
  OnnxTensorSource& operator=(const OnnxTensorSource&) = delete;

  virtual size_t size_bytes() const = 0;
  /// Calls `write` with the bytes from first to last, in pieces.
  virtual void produce(const std::function<void(std::string_view)>& write) const = 0;
};

/// A constant tensor, row-major, little-endian; bool is one byte.
struct OnnxTensor {
  DType dtype = DType::Undefined;  // Undefined: the engine lacks the type `element_type`
  std::vector<int64_t> dims = {};
  SharedBytes bytes = {};                 // at any address; empty for strings
  int element_type = 0;                   // number in ONNX, of a tensor that was read
  std::vector<std::string> strings = {};  // elements of a tensor of strings
  OnnxRest rest = {};
  OnnxRest sparse = {};  // the message of a sparse tensor that was read; `bytes` are dense
  std::shared_ptr<const OnnxTensorSource> source = {};  // then `bytes` is empty

  size_t size_bytes() const { return source ? source->size_bytes() : bytes.size(); }
};

/// A size: a number, a name such as "batch", or unknown.
using OnnxDim = std::variant<std::monostate, int64_t, std::string>;

/// The type of a value.
struct OnnxType {
  enum class Kind : uint8_t { Unknown, Tensor, SparseTensor, Sequence, Optional, Map };
  Kind kind = Kind::Unknown;
  DType dtype = DType::Undefined;                 // Tensor
  std::optional<std::vector<OnnxDim>> dims = {};  // Tensor; nullopt: unknown rank
  int element_type = 0;                           // Tensor: number in ONNX, of a type that was read
  std::shared_ptr<const OnnxType> element = {};   // Sequence, Optional, Map (its values)
  OnnxRest rest = {};
  std::vector<std::string> denotations = {};  // of `dims`; empty: none has one
};

/// An attribute of a function's node that takes the value of the function's attribute.
struct OnnxAttrReference {
  std::string name;
  int type = 0;  // AttributeProto.AttributeType
};

/// A DType is written as its number in ONNX.
using OnnxAttr =
    std::variant<int64_t, double, std::string, std::vector<int64_t>, std::vector<double>,
                 std::vector<std::string>, OnnxTensor, std::vector<OnnxTensor>, DType,
                 std::shared_ptr<const OnnxGraph>, std::vector<std::shared_ptr<const OnnxGraph>>,
                 OnnxType, std::vector<OnnxType>, OnnxAttrReference>;
using OnnxAttrs = std::vector<std::pair<std::string, OnnxAttr>>;
using OnnxMetadata = std::vector<std::pair<std::string, std::string>>;

struct OnnxNode {
  std::string op;
  std::string domain;  // "": the standard one ("ai.onnx" is read as "")
  std::string name;
  std::vector<std::string> inputs;  // "" for an absent one
  std::vector<std::string> outputs;
  OnnxAttrs attrs;
  OnnxMetadata metadata;
  std::string overload;  // of the function that the node calls
  OnnxRest rest = {};
};

struct OnnxValue {
  std::string name;
  OnnxType type;
  OnnxRest rest = {};
};

/// A named constant. When it is written, the caller keeps the data alive until then.
struct OnnxInitializer {
  std::string name;
  OnnxTensor tensor;
};

struct OnnxGraph {
  std::string name;
  std::vector<OnnxNode> nodes;
  std::vector<OnnxValue> inputs;
  std::vector<OnnxValue> outputs;
  std::vector<OnnxValue> values;  // types of intermediate values
  std::vector<OnnxInitializer> initializers;
  OnnxRest rest = {};
};

struct OnnxOpset {
  std::string domain;
  int64_t version = 0;
};

/// An operator that the model defines by nodes.
struct OnnxFunction {
  std::string name;
  std::string domain;
  std::string overload;
  std::vector<std::string> inputs;
  std::vector<std::string> outputs;
  std::vector<std::string> attrs;  // without a default
  OnnxAttrs defaults;
  std::vector<OnnxNode> nodes;
  std::vector<OnnxOpset> opsets;
  OnnxRest rest = {};
};

struct OnnxModel {
  OnnxGraph graph;
  std::vector<OnnxOpset> opsets;
  std::vector<OnnxFunction> functions;
  OnnxMetadata metadata;
  int64_t ir_version = 0;  // 0: a model of ours, which gets our version and producer
  std::string producer;
  OnnxRest rest = {};
  /// Of a model that was read: its graph is unchanged since write_onnx_file().
  bool intact = false;
};

}  // namespace ortmodule
