// The parts of the public C++ API that its files share.
#pragma once

#include <ortmodule/inference.h>

#include <atomic>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "base/error.h"
#include "inference/inference_session.h"
#include "onnx/onnx_substitutes.h"

namespace ortmodule::inference {
inline namespace v1 {

struct SessionOptions::Impl {
  InferenceOptions options;
  std::map<std::string, Value> initializers;
  std::string optimized_model_path;

  /// What is read in place of parts of the file.
  OnnxSubstitutes substitutes() const;
};

struct RunOptions::Impl {
  std::atomic<bool> terminate{false};
};

/// A session, with the names of its inputs and outputs.
struct Session::Impl {
  Impl(std::shared_ptr<LoadedModel> model, const SessionOptions::Impl& options);

  /// The place of an input or output. Throws Error if there is none of that name.
  size_t input(const std::string& name) const { return place("an input", inputs_by_name, name); }
  size_t output(const std::string& name) const { return place("an output", outputs_by_name, name); }
  /// Feeds by input, from values by input and then overridable input, where null stands for none.
  /// Throws Error if one is missing.
  std::vector<HostFeed> feeds(const std::vector<const Value*>& values) const;
  /// Feeds without data.
  std::vector<HostFeed> feeds(const std::map<std::string, std::vector<int64_t>>& sizes) const;

  /// See InferenceSession::run.
  std::vector<HostResult> run(const std::vector<HostFeed>& feeds, const HostTargets& targets,
                              const std::atomic<bool>& terminate);

  /// The outputs with what the file leaves out; see InferenceSession::typed_outputs().
  const std::vector<TensorInfo>& typed_outputs();

  InferenceSession session;
  std::vector<TensorInfo> inputs, overridable;
  std::map<std::string, size_t> inputs_by_name, outputs_by_name;
  ModelMetadata metadata;

 private:
  static size_t place(const char* what, const std::map<std::string, size_t>& places,
                      const std::string& name);

  std::string unwritten_;  // the path of an optimized model that waits for a run
  std::once_flag written_, typed_;
  std::vector<TensorInfo> typed_outputs_;  // once `typed_`
};

struct IoBinding::Impl {
  /// Binds an output, in place of what was bound before; without a value each run allocates it.
  void bind(const std::string& name, Value target);
  /// The values of one run by bound output.
  std::vector<Value> run(const std::atomic<bool>& terminate) const;

  std::shared_ptr<Session::Impl> session;
  std::vector<Value> inputs;              // by input
  std::vector<bool> bound;                // by input
  std::vector<std::string> output_names;  // bound outputs
  std::vector<Value> targets;             // by bound output; no value: the run allocates
  std::vector<Value> outputs;             // of the last run
};

}  // namespace v1

/// A result of the engine as a value that owns the memory.
Value to_value(HostResult result);

}  // namespace ortmodule::inference
