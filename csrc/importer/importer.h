// The walk over the nodes of a model: names to values, subgraphs by branch, functions inlined.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "importer/import_model.h"
#include "ops/onnx_call.h"
#include "ops/torch_call.h"

namespace ortmodule {

struct PendingNode;

/// The operator and the node's name, or else that of its first output.
std::string node_title(const OnnxNode& node);
/// What a name of the model stands for. A tensor of the graph is made when it is first asked for,
/// so that arithmetic on sizes leaves no nodes.
struct Imported {
  DType dtype = DType::Undefined;
  Dims dims;
  Value* tensor = nullptr;
  std::optional<KnownValue> known;
  std::optional<OnnxTensor> constant;
  std::shared_ptr<const OnnxTensor> texts;  // the constant as the file has it, of texts
  int input = -1;                           // of the model, whose content may be asked for
  std::shared_ptr<PendingNode> pending;     // the node to convert, where `known` has its content
  std::vector<size_t> counted;              // inputs on whose number of elements `known` depends
  std::optional<std::vector<std::shared_ptr<Imported>>> sequence;
  OnnxMeaning meaning = OnnxMeaning::Numbers;
  std::shared_ptr<const OnnxMapKeys> keys;  // of maps
  bool is_absent = false;                   // an optional without an element
  bool failed = false;                      // of a node that could not be imported
};
using ImportedRef = std::shared_ptr<Imported>;

/// Names and attributes of a graph, function or subgraph.
struct ImportScope {
  const ImportScope* outer = nullptr;  // of a subgraph: names may come from there
  const std::vector<OnnxOpset>* opsets = nullptr;
  const OnnxAttrs* attrs = nullptr;  // of a function's call
  int depth = 0;
  std::unordered_map<std::string, ImportedRef> names;
  std::unordered_map<std::string_view, const OnnxType*> declared;  // of the graph's value_info

  ImportedRef find(const std::string& name) const;
  /// That of a domain without one is the last.
  int64_t opset(std::string_view domain) const;
  void declare(const OnnxGraph& graph);
};

/// Of functions and subgraphs.
inline constexpr int kMostDepth = 64;
/// After functions are expanded and loops unrolled.
inline constexpr size_t kMostNodes = 1'000'000;

class Importer {
 public:
  Importer(const OnnxModel& model, const ImportRequest& request);
  ImportedModel run();
  /// Throws Error if a node that every run needs is of an operator that the engine lacks.
  void check_operators();
  /// Whether the import asked for the content of an input that the request does not have.
  bool misses_content() const { return misses_content_; }

  // --- for rules of control flow and sequences
  Graph& graph() { return *result_.piece.graph; }
  SizeGuards& sizes() { return sizes_; }
  Value* tensor_of(Imported& value);
  /// The content, or null if it is not known; see OnnxOperands::known.
  const KnownValue* known_of(Imported& value, bool required = true);
  bool is_input_content(const KnownValue& known) const;
  /// The import is for as many elements of these inputs as the call has.
  void fix_counts(const std::vector<size_t>& inputs);
  /// See OnnxOperands::place.
  DimExpr place(const DimExpr& number);
  Value* tensor_of_known(const KnownValue& known);
  Value* bind_weight(const OnnxTensor& tensor);
  const OnnxTensor* weight_of(const Value& tensor) const;
  int64_t text_number(const std::string& text) const;
  /// A constant, with texts as their numbers.
  ImportedRef of_constant(const OnnxTensor& tensor) const;
  static ImportedRef of_tensor(Value* tensor);
  static ImportedRef of_known(KnownValue known);
  static ImportedRef of_sequence(std::vector<ImportedRef> elements);
  /// Imports the nodes of a subgraph whose inputs have these values, and returns its outputs.
  std::vector<ImportedRef> import_subgraph(const OnnxGraph& graph, const ImportScope& outer,
                                           const std::vector<ImportedRef>& inputs);
  /// Throws Refused if this many more iterations would make the graph too large.
  void count_iteration(const OnnxGraph& body);

 private:
  void add_inputs(ImportScope& scope);
  void add_part_inputs(const ModelPart& part, ImportScope& scope);
  ImportedRef add_input(const ValueForm& form, const std::string& name, const OnnxType& type);
  ImportedRef add_input_tensor(const std::string& name, size_t index, const OnnxType& type);
  DimExpr input_dim(const std::string& input, size_t index, size_t axis, const OnnxType& type);
  void add_initializers(const OnnxGraph& graph, ImportScope& scope);
  void import_nodes(const std::vector<OnnxNode>& nodes, ImportScope& scope);
  /// From the part's first node to the first that must wait for data.
  void import_part(const ModelPart& part, ImportScope& scope);
  void import_node(const OnnxNode& node, ImportScope& scope);
  std::vector<ImportedRef> values_of(const OnnxNode& node, ImportScope& scope,
                                     const std::vector<ImportedRef>& operands);
  /// Records an output that is not what the graph's value_info says.
  void check_value(const OnnxNode& node, const std::string& name, const Imported& value,
                   const ImportScope& scope);
  std::vector<ImportedRef> call_function(const OnnxFunction& function, const OnnxNode& node,
                                         const ImportScope& scope,
                                         const std::vector<ImportedRef>& operands);
  std::vector<ImportedRef> convert(std::shared_ptr<PendingNode> pending);
  void convert_pending(PendingNode& pending);
  const OnnxFunction* find_function(const OnnxNode& node) const;
  /// The fewest nodes that a call becomes; at most one more than kMostNodes. Throws Refused for a
  /// function that calls itself.
  size_t expanded_nodes(const OnnxFunction& function, int depth);
  // --- cuts (cut.cpp)
  void cut_at(size_t index, const DataNeeded& needed, const ModelPart& part, ImportScope& scope);
  bool helps(const DataNeeded& needed, const OnnxNode& node, const ImportScope& scope) const;
  void add_bodies(const ImportScope& scope, const ModelPart& part, ModelCut& cut);
  void add_rest(const ModelPart& part, const ImportScope& scope, ModelCut& cut);
  /// A constant is carried if it `must` be a tensor; else each part reads it for itself.
  void carry(const std::string& name, const ImportScope& scope, bool must, ModelCut& cut);
  CarriedValue::Tensor carry_tensor(Imported& value);
  /// Records nodes from `first` on of operators that the engine lacks.
  void check_operators(const std::vector<OnnxNode>& nodes, size_t first,
                       const std::vector<OnnxOpset>& opsets, int depth = 0, bool in_branch = false);
  void check_operator(const OnnxNode& node, const std::vector<OnnxOpset>& opsets,
                      bool in_branch) const;
  void erase_dead_nodes();

  void add_output(const OnnxValue& output, const ImportScope& scope);
  void add_output_tensor(Value* tensor);
  static void check_call(const OnnxFunction& function, const OnnxNode& node);
  static std::shared_ptr<const OnnxNode> with_attrs(const OnnxNode& node, const OnnxAttrs* call);
  static ModelPart function_part(const OnnxFunction& function, const OnnxNode& node);
  enum class Fault : uint8_t { Invalid, Unsupported };
  void fail(const OnnxNode& node, const std::string& why, Fault fault = Fault::Invalid);
  void fail(const OnnxNode& node, const Refused& refused);
  [[noreturn]] void throw_failures() const;

  std::optional<KnownValue> input_content(const Imported& value, bool required);
  void keep_used_contents();
  KnownValue integer_content(size_t input, int64_t count);
  std::vector<size_t> without_content(const std::vector<size_t>& inputs,
                                      const KnownValue& known) const;

  const OnnxModel& model_;
  const ImportRequest& request_;
  ImportedModel result_;
  SizeGuards sizes_;
  std::map<std::string, int64_t> named_sizes_;     // of inputs, to share symbols
  std::unordered_map<const char*, Value*> bound_;  // weights by the address of their bytes
  struct Failure {
    std::string node, why;
    Fault fault;
  };
  std::vector<Failure> failures_;
  bool depends_on_call_ = false;  // this call decides sizes or contents that the model leaves open
  bool misses_content_ = false;   // of an input that was asked for
  size_t imported_nodes_ = 0;
  std::vector<std::shared_ptr<std::vector<OnnxNode>>>
      function_bodies_;                                               // pending nodes are in them
  std::set<std::pair<const OnnxFunction*, bool>> checked_functions_;  // whether in a branch
  std::unordered_multimap<std::string_view, const OnnxFunction*> functions_;  // by name
  std::unordered_map<const OnnxFunction*, size_t> expanded_nodes_;
};

/// Whether operands of the node are texts. Refuses meanings that its rule does not know.
bool check_meanings(const OnnxCall& call, const OnnxRow& row,
                    const std::vector<ImportedRef>& operands);
/// Refuses a value whose kind or element type is not what the file declares.
void check_type(const OnnxType& type, const Imported& value);
/// The same for an output: sessions would take numbers for texts.
void check_declared(const OnnxValue& output, const Imported& value);

/// Imports a node by its subgraphs or sequences instead of an OnnxRow.
struct ControlCall {
  Importer& importer;
  const OnnxNode& node;
  const ImportScope& scope;
  const std::vector<ImportedRef>& operands;
  int64_t opset;

  bool has(size_t i) const { return i < operands.size() && operands[i]; }
  Imported& operand(size_t i) const;
  const OnnxAttr* find(std::string_view name) const;
  const OnnxGraph& subgraph(std::string_view name) const;
  int64_t integer(std::string_view name, int64_t fallback) const;
  std::vector<int64_t> integers(std::string_view name) const;
  /// The content of operand i as one fixed integer. Refuses if it is not known.
  int64_t fixed_integer(size_t i) const;
  std::vector<ImportedRef>& sequence(size_t i) const;
  /// As those of OnnxCall.
  [[noreturn]] void refuse(const std::string& why) const;
  [[noreturn]] void unsupported(const std::string& why) const;
  /// The subgraph has to be run as a part of its own.
  [[noreturn]] void run_subgraph(const std::string& why) const;
};

struct ControlRow {
  std::string_view op;
  std::vector<ImportedRef> (*import)(const ControlCall&) = nullptr;
  std::string_view domain = {};
};

const ControlRow* find_control_row(std::string_view domain, std::string_view op);

/// The outputs of a Scan over points that computes distances to them; nullopt for another one.
std::optional<std::vector<ImportedRef>> import_distance_scan(const ControlCall& call);

class ControlRegistrar {
 public:
  explicit ControlRegistrar(std::vector<ControlRow> rows);
};

}  // namespace ortmodule
