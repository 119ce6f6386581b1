// The sizes of a model's inputs that may change, by their names.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "inference/host_tensor.h"
#include "onnx/onnx_model.h"

namespace ortmodule {

/// A tensor of these sizes for an input, without data.
HostTensorView tensor_of_sizes(const OnnxValue& input, Sizes sizes);

/// Dimensions of one name have one size. "batch" also stands for the first dimension of every input
/// that may change there, where the model names none so.
class NamedSizes {
 public:
  /// `fixed` are values that the session's options give. The inputs must outlive this.
  NamedSizes(const std::vector<const OnnxValue*>& inputs, std::map<std::string, int64_t> fixed);

  /// Adds tensors without data, of these sizes, where `feeds` has none. Throws Error if a dimension
  /// stays unknown or a name is none of the model's.
  void complete(std::vector<HostFeed>& feeds, const std::map<std::string, int64_t>& sizes) const;
  /// Gives `name` that size in `feeds`; feeds that it changes lose their data.
  void set(std::vector<HostFeed>& feeds, const std::string& name, int64_t size) const;
  /// The first dimension of the inputs: its name or "batch", and its size in `feeds`. Nothing if it
  /// is fixed.
  std::optional<std::pair<std::string, int64_t>> batch_of(const std::vector<HostFeed>& feeds) const;

  /// The names of sizes, "batch" last if the model does not name it.
  std::vector<std::string> names() const;

  struct Place {
    size_t input = 0, dim = 0;
  };
  /// Where the name stands; throws Error if nowhere.
  const std::vector<Place>& places_of(const std::string& name) const;

 private:
  HostTensorView fixed_part(const OnnxValue& input) const;

  const std::vector<const OnnxValue*>& inputs_;
  const std::map<std::string, int64_t> fixed_;
  std::map<std::string, std::vector<Place>> places_;
};

}  // namespace ortmodule
