#include "ir/packed_graph.h"

#include <string_view>
#include <unordered_map>
#include <utility>

#include "base/byte_pack.h"
#include "base/error.h"

namespace ortmodule {
namespace {

class GraphPacker : private ByteWriter {
 public:
  GraphPacker(std::vector<DimExpr>& expressions, std::vector<std::shared_ptr<const Graph>>& bodies)
      : expressions_(expressions), bodies_(bodies) {}

  void add(const Graph& graph) {
    text(graph.name);
    number(graph.inputs().size());
    for (const GraphInput& input : graph.inputs()) {
      value(*input.value);
      byte(input.kind);
      byte(input.requires_grad);
      integer(input.index);
    }
    number(graph.literals().size());
    for (const Value* literal : graph.literals()) {
      place(*literal);
      byte(literal->dtype);
      scalar(literal->literal());
    }
    number(graph.node_count());
    for (const auto& each : graph.nodes()) node(*each);
    number(graph.outputs().size());
    for (const GraphOutput& output : graph.outputs()) {
      use(output.value);
      byte(output.kind);
      integer(output.index);
    }
  }

  using ByteWriter::bytes;

 private:
  // Twice a number, or twice the place of an expression and 1.
  void size(const DimExpr& dim) {
    if (dim.is_constant() && dim.value() >= 0 && dim.value() < (int64_t{1} << 62))
      return number(static_cast<uint64_t>(dim.value()) << 1);
    const auto [known, is_new] =
        places_of_expressions_.try_emplace(dim.text(), expressions_.size());
    if (is_new) expressions_.push_back(dim);
    number(known->second << 1 | 1);
  }

  void sizes(const Dims& dims) {
    number(dims.size());
    for (const DimExpr& dim : dims) size(dim);
  }

  void scalar(const Scalar& scalar) {
    byte(scalar.index());
    if (const auto* number = std::get_if<double>(&scalar))
      real(*number);
    else
      size(std::get<DimExpr>(scalar));
  }

  void place(const Value& value) { places_.try_emplace(&value, places_.size() + 1); }

  // 0 for an absent value.
  void use(const Value* value) { number(value ? places_.at(value) : 0); }

  void value(const Value& value) {
    place(value);
    text(value.name);
    byte(value.dtype);
    sizes(value.dims);
  }

  void attribute(const Attr& attr) {
    byte(attr.index());
    struct Visitor {
      GraphPacker& to;
      void operator()(const DimExpr& dim) const { to.size(dim); }
      void operator()(const Dims& dims) const { to.sizes(dims); }
      void operator()(double number) const { to.real(number); }
      void operator()(const std::vector<double>& numbers) const {
        to.number(numbers.size());
        for (double number : numbers) to.real(number);
      }
      void operator()(const std::string& text) const { to.text(text); }
      void operator()(DType dtype) const { to.byte(dtype); }
      void operator()(const std::shared_ptr<const Graph>& body) const {
        to.number(to.bodies_.size());
        to.bodies_.push_back(body);
      }
    };
    std::visit(Visitor{*this}, attr);
  }

  void node(const Node& node) {
    text(node.op);
    text(node.origin.module);
    text(node.origin.source);
    text(node.tag);
    byte(node.region);
    number(node.attrs.entries().size());
    for (const auto& [name, attr] : node.attrs.entries()) {
      text(name);
      attribute(attr);
    }
    number(node.inputs().size());
    for (const Value* input : node.inputs()) use(input);
    number(node.outputs().size());
    for (const Value* output : node.outputs()) value(*output);
  }

  std::vector<DimExpr>& expressions_;
  std::vector<std::shared_ptr<const Graph>>& bodies_;
  std::unordered_map<std::string, uint64_t> places_of_expressions_;
  std::pmr::unordered_map<const Value*, uint64_t> places_{&memory()};
};

/// Reads what GraphPacker wrote.
class GraphUnpacker : private ByteReader {
 public:
  GraphUnpacker(std::string_view bytes, const std::vector<DimExpr>& expressions,
                const std::vector<std::shared_ptr<const Graph>>& bodies)
      : ByteReader(bytes), expressions_(expressions), bodies_(bodies) {}

  std::unique_ptr<Graph> run() {
    graph_ = std::make_unique<Graph>();
    graph_->name = text();
    for (uint64_t count = number(); count > 0; --count) input();
    for (uint64_t count = number(); count > 0; --count) {
      const auto dtype = byte<DType>();
      values_.push_back(graph_->literal(scalar(), dtype));
    }
    for (uint64_t count = number(); count > 0; --count) node();
    for (uint64_t count = number(); count > 0; --count) {
      Value* const value = used();
      const auto kind = byte<OutputKind>();
      graph_->add_output(value, kind, static_cast<int>(integer()));
    }
    ORTM_ASSERT(at_end(), "a packed graph has bytes behind its end");
    return std::move(graph_);
  }

 private:
  DimExpr size() {
    const uint64_t bits = number();
    return bits & 1 ? expressions_[bits >> 1] : DimExpr(static_cast<int64_t>(bits >> 1));
  }

  Dims sizes() {
    Dims dims(number());
    for (DimExpr& dim : dims) dim = size();
    return dims;
  }

  Scalar scalar() {
    if (byte<size_t>() == 0) return real();
    return size();
  }

  Value* used() {
    const uint64_t place = number();
    return place > 0 ? values_[place - 1] : nullptr;
  }

  void input() {
    const std::string_view name = text();
    const auto dtype = byte<DType>();
    Dims dims = sizes();
    const auto kind = byte<InputKind>();
    const auto requires_grad = byte<bool>();
    const auto index = static_cast<int>(integer());
    values_.push_back(graph_->add_input(name, dtype, std::move(dims), kind, requires_grad, index));
    values_.back()->name = name;
  }

  Attr attribute() {
    switch (byte<size_t>()) {
      case 0: return size();
      case 1: return sizes();
      case 2: return real();
      case 3: {
        std::vector<double> numbers(number());
        for (double& each : numbers) each = real();
        return numbers;
      }
      case 4: return std::string(text());
      case 5: return byte<DType>();
      default: return bodies_[number()];
    }
  }

  void node() {
    const std::string_view op = text();
    graph_->current_origin.module = text();
    graph_->current_origin.source = text();
    graph_->current_tag = text();
    graph_->current_region = byte<Region>();
    Attrs attrs;
    for (uint64_t count = number(); count > 0; --count) {
      const std::string_view name = text();
      attrs.set(name, attribute());
    }
    std::vector<Value*> inputs(number());
    for (Value*& input : inputs) input = used();
    const size_t outputs = number();
    const Node* const made = graph_->add_node(op, std::move(inputs), outputs, std::move(attrs));
    for (Value* output : made->outputs()) {
      output->name = text();
      output->dtype = byte<DType>();
      output->dims = sizes();
      values_.push_back(output);
    }
  }

  const std::vector<DimExpr>& expressions_;
  const std::vector<std::shared_ptr<const Graph>>& bodies_;
  std::unique_ptr<Graph> graph_;
  std::vector<Value*> values_;
};

}  // namespace

PackedGraph::PackedGraph(const Graph& graph) {
  GraphPacker packer(expressions_, bodies_);
  packer.add(graph);
  bytes_ = PackedBytes(packer.bytes());
  expressions_.shrink_to_fit();
  bodies_.shrink_to_fit();
}

std::unique_ptr<Graph> PackedGraph::unpacked() const {
  const std::string bytes = bytes_.unpacked();
  return GraphUnpacker(bytes, expressions_, bodies_).run();
}

int64_t PackedGraph::size_bytes() const {
  return static_cast<int64_t>(bytes_.size_bytes() + expressions_.capacity() * sizeof(DimExpr) +
                              bodies_.capacity() * sizeof(bodies_[0]));
}

}  // namespace ortmodule
