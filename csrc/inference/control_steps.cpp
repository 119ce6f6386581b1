// Control flow on data: If, Loop, Scan, SequenceMap and functions whose nodes must be run before
// their sizes are known.
#include <algorithm>
#include <limits>
#include <utility>

#include "base/error.h"
#include "importer/loop_body.h"
#include "inference/copy_elements.h"
#include "inference/segmented_run.h"
#include "ops/known_value.h"

namespace ortmodule {
namespace {

class ControlStep {
 public:
  ControlStep(SegmentedRun& run, const Segment::Outcome& outcome, SegmentedRun::Values& values)
      : run_(run), outcome_(outcome), node_(outcome.cut->node), values_(values) {}

  void run() {
    std::vector<PassedValue> outputs = compute();
    for (size_t i = 0; i < node_.outputs.size() && i < outputs.size(); ++i)
      if (!node_.outputs[i].empty()) values_[node_.outputs[i]] = std::move(outputs[i]);
  }

 private:
  using Outputs = std::vector<PassedValue>;

  Outputs compute() {
    if (is_search(node_)) return run_search(run_, outcome_, values_);
    if (!node_.domain.empty()) return call();
    if (node_.op == "If") return branch();
    if (node_.op == "Loop") return loop();
    if (node_.op == "Scan") return scan();
    if (node_.op == "SequenceMap") return map();
    return call();
  }

  // --- operands
  bool has(size_t i) const { return i < node_.inputs.size() && !node_.inputs[i].empty(); }
  const PassedValue& operand(size_t i) const {
    const auto value = has(i) ? values_.find(node_.inputs[i]) : values_.end();
    ORTM_CHECK(value != values_.end(), "[run] ", node_.op, " '", node_.name, "' must have operand ",
               i);
    return value->second;
  }
  int64_t integer(const PassedValue& value, const char* what) const {
    const bool is_single = value.kind == ValueForm::Kind::Tensor && value.tensors.size() == 1 &&
                           element_count(value.tensors[0].view.sizes) == 1 &&
                           has_known_content(value.tensors[0].view.dtype);
    ORTM_CHECK(is_single, "[run] ", what, " of ", node_.op, " '", node_.name,
               "' must be one integer or bool");
    const HostTensorView& view = value.tensors[0].view;
    return integer_element(view.data, 0, view.dtype);
  }
  int64_t attr(std::string_view name, int64_t fallback) const {
    for (const auto& [key, value] : node_.attrs)
      if (const auto* number = std::get_if<int64_t>(&value); number && key == name) return *number;
    return fallback;
  }
  // Element i of a list of integers, 0 where it is shorter.
  int64_t attr_at(std::string_view name, size_t i) const {
    for (const auto& [key, value] : node_.attrs)
      if (const auto* list = std::get_if<std::vector<int64_t>>(&value); list && key == name)
        return i < list->size() ? (*list)[i] : 0;
    return 0;
  }

  // --- bodies
  Outputs run_body(size_t which, std::vector<PassedValue> inputs) {
    return ::ortmodule::run_body(run_, outcome_, values_, which, std::move(inputs));
  }
  const OnnxGraph& body_graph() const { return *outcome_.bodies.at(0)->part()->graph; }

  Outputs branch() { return run_body(integer(operand(0), "the condition") != 0 ? 0 : 1, {}); }

  Outputs call() {
    std::vector<PassedValue> inputs;
    for (size_t i = 0; i < node_.inputs.size(); ++i)
      if (has(i) && inputs.size() < outcome_.bodies.at(0)->part()->inputs.size())
        inputs.push_back(operand(i));
    return run_body(0, std::move(inputs));
  }

  // A scalar input of a loop's body, of the rank that the body declares.
  PassedValue body_scalar(size_t i, DType dtype, int64_t value) {
    const auto& dims = body_graph().inputs.at(i).type.dims;
    const Sizes sizes = dims && dims->size() == 1 ? Sizes{1} : Sizes{};
    return {ValueForm::Kind::Tensor, {run_.single(dtype, sizes, value)}};
  }

  Outputs loop() {
    const int64_t count =
        has(0) ? integer(operand(0), "the trip count") : std::numeric_limits<int64_t>::max();
    ORTM_CHECK(count <= kMostEndlessIterations || !keeps_condition(body_graph()),
               "[run] a loop must end: the body of Loop '", node_.name,
               "' keeps the condition, and the trip count is ", count);
    bool again = !has(1) || integer(operand(1), "the condition") != 0;
    Outputs state;
    for (size_t i = 2; i < node_.inputs.size(); ++i) state.push_back(operand(i));
    std::vector<std::vector<PassedTensor>> collected(body_graph().outputs.size() - 1 -
                                                     state.size());
    if (!again || count <= 0) try_types(1 + state.size(), state);
    for (int64_t i = 0; again && i < count; ++i) {
      run_.check_terminate(node_);
      std::vector<PassedValue> inputs{body_scalar(0, DType::Int64, i),
                                      body_scalar(1, DType::Bool, 1)};
      std::move(state.begin(), state.end(), std::back_inserter(inputs));
      Outputs outputs = run_body(0, std::move(inputs));
      again = integer(outputs.at(0), "the condition") != 0;
      collect(outputs, 1 + state.size(), collected);
      state.assign(
          std::make_move_iterator(outputs.begin() + 1),
          std::make_move_iterator(outputs.begin() + 1 + static_cast<std::ptrdiff_t>(state.size())));
    }
    const size_t carried = state.size();
    for (size_t k = 0; k < collected.size(); ++k)
      state.push_back(stacked(collected[k], 0, false, 1 + carried + k));
    return state;
  }

  void collect(const Outputs& outputs, size_t first,
               std::vector<std::vector<PassedTensor>>& collected) const {
    for (size_t k = 0; k < collected.size(); ++k) {
      const PassedValue& value = outputs.at(first + k);
      ORTM_CHECK(value.kind == ValueForm::Kind::Tensor, "[run] output ", first + k,
                 " of the body of ", node_.op, " '", node_.name, "' must be a tensor");
      collected[k].push_back(value.tensors.at(0));
    }
  }

  // Results of all iterations behind a new dimension `axis`.
  PassedValue stacked(std::vector<PassedTensor>& parts, int64_t axis, bool reversed,
                      size_t output) {
    const auto count = static_cast<int64_t>(parts.size());
    HostTensorView like = parts.empty() ? declared(output) : parts.front().view;
    const auto rank = static_cast<int64_t>(like.sizes.size());
    if (axis < 0) axis += rank + 1;
    ORTM_CHECK(axis >= 0 && axis <= rank, "[run] an axis of ", node_.op, " '", node_.name,
               "' must be within rank ", rank + 1, ", but found ", axis);
    Sizes sizes = like.sizes;
    sizes.insert(sizes.begin() + axis, count);
    PassedTensor whole = run_.allocate(like.dtype, sizes);
    whole.view.texts = like.texts;
    Sizes strides = contiguous_strides(sizes);
    const int64_t step = strides[static_cast<size_t>(axis)];
    strides.erase(strides.begin() + axis);
    const size_t bytes = size_of(like.dtype);
    for (int64_t i = 0; i < count; ++i) {
      PassedTensor& part = parts[static_cast<size_t>(reversed ? count - 1 - i : i)];
      ORTM_CHECK(part.view.dtype == like.dtype && part.view.sizes == like.sizes, "[run] output ",
                 output, " of the body of ", node_.op, " '", node_.name,
                 "' must have the same type and sizes in each iteration");
      auto* to = static_cast<char*>(const_cast<void*>(whole.view.data));  // NOLINT: its owner's
      copy_elements(like.sizes, bytes, part.view.data, part.view.strides,
                    to + static_cast<size_t>(i * step) * bytes, strides);
      part = PassedTensor();
    }
    return {ValueForm::Kind::Tensor, {std::move(whole)}};
  }

  bool is_declared(size_t output) const {
    const OnnxType& type = body_graph().outputs.at(output).type;
    return type.dtype != DType::Undefined && type.dims;
  }

  // Of a loop without an iteration whose body leaves types open: the outputs from `first` on of one
  // that only shows their types.
  void try_types(size_t first, const Outputs& state) {
    bool all = true;
    for (size_t k = first; k < body_graph().outputs.size(); ++k) all = all && is_declared(k);
    if (all) return;
    std::vector<PassedValue> inputs{body_scalar(0, DType::Int64, 0),
                                    body_scalar(1, DType::Bool, 1)};
    inputs.insert(inputs.end(), state.begin(), state.end());
    try {
      tried_ = run_body(0, std::move(inputs));
    } catch (const Error&) {  // declared() says what is missing
    }
  }

  // The type of an output of the body that was never computed; open sizes are 0.
  HostTensorView declared(size_t output) const {
    const OnnxType& type = body_graph().outputs.at(output).type;
    if (!is_declared(output) && output < tried_.size() && tried_[output].tensors.size() == 1) {
      const HostTensorView& tried = tried_[output].tensors[0].view;
      HostTensorView view{tried.dtype, tried.sizes, nullptr};
      view.texts = tried.texts;
      return view;
    }
    ORTM_CHECK(type.dtype != DType::Undefined && type.dims, "[run] output ", output,
               " of the body of ", node_.op, " '", node_.name,
               "' must have a type and a rank, as there was no iteration");
    HostTensorView view{type.dtype, {}, nullptr};
    for (const OnnxDim& dim : *type.dims) {
      const auto* size = std::get_if<int64_t>(&dim);
      view.sizes.push_back(size ? *size : 0);
    }
    return view;
  }

  // Element i along an axis, without it: a view.
  PassedValue slice(const PassedTensor& tensor, int64_t axis, int64_t i) const {
    PassedTensor part = tensor;
    HostTensorView& view = part.view;
    if (view.strides.empty()) view.strides = contiguous_strides(view.sizes);
    view.data = static_cast<const char*>(view.data) + i * view.strides[static_cast<size_t>(axis)] *
                                                          static_cast<int64_t>(size_of(view.dtype));
    view.sizes.erase(view.sizes.begin() + axis);
    view.strides.erase(view.strides.begin() + axis);
    return {ValueForm::Kind::Tensor, {std::move(part)}};
  }

  struct Scanned {
    PassedTensor tensor;
    int64_t axis = 0;
    bool backward = false;
  };

  // The scanned operands, and how many steps they have.
  std::vector<Scanned> scanned_operands(const Outputs& operands, size_t first,
                                        int64_t& count) const {
    std::vector<Scanned> scanned;
    for (size_t k = 0; first + k < operands.size(); ++k) {
      const PassedValue& value = operands[first + k];
      ORTM_CHECK(value.kind == ValueForm::Kind::Tensor, "[run] Scan '", node_.name,
                 "' must scan tensors");
      const auto rank = static_cast<int64_t>(value.tensors.at(0).view.sizes.size());
      int64_t axis = attr_at("scan_input_axes", k);
      if (axis < 0) axis += rank;
      ORTM_CHECK(axis >= 0 && axis < rank, "[run] an axis of Scan '", node_.name,
                 "' must be within rank ", rank, ", but found ", axis);
      const int64_t size = value.tensors[0].view.sizes[static_cast<size_t>(axis)];
      ORTM_CHECK(k == 0 || size == count, "[run] Scan '", node_.name,
                 "' must have operands of equal length, but found ", count, " and ", size);
      count = size;
      const bool backward = attr_at(is_batched() ? "directions" : "scan_input_directions", k) == 1;
      scanned.push_back({value.tensors[0], axis, backward});
    }
    return scanned;
  }

  // Of operator set 8, whose operands begin with lengths and have a batch.
  bool is_batched() const {
    const auto& opsets = *outcome_.bodies.at(0)->part()->opsets;
    const auto standard = std::ranges::find(opsets, "", &OnnxOpset::domain);
    return standard != opsets.end() && standard->version < 9;
  }

  Outputs scan() {
    if (is_batched()) return scan_batch();
    Outputs operands;
    for (size_t i = 0; i < node_.inputs.size(); ++i) operands.push_back(operand(i));
    return scan_steps(operands);
  }

  // Each element of the batch by itself.
  Outputs scan_batch() {
    ORTM_CHECK(!has(0), "[run] Scan '", node_.name,
               "' of operator set 8 must have no sequence_lens");
    int64_t batch = 0;
    for (size_t i = 1; i < node_.inputs.size(); ++i) {
      const PassedValue& value = operand(i);
      ORTM_CHECK(value.kind == ValueForm::Kind::Tensor && !value.tensors.at(0).view.sizes.empty(),
                 "[run] operand ", i, " of Scan '", node_.name, "' must be a tensor with a batch");
      const int64_t size = value.tensors[0].view.sizes[0];
      ORTM_CHECK(i == 1 || size == batch, "[run] operands of Scan '", node_.name,
                 "' must have one batch, but found ", batch, " and ", size);
      batch = size;
    }
    std::vector<std::vector<PassedTensor>> results(body_graph().outputs.size());
    for (int64_t b = 0; b < batch; ++b) {
      Outputs operands;
      for (size_t i = 1; i < node_.inputs.size(); ++i)
        operands.push_back(slice(operand(i).tensors[0], 0, b));
      collect(scan_steps(operands), 0, results);
    }
    Outputs outputs;
    for (size_t k = 0; k < results.size(); ++k) outputs.push_back(stacked(results[k], 0, false, k));
    return outputs;
  }

  Outputs scan_steps(const Outputs& operands) {
    const int64_t number = attr("num_scan_inputs", 0);
    ORTM_CHECK(number >= 1 && number <= static_cast<int64_t>(operands.size()), "[run] Scan '",
               node_.name, "' must have num_scan_inputs operands");
    const size_t carried = operands.size() - static_cast<size_t>(number);
    ORTM_CHECK(body_graph().outputs.size() >= carried, "[run] the body of Scan '", node_.name,
               "' must return its state");
    int64_t count = 0;
    const std::vector<Scanned> scanned = scanned_operands(operands, carried, count);
    Outputs state(operands.begin(), operands.begin() + static_cast<std::ptrdiff_t>(carried));
    std::vector<std::vector<PassedTensor>> collected(body_graph().outputs.size() - carried);
    for (int64_t i = 0; i < count; ++i) {
      run_.check_terminate(node_);
      std::vector<PassedValue> inputs = std::move(state);
      for (const Scanned& s : scanned)
        inputs.push_back(slice(s.tensor, s.axis, s.backward ? count - 1 - i : i));
      Outputs outputs = run_body(0, std::move(inputs));
      collect(outputs, carried, collected);
      outputs.resize(carried);
      state = std::move(outputs);
    }
    for (size_t k = 0; k < collected.size(); ++k)
      state.push_back(stacked(collected[k], attr_at("scan_output_axes", k),
                              attr_at("scan_output_directions", k) == 1, carried + k));
    return state;
  }

  // The body for each element of the first sequence, with those of the others or whole tensors.
  Outputs map() {
    const PassedValue& first = operand(0);
    ORTM_CHECK(first.kind == ValueForm::Kind::Sequence, "[run] operand 0 of SequenceMap '",
               node_.name, "' must be a sequence");
    Outputs results(body_graph().outputs.size(), PassedValue{ValueForm::Kind::Sequence, {}});
    for (size_t i = 0; i < first.tensors.size(); ++i) {
      run_.check_terminate(node_);
      std::vector<PassedValue> inputs;
      for (size_t k = 0; k < node_.inputs.size(); ++k) {
        const PassedValue& value = operand(k);
        if (value.kind != ValueForm::Kind::Sequence) {
          inputs.push_back(value);
          continue;
        }
        ORTM_CHECK(i < value.tensors.size(), "[run] the sequences of SequenceMap '", node_.name,
                   "' must have equal lengths");
        inputs.push_back({ValueForm::Kind::Tensor, {value.tensors[i]}});
      }
      Outputs outputs = run_body(0, std::move(inputs));
      std::vector<std::vector<PassedTensor>> parts(results.size());
      collect(outputs, 0, parts);
      for (size_t k = 0; k < results.size(); ++k) results[k].tensors.push_back(parts[k].at(0));
    }
    return results;
  }

  SegmentedRun& run_;
  const Segment::Outcome& outcome_;
  const OnnxNode& node_;
  SegmentedRun::Values& values_;
  Outputs tried_;
};

}  // namespace

std::vector<PassedValue> run_body(SegmentedRun& run, const Segment::Outcome& outcome,
                                  const SegmentedRun::Values& values, size_t which,
                                  std::vector<PassedValue> inputs) {
  const OnnxNode& node = outcome.cut->node;
  Segment& body = *outcome.bodies.at(which);
  const ModelPart& part = *body.part();
  ORTM_CHECK(inputs.size() <= part.inputs.size(), "[run] the body of ", node.op, " '", node.name,
             "' must have ", inputs.size(), " inputs, but found ", part.inputs.size());
  for (size_t i = inputs.size(); i < part.inputs.size(); ++i) {
    const auto captured = values.find(part.inputs[i]);
    ORTM_CHECK(captured != values.end(), "[run] the body of ", node.op, " '", node.name,
               "' must be given its input '", part.inputs[i], "'");
    inputs.push_back(captured->second);
  }
  return run.run(body, std::move(inputs), part.outputs);
}

void run_control(SegmentedRun& run, const Segment::Outcome& outcome, SegmentedRun::Values& values) {
  ControlStep(run, outcome, values).run();
}

}  // namespace ortmodule
