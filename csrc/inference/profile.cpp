#include "inference/profile.h"

#include <unistd.h>

#include <cstdio>

#include "base/error.h"
#include "onnx/onnx_types.h"
#include "onnx/replacing_file.h"

namespace ortmodule {
namespace {

constexpr size_t kMostEvents = 1'000'000;

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (byte < 0x20) {
      char code[8];
      std::snprintf(code, sizeof code, "\\u%04x", byte);
      out += code;
    } else {
      out += c;
    }
  }
  return out + '"';
}

// 12.345: a double as text has too few digits after some seconds.
std::string microseconds(Profile::Clock::duration time) {
  const int64_t ns = std::chrono::duration_cast<std::chrono::nanoseconds>(time).count();
  const std::string part = std::to_string(ns % 1000);
  return str(ns / 1000, ".", std::string(3 - part.size(), '0'), part);
}

// [{"float":[2,3]},{"int64":[]}]
std::string types(const std::vector<OperandFacts>& operands) {
  std::string out = "[";
  for (const OperandFacts& operand : operands) {
    if (out.size() > 1) out += ",";
    out += "{" + quoted(onnx_type_name(onnx_number(operand.dtype))) + ":[";
    for (size_t d = 0; d < operand.layout.sizes.size(); ++d)
      out += str(d ? "," : "", operand.layout.sizes[d]);
    out += "]}";
  }
  return out + "]";
}

int64_t bytes_of(const std::vector<OperandFacts>& operands) {
  int64_t bytes = 0;
  for (const OperandFacts& operand : operands)
    bytes += element_count(operand.layout.sizes) * static_cast<int64_t>(size_of(operand.dtype));
  return bytes;
}

// The operators of a step, and where in the model they come from.
std::string ops_of(const PlannedStep& step) {
  std::string ops;
  for (const NodeFacts& node : step.facts->nodes) ops += (ops.empty() ? "" : "+") + node.op;
  return ops;
}

std::string name_of(const PlannedStep& step) {
  for (const Node* node : step.nodes)
    if (!node->origin.module.empty()) return node->origin.module;
  for (const Node* node : step.nodes)
    if (!node->outputs().empty()) return node->output()->name;
  return ops_of(step);
}

}  // namespace

int64_t Profile::start_ns() const {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(start_.time_since_epoch()).count();
}

void Profile::add_stage(const std::string& name, Clock::time_point begin, Clock::time_point end) {
  add("Session", name, begin, end, "{}");
}

void Profile::add_step(const PlannedStep& step, Clock::time_point begin, Clock::time_point end,
                       int64_t live_bytes) {
  std::string nodes;
  for (const Node* node : step.nodes)
    nodes += (nodes.empty() ? "" : ",") + quoted(node->origin.source);
  const std::string args = str(
      "{\"op_name\":", quoted(ops_of(step)), ",\"kernel\":", quoted(std::string(step.kernel->name)),
      ",\"provider\":", quoted(provider_), ",\"nodes\":[", nodes,
      "],\"input_type_shape\":", types(step.facts->inputs),
      ",\"output_type_shape\":", types(step.facts->outputs), ",\"output_size\":\"",
      bytes_of(step.facts->outputs), "\",\"live_bytes\":", live_bytes, "}");
  add("Node", name_of(step) + "_kernel_time", begin, end, args);
}

void Profile::add(const char* category, const std::string& name, Clock::time_point begin,
                  Clock::time_point end, const std::string& args) {
  std::string event =
      str("{\"cat\":\"", category, "\",\"pid\":", getpid(), ",\"tid\":", gettid(),
          ",\"dur\":", microseconds(end - begin), ",\"ts\":", microseconds(begin - start_),
          ",\"ph\":\"X\",\"name\":", quoted(name), ",\"args\":", args, "}");
  const std::lock_guard lock(mutex_);
  if (events_.size() < kMostEvents)
    events_.push_back(std::move(event));
  else
    ++left_out_;
}

void Profile::write(const std::string& path) const {
  const std::lock_guard lock(mutex_);
  ReplacingFile file(path);
  file.write("[\n");
  for (size_t i = 0; i < events_.size(); ++i) {
    if (i > 0) file.write(",\n");
    file.write(events_[i]);
  }
  if (left_out_ > 0)
    file.write(str(",\n{\"cat\":\"Session\",\"ph\":\"i\",\"ts\":0,\"name\":\"", left_out_,
                   " events left out: too many\"}"));
  file.write("\n]\n");
  file.finish();
  file.replace();
}

}  // namespace ortmodule
