#include <cctype>
#include <optional>
#include <unordered_map>

#include "base/error.h"
#include "ir/text.h"
#include "ir/text_cursor.h"

namespace ortmodule {
namespace {

DimExpr parse_dim(const TextCursor& cursor, std::string_view text, size_t at) {
  try {
    return DimExpr::parse(text);
  } catch (const Error& error) {
    cursor.fail_at(at, error.what());
  }
}

bool is_dtype_name(std::string_view text) {
  for (int i = 0; i <= static_cast<int>(DType::UInt2); ++i) {
    const auto dtype = static_cast<DType>(i);
    if (text == name_of(dtype) || text == torch_name_of(dtype)) return true;
  }
  return false;
}

DType parse_dtype_at(TextCursor& cursor) {
  const size_t at = cursor.position();
  const std::string name = cursor.name("an element type");
  if (!is_dtype_name(name)) {
    cursor.set_position(at);
    cursor.fail("expected an element type such as f32");
  }
  return parse_dtype(name);
}

// "[batch,2*s + 1]"
Dims parse_dims(TextCursor& cursor) {
  Dims dims;
  cursor.expect("[");
  if (cursor.eat("]")) return dims;
  do {
    const size_t at = cursor.position();
    dims.push_back(parse_dim(cursor, cursor.raw_until(",]"), at));
  } while (cursor.eat(","));
  cursor.expect("]");
  return dims;
}

// An output of a node as written.
struct ResultText {
  std::string name;  // empty for `_`
  DType dtype = DType::Undefined;
  Dims dims;
};

// An operand as written; without name and scalar it is an absent one.
struct OperandText {
  size_t at = 0;
  std::string name;
  std::optional<Scalar> scalar;
  bool typed = false;
  DType dtype = DType::Undefined;
};

// An output of the graph as written.
struct OutputText {
  OutputKind kind = OutputKind::Output;
  int index = 0;
  OperandText value;
};

// Parses one graph; a nested graph has its own parser on the same cursor.
class GraphReader {
 public:
  explicit GraphReader(TextCursor& cursor) : cursor_(cursor), graph_(std::make_unique<Graph>()) {}

  std::unique_ptr<Graph> read() {
    if (cursor_.peek() != '(') graph_->name = cursor_.name("the graph's name");
    read_list([this] { read_input(); });
    cursor_.expect("=>");
    read_list([this] { read_output(); });
    cursor_.expect("{");
    while (!cursor_.eat("}")) {
      if (cursor_.eat(";")) continue;
      read_node();
    }
    for (const OutputText& output : outputs_)
      graph_->add_output(resolve(output.value, output.value.dtype), output.kind, output.index);
    return std::move(graph_);
  }

  /// One attribute value.
  static Attr read_attr(TextCursor& cursor) {
    const char c = cursor.peek();
    if (c == '"') return cursor.quoted();
    if (cursor.eat("@")) return "@" + cursor.name("a placeholder");
    if (c == '[') return read_list_attr(cursor);
    if (cursor.eat("{")) {
      std::shared_ptr<const Graph> graph;
      if (!cursor.eat("}")) {
        cursor.enter_graph();
        graph = GraphReader(cursor).read();
        cursor.leave_graph();
        cursor.expect("}");
      }
      return graph;
    }
    const size_t at = cursor.position();
    const std::string_view text = cursor.raw_until(",>");
    if (is_dtype_name(text)) return parse_dtype(text);
    double number = 0;
    if (read_number(text, &number)) return number;
    return parse_dim(cursor, text, at);
  }

 private:
  template <class ReadItem>
  void read_list(ReadItem read_item) {
    cursor_.expect("(");
    if (cursor_.eat(")")) return;
    do {
      read_item();
    } while (cursor_.eat(","));
    cursor_.expect(")");
  }

  void read_input() {
    const size_t at = cursor_.position();
    const std::string name = cursor_.name("an input's name");
    if (known_.count(name) > 0)
      cursor_.fail_at(at, str("an input's name must be new, but found '", name, "' again"));
    InputKind kind = InputKind::User;
    int index = -1;
    bool requires_grad = false;
    ResultText type;
    if (cursor_.eat(":")) {
      kind = read_input_kind();
      if (std::isdigit(static_cast<unsigned char>(cursor_.peek()))) index = cursor_.integer();
      requires_grad = cursor_.eat_word("grad");
      if (cursor_.at_word()) read_type(type);
    }
    Value* value = graph_->add_input(name, type.dtype, type.dims, kind, requires_grad, index);
    known_[name] = value;
  }

  InputKind read_input_kind() {
    if (cursor_.eat_word("param")) return InputKind::Parameter;
    if (cursor_.eat_word("buffer")) return InputKind::Buffer;
    if (cursor_.eat_word("const")) return InputKind::Constant;
    if (cursor_.eat_word("dy")) return InputKind::GradOutput;
    cursor_.eat_word("user");
    return InputKind::User;
  }

  void read_type(ResultText& output) {
    output.dtype = parse_dtype_at(cursor_);
    output.dims = parse_dims(cursor_);
  }

  void read_output() {
    OutputText output;
    if (cursor_.eat_word("mutate")) {
      output.kind = OutputKind::Mutation;
    } else if (cursor_.eat_word("grad")) {
      output.kind = OutputKind::Gradient;
    } else if (!cursor_.eat_word("out")) {
      output.index = plain_outputs_++;
      output.value = read_operand();
      outputs_.push_back(std::move(output));
      return;
    }
    output.index = cursor_.integer();
    cursor_.expect(":");
    if (output.kind == OutputKind::Output) ++plain_outputs_;
    output.value = read_operand();
    outputs_.push_back(std::move(output));
  }

  // [backward:] [tag name:] a: f32[2], b = Op<attrs> (operands)
  void read_node() {
    graph_->current_region = Region::Forward;
    graph_->current_tag.clear();
    if (cursor_.eat_word("backward")) {
      cursor_.expect(":");
      graph_->current_region = Region::Backward;
    }
    if (cursor_.eat_word("tag")) {
      graph_->current_tag = cursor_.name("a tag");
      cursor_.expect(":");
    }
    cursor_.peek();
    const size_t at = cursor_.position();
    const std::vector<ResultText> results = read_results();
    const std::string op = cursor_.name("an operator");
    Attrs attrs;
    if (cursor_.peek() == '<') attrs = read_attrs();
    const std::vector<Value*> inputs = read_operands();
    if (cursor_.peek() == '<') attrs = read_attrs();
    Node* node = graph_->add_node(op, inputs, results.size(), std::move(attrs));
    name_results(*node, results, at);
  }

  std::vector<ResultText> read_results() {
    std::vector<ResultText> results;
    if (cursor_.eat("=")) return results;
    do {
      ResultText result;
      if (!cursor_.eat_word("_")) result.name = cursor_.name("an output's name");
      if (cursor_.eat(":")) read_type(result);
      results.push_back(std::move(result));
    } while (cursor_.eat(","));
    cursor_.expect("=");
    return results;
  }

  void name_results(Node& node, const std::vector<ResultText>& results, size_t at) {
    // Automatic names must not collide with those in the text.
    for (size_t i = 0; i < results.size(); ++i)
      if (!results[i].name.empty()) graph_->rename(node.output(i), str("%", node.id(), ".", i));
    for (size_t i = 0; i < results.size(); ++i) {
      Value* value = node.output(i);
      value->dtype = results[i].dtype;
      value->dims = results[i].dims;
      const std::string& name = results[i].name;
      if (name.empty()) continue;
      if (!known_.emplace(name, value).second)
        cursor_.fail_at(at, str("a value must be defined once, but found '", name, "' again"));
      graph_->rename(value, name);
    }
  }

  std::vector<Value*> read_operands() {
    std::vector<OperandText> texts;
    read_list([&] { texts.push_back(read_operand()); });
    std::vector<Value*> operands;
    for (const OperandText& text : texts)
      operands.push_back(text.scalar ? nullptr : resolve(text, DType::Undefined));
    const DType dtype = default_literal_dtype(operands);
    for (size_t i = 0; i < texts.size(); ++i)
      if (texts[i].scalar) operands[i] = resolve(texts[i], texts[i].typed ? texts[i].dtype : dtype);
    return operands;
  }

  Value* resolve(const OperandText& text, DType literal_dtype) {
    if (text.scalar) return graph_->literal(*text.scalar, literal_dtype);
    if (text.name.empty()) return nullptr;
    auto found = known_.find(text.name);
    if (found == known_.end())
      cursor_.fail_at(
          text.at, str("an operand must be defined before its use, but found '", text.name, "'"));
    return found->second;
  }

  OperandText read_operand() {
    OperandText operand;
    cursor_.peek();
    operand.at = cursor_.position();
    if (cursor_.eat_word("_")) return operand;
    operand.scalar = read_scalar();
    if (!operand.scalar) {
      operand.name = cursor_.name("an operand");
      if (operand.name.empty()) cursor_.fail_at(operand.at, "an operand's name must not be empty");
    } else if (cursor_.eat(":")) {
      operand.typed = true;
      operand.dtype = parse_dtype_at(cursor_);
    }
    return operand;
  }

  // A number or a size in braces, or nullopt if the operand is a name.
  std::optional<Scalar> read_scalar() {
    const char c = cursor_.peek();
    const size_t at = cursor_.position();
    if (cursor_.eat("{")) {
      const DimExpr dim = parse_dim(cursor_, cursor_.raw_until("}"), at + 1);
      cursor_.expect("}");
      return dim;
    }
    double value = 0;
    if (cursor_.eat_word("inf") || cursor_.eat_word("nan")) {
      read_number(c == 'i' ? "inf" : "nan", &value);
      return value;
    }
    if (!std::isdigit(static_cast<unsigned char>(c)) && c != '-' && c != '.') return std::nullopt;
    const std::string_view text = cursor_.raw_until(",):");
    if (read_number(text, &value)) return value;
    const DimExpr integer = parse_dim(cursor_, text, at);
    if (!integer.is_constant())
      cursor_.fail_at(at, str("a size as an operand must be in braces, but found '", text, "'"));
    return static_cast<double>(integer.value());
  }

  Attrs read_attrs() {
    Attrs attrs;
    cursor_.expect("<");
    if (cursor_.eat(">")) return attrs;
    do {
      cursor_.peek();
      const size_t at = cursor_.position();
      const std::string name = cursor_.name("an attribute's name");
      if (attrs.has(name))
        cursor_.fail_at(at, str("an attribute must be set once, but found '", name, "' again"));
      cursor_.expect("=");
      attrs.set(name, read_attr(cursor_));
    } while (cursor_.eat(","));
    cursor_.expect(">");
    return attrs;
  }

  static Attr read_list_attr(TextCursor& cursor) {
    cursor.expect("[");
    if (cursor.eat("]")) {
      if (!cursor.eat(":")) return Dims();
      parse_dtype_at(cursor);
      return std::vector<double>();
    }
    std::vector<std::pair<size_t, std::string_view>> items;
    bool floats = false;
    do {
      cursor.peek();
      const size_t at = cursor.position();
      items.emplace_back(at, cursor.raw_until(",]"));
      double number = 0;
      floats = floats || read_number(items.back().second, &number);
    } while (cursor.eat(","));
    cursor.expect("]");
    Dims dims;
    std::vector<double> numbers;
    for (const auto& [at, text] : items) {
      double number = 0;
      if (floats && read_number(text, &number)) {
        numbers.push_back(number);
      } else {
        dims.push_back(parse_dim(cursor, text, at));
        if (floats && !dims.back().is_constant())
          cursor.fail_at(at, str("a list of floats must hold numbers, but found '", text, "'"));
        if (floats) numbers.push_back(static_cast<double>(dims.back().value()));
      }
    }
    if (floats) return numbers;
    return dims;
  }

  TextCursor& cursor_;
  std::unique_ptr<Graph> graph_;
  std::unordered_map<std::string, Value*> known_;
  std::vector<OutputText> outputs_;  // resolved after the nodes that define them
  int plain_outputs_ = 0;
};

}  // namespace

std::unique_ptr<Graph> parse_graph(std::string_view text) {
  TextCursor cursor(text);
  std::unique_ptr<Graph> graph = GraphReader(cursor).read();
  if (!cursor.at_end()) cursor.fail("the text must end after the graph");
  graph->current_region = Region::Forward;
  graph->current_tag.clear();
  return graph;
}

Attr parse_attr(std::string_view text) {
  TextCursor cursor(text);
  Attr attr = GraphReader::read_attr(cursor);
  if (!cursor.at_end()) cursor.fail("the text must end after the attribute");
  return attr;
}

}  // namespace ortmodule
