// Sizes that are assumed where a model leaves them open, for what is made before the first run.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/layout.h"
#include "inference/inference_session.h"
#include "onnx/onnx_model.h"

namespace ortmodule {

/// Sizes by input, likely ones first: fixed sizes as they are, others assumed, equal where names
/// are. With two or more open sizes, sets in which all differ come first, so that a graph that is
/// made for one does not assume them equal.
std::vector<std::vector<Sizes>> likely_sizes(const std::vector<std::vector<OnnxDim>>& inputs);

/// The same for a session, by its inputs. Nothing, and why, where an input is no tensor of known
/// rank.
std::vector<std::vector<Sizes>> likely_sizes(const InferenceSession& session, std::string& why);

/// Feeds of likely sizes, without contents, in the same order.
std::vector<std::vector<HostFeed>> likely_feeds(const InferenceSession& session, std::string& why);

/// Feeds of the sizes that the model and the options fix; nullopt if they leave one open.
std::optional<std::vector<HostFeed>> declared_feeds(const InferenceSession& session);

/// Writes the optimized model before any run, for likely sizes, which stay open in the file.
/// Returns why this must wait for the sizes of a run; nothing if the file is written. Throws Error
/// if it cannot be written.
std::optional<std::string> save_optimized_early(InferenceSession& session, const std::string& path);

/// Why the session's device lacks a kernel for the model, at likely sizes. Nothing if it has all,
/// or if that shows with the sizes of a run.
std::optional<std::string> why_not_on_device(InferenceSession& session);

}  // namespace ortmodule
