#include "importer/importer.h"

#include <algorithm>
#include <cctype>
#include <cstring>
#include <set>

#include "base/element_value.h"
#include "base/error.h"
#include "importer/check_declarations.h"
#include "importer/found_node.h"
#include "importer/missing_operator.h"
#include "onnx/onnx_builder.h"
#include "onnx/onnx_types.h"
#include "ops/emit.h"
#include "ops/torch_call.h"

namespace ortmodule {

namespace {

Dims as_dims(const std::vector<int64_t>& sizes) { return {sizes.begin(), sizes.end()}; }

}  // namespace

std::string symbol_name(const std::string& text) {
  std::string name;
  for (char c : text) name += std::isalnum(static_cast<unsigned char>(c)) || c == '_' ? c : '_';
  if (name.empty() || std::isdigit(static_cast<unsigned char>(name.front()))) name = "d" + name;
  return name;
}

// A node whose outputs are known, and are made as tensors only if something reads them.
struct PendingNode {
  const OnnxNode* node = nullptr;
  std::shared_ptr<const OnnxNode> owned;  // with the attributes of a function's call
  int64_t opset = 1;
  const OnnxRow* row = nullptr;
  std::vector<ImportedRef> operands;
  std::vector<std::weak_ptr<Imported>> outputs;
};

namespace {

class NodeOperands : public OnnxOperands {
 public:
  NodeOperands(Importer& importer, const std::vector<ImportedRef>& operands)
      : importer_(importer), operands_(operands) {}

  size_t count() const override { return operands_.size(); }
  bool has(size_t i) const override { return i < operands_.size() && operands_[i]; }
  DType dtype(size_t i) override { return plain(i).dtype; }
  Dims dims(size_t i) override {
    const Imported& value = plain(i);
    if (value.input < 0) importer_.fix_counts(value.counted);
    return value.dims;
  }
  Value* tensor(size_t i) override { return importer_.tensor_of(plain(i)); }
  const KnownValue* known(size_t i, bool required) override {
    Imported& value = plain(i);
    const KnownValue* known = importer_.known_of(value, required);
    if (known && known->elements.empty()) importer_.fix_counts(value.counted);
    if (known) counted_.insert(value.counted.begin(), value.counted.end());
    return known;
  }
  /// The inputs on whose number of elements the contents depend that the rule asked for.
  const std::set<size_t>& counted() const { return counted_; }
  bool is_input_content(const KnownValue& value) override {
    return importer_.is_input_content(value);
  }
  Value* constant(const KnownValue& value) override { return importer_.tensor_of_known(value); }
  Value* weight(const OnnxTensor& tensor) override { return importer_.bind_weight(tensor); }
  const OnnxTensor* weight_of(const Value& tensor) const override {
    return importer_.weight_of(tensor);
  }
  DimExpr place(const DimExpr& number) override { return importer_.place(number); }
  OnnxMeaning meaning(size_t i) override { return operands_[i]->meaning; }
  int64_t text_number(const std::string& text) override { return importer_.text_number(text); }

 private:
  Imported& plain(size_t i) {
    Imported& value = *operands_[i];
    if (value.sequence) throw Refused(str("operand ", i, " must be a tensor, but is a sequence"));
    if (value.is_absent) throw Refused(str("operand ", i, " must be a tensor, but is empty"));
    return value;
  }

  Importer& importer_;
  const std::vector<ImportedRef>& operands_;
  std::set<size_t> counted_;
};

}  // namespace

std::string node_title(const OnnxNode& node) {
  const std::string op = node.domain.empty() ? node.op : node.domain + "." + node.op;
  const std::string name = !node.name.empty()      ? node.name
                           : !node.outputs.empty() ? node.outputs.front()
                                                   : "";
  return str(op, " '", name, "'");
}

// ---- scopes ------------------------------------------------------------------------------------

ImportedRef ImportScope::find(const std::string& name) const {
  for (const ImportScope* scope = this; scope; scope = scope->outer) {
    auto known = scope->names.find(name);
    if (known != scope->names.end()) return known->second;
  }
  return nullptr;
}

int64_t ImportScope::opset(std::string_view domain) const {
  for (const OnnxOpset& opset : *opsets)
    if (opset.domain == domain) return opset.version;
  return last_opset(domain);
}

void ImportScope::declare(const OnnxGraph& graph) {
  for (const OnnxValue& value : graph.values) declared.emplace(value.name, &value.type);
}

// ---- inputs ------------------------------------------------------------------------------------

Importer::Importer(const OnnxModel& model, const ImportRequest& request)
    : model_(model), request_(request), sizes_(SymbolValues()) {
  for (const OnnxFunction& function : model.functions) functions_.emplace(function.name, &function);
  result_.piece.graph = std::make_unique<Graph>();
  graph().name = symbol_name(model.graph.name.empty() ? "graph" : model.graph.name);
}

// The output as its graph declares it; without a type where that says nothing of it.
static OnnxValue declared_value(const ModelPart& part, const std::string& name) {
  const auto found = std::ranges::find(part.graph->outputs, name, &OnnxValue::name);
  return found == part.graph->outputs.end() ? OnnxValue{name, {}} : *found;
}

ImportedModel Importer::run() {
  const ModelPart whole = request_.part ? ModelPart() : whole_model(model_);
  const ModelPart& part = request_.part ? *request_.part : whole;
  ImportScope scope;
  scope.opsets = part.opsets.get();
  scope.attrs = part.attrs.get();
  scope.declare(*part.graph);
  add_initializers(*part.graph, scope);
  if (request_.part)
    add_part_inputs(part, scope);
  else
    add_inputs(scope);  // some of them in place of initializers
  import_part(part, scope);
  if (!result_.cut)
    for (const std::string& output : part.outputs) add_output(declared_value(part, output), scope);
  if (!failures_.empty()) throw_failures();
  keep_used_contents();
  std::vector<BoundInput> tensors;
  for (size_t i = 0; i < graph().inputs().size(); ++i)
    tensors.push_back({BoundInput::Kind::Tensor, static_cast<int>(i), ""});
  for (const ContentSymbol& content : result_.contents)
    result_.piece.arguments.push_back({BoundInput::Kind::Symbol, -1, content.symbol});
  result_.piece.arguments.insert(result_.piece.arguments.end(), tensors.begin(), tensors.end());
  result_.guards = sizes_.guards();
  return std::move(result_);
}

DimExpr Importer::input_dim(const std::string& input, size_t index, size_t axis,
                            const OnnxType& type) {
  const int64_t size = request_.inputs[index].sizes.at(axis);
  std::string text = str(input, ".", axis);
  if (type.dims && axis < type.dims->size()) {
    const OnnxDim& dim = (*type.dims)[axis];
    if (const auto* fixed = std::get_if<int64_t>(&dim); fixed && *fixed >= 0) return *fixed;
    if (const auto* name = std::get_if<std::string>(&dim); name && !name->empty()) {
      auto fixed = request_.fixed_sizes.find(*name);
      if (fixed != request_.fixed_sizes.end()) return fixed->second;
      // Files use a name for sizes that differ, too: those get a symbol of their own.
      auto [known, added] = named_sizes_.emplace(symbol_name(*name), size);
      if (known->second == size) text = *name;
    }
  }
  if (auto axes = request_.fixed_axes.find(input); axes != request_.fixed_axes.end())
    if (auto fixed = axes->second.find(axis); fixed != axes->second.end()) return fixed->second;
  depends_on_call_ = true;
  std::string symbol = symbol_name(text);
  while (!named_sizes_.emplace(symbol, size).second && named_sizes_.at(symbol) != size)
    symbol += "_";
  sizes_.add_hint(symbol, size);
  return DimExpr::symbol(symbol);
}

ImportedRef Importer::add_input_tensor(const std::string& name, size_t index,
                                       const OnnxType& type) {
  const ImportInput& given = request_.inputs[index];
  Dims symbolic, dims;
  for (size_t axis = 0; axis < given.sizes.size(); ++axis) {
    symbolic.push_back(input_dim(name, index, axis, type));
    // Sizes 0 and 1 are part of the graph: whether a size broadcasts must be known.
    const DimExpr& dim = symbolic.back();
    if (given.sizes.at(axis) <= 1)
      dims.push_back(sizes_.fix(dim));
    else if (sizes_.at_most(2, dim))
      dims.push_back(dim);
  }
  auto value = std::make_shared<Imported>();
  value->dtype = given.dtype;
  value->dims = dims;
  value->input = static_cast<int>(index);
  if (given.texts) value->meaning = OnnxMeaning::Texts;
  value->tensor = graph().add_input(name, given.dtype, dims);
  result_.input_dims.push_back(std::move(symbolic));
  return value;
}

void Importer::add_inputs(ImportScope& scope) {
  std::vector<const OnnxValue*> inputs = called_inputs(model_.graph);
  const size_t called = inputs.size();
  const std::vector<const OnnxValue*> overridable = overridable_inputs(model_);
  inputs.insert(inputs.end(), overridable.begin(), overridable.end());
  ORTM_CHECK(request_.forms.size() >= called && request_.forms.size() <= inputs.size(),
             "[import] there must be ", called, " inputs, but found ", request_.forms.size());
  for (size_t i = 0; i < request_.forms.size(); ++i) {
    if (i >= called && request_.forms[i].kind == ValueForm::Kind::Absent) continue;
    scope.names[inputs[i]->name] = add_input(request_.forms[i], inputs[i]->name, inputs[i]->type);
  }
}

void Importer::add_part_inputs(const ModelPart& part, ImportScope& scope) {
  ORTM_ASSERT(request_.forms.size() == part.inputs.size(), "a part of a model has other inputs");
  for (const auto& [name, tensor] : part.constants) scope.names[name] = of_constant(tensor);
  for (size_t i = 0; i < part.inputs.size(); ++i)
    scope.names[part.inputs[i]] = add_input(request_.forms[i], part.inputs[i], {});
}

ImportedRef Importer::add_input(const ValueForm& form, const std::string& name,
                                const OnnxType& type) {
  std::vector<ImportedRef> tensors;
  const bool one = form.kind == ValueForm::Kind::Tensor;
  for (size_t k = 0; k < form.count; ++k)
    tensors.push_back(
        add_input_tensor(one ? name : str(name, ".", k), form.first + k, one ? type : OnnxType()));
  if (one) return tensors.at(0);
  ImportedRef value = std::make_shared<Imported>();
  value->is_absent = form.kind == ValueForm::Kind::Absent;
  if (!value->is_absent) value = of_sequence(std::move(tensors));
  if (form.kind == ValueForm::Kind::Map) value->meaning = OnnxMeaning::Maps;
  return value;
}

void Importer::add_initializers(const OnnxGraph& model_graph, ImportScope& scope) {
  for (const OnnxInitializer& initializer : model_graph.initializers)
    scope.names[initializer.name] = of_constant(initializer.tensor);
}

// ---- values ------------------------------------------------------------------------------------

ImportedRef Importer::of_tensor(Value* tensor) {
  auto value = std::make_shared<Imported>();
  value->tensor = tensor;
  value->dtype = tensor->dtype;
  value->dims = tensor->dims;
  return value;
}

ImportedRef Importer::of_known(KnownValue known) {
  auto value = std::make_shared<Imported>();
  value->dtype = known.dtype;
  value->dims = as_dims(known.dims);
  value->known = std::move(known);
  return value;
}

ImportedRef Importer::of_sequence(std::vector<ImportedRef> elements) {
  auto value = std::make_shared<Imported>();
  value->sequence = std::move(elements);
  return value;
}

Value* Importer::tensor_of(Imported& value) {
  if (value.tensor) return value.tensor;
  if (value.sequence || value.is_absent)
    throw Refused("an operand must be a tensor, but is a sequence or an empty optional");
  if (value.constant) {
    value.tensor = bind_weight(*value.constant);
  } else if (value.pending && value.pending->row->convert && is_input_content(*value.known)) {
    // What is computed from an input stays so: its content must not become part of the graph.
    convert_pending(*value.pending);
  } else {
    ORTM_ASSERT(value.known, "an imported value without content");
    value.tensor = tensor_of_known(*value.known);
  }
  return value.tensor;
}

const KnownValue* Importer::known_of(Imported& value, bool required) {
  if (value.meaning != OnnxMeaning::Numbers) return nullptr;
  if (!value.known && value.constant) value.known = known_content(*value.constant);
  if (!value.known && value.input >= 0) {
    value.known = input_content(value, required);
    if (value.known) value.counted = {static_cast<size_t>(value.input)};
  }
  return value.known ? &*value.known : nullptr;
}

Value* Importer::bind_weight(const OnnxTensor& tensor) {
  if (tensor.dtype == DType::Undefined)
    throw Unsupported(str("it reads a constant of type ", onnx_type_name(tensor.element_type),
                          ", which the engine lacks"));
  Value*& known = bound_[tensor.bytes.size() ? tensor.bytes.data() : nullptr];
  if (known && known->dtype == tensor.dtype && known->dims == as_dims(tensor.dims) &&
      tensor.bytes.size())
    return known;
  known = graph().add_input(str("weight_", result_.weights.size()), tensor.dtype,
                            as_dims(tensor.dims), InputKind::Constant);
  result_.weights.push_back(tensor);
  return known;
}

const OnnxTensor* Importer::weight_of(const Value& tensor) const {
  size_t weight = 0;
  for (const GraphInput& input : result_.piece.graph->inputs()) {
    if (input.kind != InputKind::Constant) continue;
    if (input.value == &tensor) return &result_.weights.at(weight);
    ++weight;
  }
  return nullptr;
}

Value* Importer::tensor_of_known(const KnownValue& known) {
  if (known.is_constant()) {
    std::string bytes;
    for (const KnownNumber& number : known.elements) {
      if (number.is_integer() && known.dtype == DType::Int64) {
        const int64_t value = number.numerator().value();
        bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
      } else {
        bytes += encode_scalar(number.value(), known.dtype);
      }
    }
    return bind_weight({known.dtype, known.dims, std::move(bytes)});
  }
  Values elements;
  for (const KnownNumber& number : known.elements) {
    const Attr value = number.is_real() ? Attr(number.real()) : Attr(number.numerator());
    Value* element = emit(graph(), "ConstantOfShape", {},
                          {{"value", value}, {"shape", Dims{1}}, {"dtype", known.dtype}});
    if (number.denominator() != 1)
      element =
          emit(graph(), "Div",
               {element, graph().literal(static_cast<double>(number.denominator()), known.dtype)});
    elements.push_back(element);
  }
  Value* joined =
      elements.size() == 1 ? elements.front() : emit(graph(), "Concat", elements, {{"axis", 0}});
  const Dims dims = as_dims(known.dims);
  return joined->dims == dims ? joined : emit(graph(), "Reshape", {joined}, {{"shape", dims}});
}

// ---- nodes -------------------------------------------------------------------------------------

void Importer::import_nodes(const std::vector<OnnxNode>& nodes, ImportScope& scope) {
  for (const OnnxNode& node : nodes) import_node(node, scope);
}

void Importer::import_node(const OnnxNode& node, ImportScope& scope) {
  std::vector<ImportedRef> operands, outputs;
  bool operand_failed = false;
  if (++imported_nodes_ > kMostNodes)
    throw Error(str("[import] a model must have at most ", kMostNodes,
                    " nodes after its functions ",
                    "are expanded and its loops unrolled, but found more"));
  graph().current_origin = {node.name, node_title(node)};
  try {
    for (const std::string& name : node.inputs) {
      operands.push_back(name.empty() ? nullptr : scope.find(name));
      if (!name.empty() && !operands.back())
        throw Refused(str("its input '", name, "' must be computed before it"));
      operand_failed = operand_failed || (operands.back() && operands.back()->failed);
    }
    while (!operands.empty() && !operands.back()) operands.pop_back();
    if (!operand_failed) outputs = values_of(node, scope, operands);
  } catch (DataNeeded& needed) {
    needed.is_inside = needed.is_inside || scope.depth > 0;
    throw;
  } catch (const Unsupported& unsupported) {
    fail(node, unsupported.what(), Fault::Unsupported);
  } catch (const Refused& refused) {
    fail(node, with_found(refused.what(), node, operands));
  } catch (const Error& error) {
    fail(node, with_found(error.what(), node, operands));
  } catch (const std::exception& error) {  // an operand or attribute that no rule expects
    fail(node, str("its operands or attributes do not fit the operator (", error.what(), ")"));
  }
  auto failed = std::make_shared<Imported>();
  failed->failed = true;
  for (size_t i = 0; i < node.outputs.size(); ++i) {
    const std::string& name = node.outputs[i];
    if (name.empty()) continue;
    const ImportedRef& value = i < outputs.size() && outputs[i] ? outputs[i] : failed;
    check_value(node, name, *value, scope);
    if (!scope.names.emplace(name, value).second)
      fail(node, str("its output '", name, "' must not have the name of another value"));
  }
}

void Importer::check_value(const OnnxNode& node, const std::string& name, const Imported& value,
                           const ImportScope& scope) {
  const auto declared = scope.declared.find(name);
  const bool is_constant = node.domain.empty() && node.op == "Constant";  // its type goes first
  if (declared == scope.declared.end() || value.failed || is_constant) return;
  try {
    check_type(*declared->second, value);
  } catch (const Refused& refused) {
    fail(node, str("its output '", name, "': ", refused.what()));
  }
}

std::vector<ImportedRef> Importer::values_of(const OnnxNode& node, ImportScope& scope,
                                             const std::vector<ImportedRef>& operands) {
  std::shared_ptr<const OnnxNode> owned = with_attrs(node, scope.attrs);
  const OnnxNode& used = owned ? *owned : node;
  if (const OnnxFunction* function = find_function(used))
    return call_function(*function, used, scope, operands);
  const int64_t opset = scope.opset(used.domain);
  if (const ControlRow* control = find_control_row(used.domain, used.op))
    return control->import({*this, used, scope, operands, opset});
  const OnnxRow* row = find_onnx_row(used.domain, used.op, opset);
  if (!row) refuse_operator(used, opset);
  auto pending = std::make_shared<PendingNode>(PendingNode{&used, owned, opset, row, operands, {}});
  return convert(std::move(pending));
}

std::vector<ImportedRef> Importer::convert(std::shared_ptr<PendingNode> pending) {
  NodeOperands operands(*this, pending->operands);
  OnnxCall call(graph(), *pending->node, pending->opset, operands, sizes_);
  const bool texts = check_meanings(call, *pending->row, pending->operands);
  std::vector<ImportedRef> results;
  if (pending->row->known) {
    if (auto contents = pending->row->known(call)) {
      for (KnownValue& content : *contents) {
        std::vector<size_t> counted(operands.counted().begin(), operands.counted().end());
        fix_counts(without_content(counted, content));
        results.push_back(of_known(std::move(content)));
        results.back()->pending = pending;
        results.back()->counted = std::move(counted);
        pending->outputs.push_back(results.back());
      }
      return results;
    }
  }
  if (pending->row->sized) {
    DataNeeded needed("its results have as many elements as its data says");
    needed.sized = pending->row->sized(call);
    throw needed;
  }
  if (!pending->row->convert)
    call.unsupported("its operands must be constants or sizes, but they are computed from data");
  for (Value* value : pending->row->convert(call)) {
    results.push_back(value ? of_tensor(value) : nullptr);
    if (value && texts && pending->row->texts.moved) results.back()->meaning = OnnxMeaning::Texts;
  }
  for (const OnnxCall::Meaning& each : call.meanings()) {
    results.at(each.output)->meaning = each.meaning;
    results.at(each.output)->keys = each.keys;
  }
  return results;
}

void Importer::convert_pending(PendingNode& pending) {
  NodeOperands operands(*this, pending.operands);
  OnnxCall call(graph(), *pending.node, pending.opset, operands, sizes_);
  const Values values = pending.row->convert(call);
  for (size_t i = 0; i < values.size() && i < pending.outputs.size(); ++i)
    if (const ImportedRef output = pending.outputs[i].lock()) output->tensor = values.at(i);
}

std::vector<ImportedRef> Importer::import_subgraph(const OnnxGraph& subgraph,
                                                   const ImportScope& outer,
                                                   const std::vector<ImportedRef>& inputs) {
  if (outer.depth >= kMostDepth)
    throw Unsupported(str("subgraphs must be nested at most ", kMostDepth, " deep"));
  ImportScope inner;
  inner.outer = &outer;
  inner.opsets = outer.opsets;
  inner.attrs = outer.attrs;
  inner.depth = outer.depth + 1;
  if (inputs.size() > subgraph.inputs.size())
    throw Refused(str("its subgraph must have ", inputs.size(), " inputs, but found ",
                      subgraph.inputs.size()));
  for (size_t i = 0; i < inputs.size(); ++i) inner.names[subgraph.inputs[i].name] = inputs[i];
  inner.declare(subgraph);
  add_initializers(subgraph, inner);
  import_nodes(subgraph.nodes, inner);
  std::vector<ImportedRef> results;
  for (const OnnxValue& output : subgraph.outputs) {
    results.push_back(inner.find(output.name));
    if (!results.back())
      throw Refused(str("its subgraph must compute its output '", output.name, "'"));
    check_type(output.type, *results.back());
  }
  return results;
}

void Importer::count_iteration(const OnnxGraph& body) {
  imported_nodes_ += body.nodes.size();
  if (imported_nodes_ > kMostNodes)
    throw Unsupported("the loop must be shorter: its iterations are nodes of the graph");
}

void Importer::add_output_tensor(Value* tensor) {
  const int index = static_cast<int>(graph().outputs().size());
  graph().add_output(tensor, OutputKind::Output, index);
  Dims strides(tensor->rank());
  DimExpr stride = 1;
  for (size_t axis = tensor->rank(); axis-- > 0;) {
    strides.at(axis) = stride;
    stride = stride * tensor->dims.at(axis);
  }
  result_.piece.output_strides.push_back(std::move(strides));
  result_.piece.results.push_back({BoundOutput::Kind::Tensor, index, {}, -1});
}

void Importer::add_output(const OnnxValue& output, const ImportScope& scope) {
  const ImportedRef value = scope.find(output.name);
  ORTM_CHECK(value, "[import] output '", output.name, "' must be computed by a node of the graph");
  OnnxNode node;
  node.op = "output";
  node.name = output.name;
  if (value->failed) {  // also where no node failed, but one has fewer results than it names
    if (failures_.empty()) fail(node, "the node that names it must compute it, but does not");
    return;
  }
  ValueForm form{ValueForm::Kind::Tensor, graph().outputs().size(), 1};
  try {
    if (value->is_absent) {
      form = {ValueForm::Kind::Absent, form.first, 0};
    } else if (value->sequence) {
      form = {ValueForm::Kind::Sequence, form.first, value->sequence->size()};
      for (const ImportedRef& element : *value->sequence) add_output_tensor(tensor_of(*element));
    } else {
      add_output_tensor(tensor_of(*value));
    }
    result_.outputs.push_back(form);
    result_.meanings.push_back({value->meaning, value->keys});
    check_declared(output, *value);
  } catch (const Refused& refused) {
    fail(node, refused);
  }
}

void Importer::fail(const OnnxNode& node, const std::string& why, Fault fault) {
  failures_.push_back({node_title(node), why, fault});
}

void Importer::fail(const OnnxNode& node, const Refused& refused) {
  const bool unsupported = dynamic_cast<const Unsupported*>(&refused) != nullptr;
  fail(node, refused.what(), unsupported ? Fault::Unsupported : Fault::Invalid);
}

void Importer::throw_failures() const {
  const bool unsupported = std::ranges::any_of(
      failures_, [](const Failure& each) { return each.fault == Fault::Unsupported; });
  const std::string_view rule =
      unsupported        ? "[import] every node must be one that the engine can run"
      : depends_on_call_ ? "[feeds] every node must be valid for the types and sizes of the feeds"
                         : "[model] every node must be valid";
  std::string text = str(rule, ", but found ", failures_.size(),
                         failures_.size() == 1 ? " that is" : " that are", " not:");
  constexpr size_t kMostListed = 20;
  for (size_t i = 0; i < failures_.size() && i < kMostListed; ++i)
    text += str("\n  - ", failures_[i].node, ": ", failures_[i].why);
  if (failures_.size() > kMostListed)
    text += str("\n  - and ", failures_.size() - kMostListed, " more");
  throw Error(text);
}

}  // namespace ortmodule
