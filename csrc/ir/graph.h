// The graph IR of all stages: typed values, nodes in program order, and use lists.
// Ownership: a Graph owns its nodes and values, which refer to each other by raw pointers. Erasing
// a node erases its output values.
#pragma once

#include <list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <variant>
#include <vector>

#include "ir/attr.h"

namespace ortmodule {

class Graph;
class Node;

/// Location of a node in the user's program.
struct Origin {
  std::string module;  // "encoder.layers.3.attn"
  std::string source;  // "model.py:88"
};

/// Whether a node of a joint graph belongs to forward or backward.
enum class Region : uint8_t { Forward, Backward };

/// A use of a value: operand `index` of `node`.
struct Use {
  Node* node = nullptr;
  size_t index = 0;  // operand position
  friend bool operator==(const Use&, const Use&) = default;
};

/// A literal scalar: a number, or a size used as data.
using Scalar = std::variant<double, DimExpr>;

/// A tensor: the output of a node, an input of the graph, or a literal scalar.
class Value {
 public:
  std::string name;  // for readers of the text; identity is the pointer
  DType dtype = DType::Undefined;
  Dims dims;

  int id() const { return id_; }
  Node* producer() const { return producer_; }
  size_t output_index() const { return output_index_; }
  const std::vector<Use>& uses() const { return uses_; }
  size_t rank() const { return dims.size(); }
  /// Position among Graph::inputs, or -1.
  int input_index() const { return input_index_; }
  bool is_input() const { return input_index_ >= 0; }
  bool is_literal() const { return literal_.has_value(); }
  const Scalar& literal() const { return *literal_; }
  /// Whether the value is an output of the graph.
  bool is_graph_output() const { return graph_output_count_ > 0; }

 private:
  friend class Graph;
  int id_ = 0;
  Node* producer_ = nullptr;
  size_t output_index_ = 0;
  int input_index_ = -1;
  int graph_output_count_ = 0;
  std::optional<Scalar> literal_;
  std::vector<Use> uses_;
};

/// One operation. `op` is an ONNX operator name; the domain is the OpDef's.
class Node {
 public:
  std::string op;
  Attrs attrs;
  Origin origin;
  Region region = Region::Forward;
  std::string tag;  // "checkpoint": inside a torch.utils.checkpoint region

  int id() const { return id_; }
  /// Operands; null for an absent optional operand.
  const std::vector<Value*>& inputs() const { return inputs_; }
  const std::vector<Value*>& outputs() const { return outputs_; }
  Value* input(size_t i) const { return i < inputs_.size() ? inputs_[i] : nullptr; }
  Value* output(size_t i = 0) const { return outputs_.at(i); }

 private:
  friend class Graph;
  int id_ = 0;
  std::vector<Value*> inputs_;
  std::vector<Value*> outputs_;
  std::list<std::unique_ptr<Node>>::iterator position_;
};

enum class InputKind : uint8_t {
  User,       // an argument of the module
  Parameter,  // trainable or frozen
  Buffer,
  Constant,    // a tensor that the traced program closed over
  GradOutput,  // gradient of forward output `GraphInput::index`, from autograd
};

struct GraphInput {
  Value* value = nullptr;
  InputKind kind = InputKind::User;
  bool requires_grad = false;
  int index = -1;  // GradOutput: index of the forward output
};

enum class OutputKind : uint8_t {
  Output,    // returned to the user at position `GraphOutput::index`
  Mutation,  // new value of input `GraphOutput::index`
  Gradient,  // gradient of input `GraphOutput::index`
};

struct GraphOutput {
  Value* value = nullptr;
  OutputKind kind = OutputKind::Output;
  int index = 0;
};

class Graph {
 public:
  using NodeList = std::list<std::unique_ptr<Node>>;

  Graph() = default;
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  std::string name = "graph";

  // --- building -------------------------------------------------------------------------------
  Value* add_input(std::string_view name, DType dtype, Dims dims, InputKind kind = InputKind::User,
                   bool requires_grad = false, int index = -1);
  void add_output(Value* value, OutputKind kind = OutputKind::Output, int index = 0);
  /// A literal scalar. Bitwise equal literals of one type are the same value.
  Value* literal(Scalar scalar, DType dtype);
  /// Appends a node, or inserts it at the insertion point (see Inserting). The caller sets the
  /// output types; ops/emit.h infers them.
  Node* add_node(std::string_view op, std::vector<Value*> inputs, size_t output_count, Attrs attrs);

  // --- editing --------------------------------------------------------------------------------
  void set_input(Node* node, size_t index, Value* value);
  /// Replaces `from` by `to` in all uses, graph outputs included.
  void replace_all_uses(Value* from, Value* to);
  void replace_output(size_t output, Value* value);
  /// Removes a node. Throws InternalError if one of its outputs is used.
  void erase(Node* node);
  void erase_output(size_t output);
  /// Moves `node` to directly before `before`.
  void move_before(Node* node, Node* before);
  void rename(Value* value, std::string_view name);

  // --- reading --------------------------------------------------------------------------------
  const NodeList& nodes() const { return nodes_; }
  std::vector<Node*> node_pointers() const;
  const std::vector<GraphInput>& inputs() const { return inputs_; }
  const std::vector<GraphOutput>& outputs() const { return outputs_; }
  const std::vector<Value*>& literals() const { return literals_; }
  size_t node_count() const { return nodes_.size(); }
  /// One more than the largest value id ever given, for tables indexed by id.
  int value_id_bound() const { return next_value_id_; }
  int node_id_bound() const { return next_node_id_; }
  /// All values: inputs, then literals, then node outputs.
  std::vector<Value*> values() const;
  /// Appends the names of all symbols in sizes, attributes, literals and nested graphs.
  void collect_symbols(std::vector<std::string>& names) const;

  /// A deep copy. `map`, if given, receives the new value for each old one.
  std::unique_ptr<Graph> clone(std::unordered_map<const Value*, Value*>* map = nullptr) const;

  /// Copies the nodes of `body` to the insertion point, with its inputs bound to `arguments`.
  /// Returns the values of its outputs.
  std::vector<Value*> inline_graph(const Graph& body, const std::vector<Value*>& arguments);

  /// Scoped insertion point: new nodes go before `before` (null: the end), in its region.
  class Inserting {
   public:
    Inserting(Graph& graph, Node* before);
    ~Inserting();
    Inserting(const Inserting&) = delete;
    Inserting& operator=(const Inserting&) = delete;

   private:
    Graph& graph_;
    Node* saved_;
    Origin saved_origin_;
    Region saved_region_;
  };

  /// Origin, region and tag of new nodes.
  Origin current_origin;
  Region current_region = Region::Forward;
  std::string current_tag;

 private:
  Value* new_value();
  std::string unique_name(std::string_view base);
  void add_use(Value* value, Use use);
  void remove_use(Value* value, Use use);

  NodeList nodes_;
  std::vector<std::unique_ptr<Value>> values_;  // indexed by id; null once erased
  std::vector<GraphInput> inputs_;
  std::vector<GraphOutput> outputs_;
  std::vector<Value*> literals_;
  std::unordered_map<std::string, int> names_;
  Node* before_ = nullptr;
  int next_value_id_ = 0;
  int next_node_id_ = 0;
};

}  // namespace ortmodule
