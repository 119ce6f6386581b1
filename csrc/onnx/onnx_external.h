// Data of tensors in files beside the model. Their names come from the model, which is not trusted:
// no path may lead out of the model's folder.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/error.h"
#include "onnx/mapped_file.h"
#include "onnx/shared_bytes.h"

namespace ortmodule {

/// Where the model says that a tensor's data is.
struct OnnxExternalPlace {
  std::string location;    // path relative to the model's folder
  std::string offset;      // in bytes; "": 0
  std::string size_bytes;  // "": as the tensor needs
};

/// The files are mapped once each, when they are first used.
class OnnxExternalData {
 public:
  /// Of a model in memory. Without `folder` it is the current one, as in onnxruntime.
  explicit OnnxExternalData(const std::string& folder);
  /// Of a model file. If it is a link, its data may also be beside the file that the link leads to.
  static OnnxExternalData beside(const std::string& model_path);

  /// Gives the content of the file at `location`, which is then not read.
  void add_file(const std::string& location, SharedBytes content);
  /// Sets `found` to the `expected_bytes` at `place`, or returns why it cannot.
  Reason find(const OnnxExternalPlace& place, size_t expected_bytes, SharedBytes& found);
  /// The files that were mapped.
  MappedFiles files() const;

 private:
  using MappedPtr = std::shared_ptr<const MappedFile>;
  void add_folder(const std::filesystem::path& folder);
  Reason resolve(const std::string& location, std::string& path) const;
  Reason map(const std::string& location, MappedPtr& file);

  std::vector<std::filesystem::path> folders_;          // without links
  std::unordered_map<std::string, SharedBytes> given_;  // by location
  std::unordered_map<std::string, MappedPtr> by_location_;
  std::unordered_map<std::string, MappedPtr> by_path_;
};

}  // namespace ortmodule
