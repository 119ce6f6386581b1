// The models that sessions of this process have open.
#pragma once

#include <memory>
#include <string>

#include "inference/loaded_model.h"
#include "onnx/onnx_substitutes.h"

namespace ortmodule {

/// Reads a model for one session, with what the caller gives in place of parts of it.
std::shared_ptr<LoadedModel> load_model(const std::string& path, const OnnxSubstitutes& given = {});

/// Reads the model at `path`, or returns the one that another session has read, as long as no file
/// of it has changed since. Its weights, and what was computed from them, go with the last session.
/// Throws Error. Thread-safe.
std::shared_ptr<LoadedModel> load_shared_model(const std::string& path);

}  // namespace ortmodule
