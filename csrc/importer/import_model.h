// Imports an ONNX model as a graph, for the sizes of a first call. The graph stays symbolic: it
// fits every call whose sizes fulfil the guards.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/layout.h"
#include "ir/exported_piece.h"
#include "onnx/onnx_model.h"
#include "onnx/text_table.h"
#include "ops/onnx_call.h"
#include "ops/size_guards.h"

namespace ortmodule {

class LaterReads;

/// The most elements of an input whose content the import reads: those that decide sizes are few.
inline constexpr int64_t kMostContent = 64;

/// A tensor of a call.
struct ImportInput {
  DType dtype = DType::Undefined;
  Sizes sizes;
  const void* data = nullptr;  // row-major; null: the content is not known
  bool texts = false;
};

/// An input or output of a model: one tensor, a sequence of them, a map (of an input only) as its
/// keys and its values, or an empty optional.
struct ValueForm {
  enum class Kind : uint8_t { Tensor, Sequence, Absent, Map };
  Kind kind = Kind::Tensor;
  size_t first = 0;  // of its tensors
  size_t count = 1;

  friend bool operator==(const ValueForm&, const ValueForm&) = default;
};

/// The nodes of a graph from `first_node` on, which run by themselves: what comes before them has
/// to be computed first.
struct ModelPart {
  std::shared_ptr<const OnnxGraph> graph = {};  // of the model, a subgraph, a function's nodes
  size_t first_node = 0;
  std::vector<std::string> inputs = {};  // the values that are fed
  std::vector<std::string> outputs = {};
  std::shared_ptr<const std::vector<OnnxOpset>> opsets = {};
  std::shared_ptr<const OnnxAttrs> attrs = {};       // of the call, within a function
  std::map<std::string, OnnxTensor> constants = {};  // from outside that the nodes read
  int cut_cost = 0;                                  // of the cuts before it
  // Of all nodes of the graph, once it was cut: whether the engine has their operators was checked.
  std::shared_ptr<const LaterReads> reads = {};
};

struct ImportRequest {
  /// The tensors of called_inputs(), then of overridable_inputs() that replace initializers.
  std::vector<ImportInput> inputs;
  /// Which of them are those of each input. An overridable one may be absent or not be listed.
  std::vector<ValueForm> forms;
  /// Values of named sizes (SessionOptions.add_free_dimension_override_by_name).
  std::map<std::string, int64_t> fixed_sizes;
  /// Values of sizes by input and axis.
  std::map<std::string, std::map<size_t, int64_t>> fixed_axes;
  /// Instead of the whole model.
  const ModelPart* part = nullptr;
  /// The texts of the model; null for a model without. Inputs of texts have their numbers.
  const TextTable* texts = nullptr;
};

/// An element of a small integer input that sizes of the graph depend on.
struct ContentSymbol {
  std::string symbol;
  size_t input = 0;
  int64_t element = 0;
  bool is_place = false;  // all far ones mean the same; else the graph is for near ones
};

/// The content of a small input that the graph was imported for.
struct ContentGuard {
  size_t input = 0;
  std::string bytes;
};

/// A value that what follows a cut reads.
struct CarriedValue {
  struct Tensor {
    bool is_input = false;  // of the call's tensors, else one of the graph's outputs
    size_t index = 0;
  };
  std::string name;
  ValueForm::Kind kind = ValueForm::Kind::Tensor;
  std::vector<Tensor> tensors;
  bool texts = false;  // a tensor of texts, as their numbers
};

/// Where an import ends: the values before a node must be computed for the rest to be planned.
struct ModelCut {
  enum class Kind : uint8_t {
    Content,  // the node is the first of the rest, where its operands are inputs
    Sized,    // it is computed by a SizedOp
    Control,  // its subgraph or function is run as a part of its own
  };
  Kind kind = Kind::Content;
  OnnxNode node;                     // with the attributes of a function's call
  Attrs attrs;                       // of the SizedOp
  std::vector<CarriedValue> values;  // for the node and the rest, outputs among them
  /// What is run for the node: branches of an If (then, else), a loop's body, a function, the
  /// decoder of a search (and that of its first step).
  std::vector<ModelPart> bodies;
  ModelPart rest;
};

/// What an output is for callers.
struct OutputMeaning {
  OnnxMeaning meaning = OnnxMeaning::Numbers;
  std::shared_ptr<const OnnxMapKeys> keys;  // of maps
};

struct ImportedModel {
  /// Arguments: first the symbols of `contents`, then the tensors of the inputs, then `weights`.
  ExportedPiece piece;
  std::vector<ValueForm> outputs;
  std::vector<OutputMeaning> meanings;  // by output
  /// By graph input after the inputs' tensors. They may lie in the mapped file, at any address.
  std::vector<OnnxTensor> weights;
  std::vector<Dims> input_dims;  // by tensor, with a symbol for each size that may change
  std::vector<ContentSymbol> contents;
  std::vector<ContentGuard> content_guards;
  std::vector<SizeGuard> guards;
  /// Set: the graph's outputs are what its values say, and `outputs` is empty.
  std::optional<ModelCut> cut;
};

/// The inputs of a call: those of the graph that have no initializer.
std::vector<const OnnxValue*> called_inputs(const OnnxGraph& graph);
/// The inputs that have an initializer, which a call may replace.
std::vector<const OnnxValue*> overridable_inputs(const OnnxModel& model);

/// Throws Error, naming the nodes, if the engine lacks an operator. Those in branches may never
/// run, and are found when they do.
void check_operators(const OnnxModel& model);

/// The model as a part: all of its graph. Refers to the model, which must outlive it.
ModelPart whole_model(const OnnxModel& model);

/// Imports the model. It must outlive the weights of the result. Throws Error, naming every node
/// that cannot be imported and why.
ImportedModel import_model(const OnnxModel& model, const ImportRequest& request);

/// The same for a request without the contents of inputs; nullopt where the import depends on them.
std::optional<ImportedModel> import_without_contents(const OnnxModel& model,
                                                     const ImportRequest& request);

/// The symbol that the import makes of a size that the model names.
std::string symbol_name(const std::string& text);

}  // namespace ortmodule
