// A model that sessions share: its file and its weights.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <memory_resource>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/page_region.h"
#include "importer/sorted_nodes.h"
#include "inference/constant_store.h"
#include "onnx/mapped_file.h"
#include "onnx/onnx_model.h"
#include "onnx/onnx_reader.h"
#include "onnx/packed_nodes.h"
#include "onnx/text_table.h"
#include "runtime/host_memory.h"

namespace ortmodule {

/// Weights inside of the model's file are copied, each once, when a session first reads them: the
/// file may then be overwritten. Those in files of their own stay there if kernels can read them at
/// their addresses. Pages of files that nobody reads again leave the resident set. Thread-safe.
class LoadedModel {
 public:
  /// `files`: those that the model was read from, itself first; none for a model in memory.
  explicit LoadedModel(OnnxModel model, OnnxFacts facts = {}, MappedFiles files = {})
      : model_(with_sorted_nodes(std::move(model))),
        facts_(std::move(facts)),
        files_(std::move(files)),
        original_bytes_(original_bytes(model_)) {}

  /// The model; its graph may lack all but its name, inputs and outputs, which an idle session
  /// packs.
  const OnnxModel& model() const { return model_; }
  /// The whole model, which stays so as long as the result does.
  std::shared_ptr<const OnnxModel> with_nodes() const;
  /// Packs the graph until it is read again, unless somebody reads it.
  void pack();
  const OnnxFacts& facts() const { return facts_; }
  /// The texts that the model holds.
  const TextTable& texts() const;
  /// Whether copies of the weights in other layouts would double much memory: the original weights
  /// of a model in memory stay, as there is no file to read them from again.
  bool keeps_originals() const;
  /// The elements of a weight at an aligned address, which stays valid as long as the model. Those
  /// that an import computed are there once, however often it is repeated.
  const void* elements(const OnnxTensor& weight);
  /// Bytes of a weight's elements in memory.
  static int64_t memory_bytes(const OnnxTensor& weight);
  /// Copies the elements of a weight, without leaving its file resident.
  void copy_weight(const OnnxTensor& weight, void* to) const;
  /// Copies bytes of a weight whose elements have bytes of their own.
  void copy_part(const OnnxTensor& weight, size_t first, size_t bytes, void* to) const;
  /// Whether kernels can read the elements where they are.
  bool is_readable(const OnnxTensor& weight) const;
  /// Whether the elements are in a file, so that they are resident only where they are copied.
  bool is_in_file(const OnnxTensor& weight) const { return file_of(weight) != nullptr; }
  /// What stands for the elements of a weight in a key: their type and size, and where they are in
  /// the file or the keyed hash of those that an import computed: files may be made to collide.
  static std::string key_of(const OnnxTensor& weight);
  /// Memory for what imports keep, in which it lies together.
  const std::shared_ptr<PageRegion>& long_lived() const { return long_lived_; }
  /// Tensors computed from weights (ConstantStore::find).
  std::vector<ConstantStore::Tensors> constants(const std::vector<std::string>& keys,
                                                const ConstantStore::Compute& compute);
  /// Bytes of weights that sessions have asked for, and of what was computed from them; and of the
  /// originals beside them where they are kept.
  int64_t weight_bytes() const;

  /// Throws Error if a file was written to since it was opened, so that reading it again could give
  /// other numbers or kill the process. For a run only files matter that it reads.
  void check_files(bool for_run) const;
  /// Whether the files are those that their paths lead to now, unchanged.
  bool is_current() const;
  /// Takes all pages of the files out of the resident set until they are used again.
  void forget_pages() const;

 private:
  static int64_t original_bytes(const OnnxModel& model);
  const void* copy(const OnnxTensor& weight);
  const void* computed_elements(const OnnxTensor& weight);
  const MappedFile* file_of(const OnnxTensor& weight) const;

  mutable std::mutex nodes_mutex_;  // guards what may be packed and the next two
  mutable std::optional<PackedNodes> packed_nodes_;
  mutable std::weak_ptr<const OnnxModel> readers_;
  mutable OnnxModel model_;
  const OnnxFacts facts_;
  const MappedFiles files_;
  const int64_t original_bytes_;
  mutable std::mutex mutex_;
  /// A weight in the file. Others may begin at its first byte, with another size or type.
  using Place = std::tuple<const void*, int64_t, DType>;
  const std::shared_ptr<PageRegion> long_lived_ = std::make_shared<PageRegion>();
  std::pmr::map<Place, const void*> places_{long_lived_.get()};  // -> elements
  // Keep the keys of places_ alive, of which most share an owner.
  std::pmr::set<std::shared_ptr<const void>, std::owner_less<>> owners_{long_lived_.get()};
  std::pmr::unordered_multimap<size_t, SharedBytes> computed_{long_lived_.get()};  // by their hash
  mutable std::once_flag texts_made_;
  mutable TextTable texts_;
  HostMemory memory_;
  std::vector<Buffer> blocks_;  // of copies
  int64_t left_bytes_ = 0;      // at the end of the last block
  int64_t weight_bytes_ = 0;
  int64_t read_in_place_bytes_ = 0;
  ConstantStore constants_{true, long_lived_};
};

}  // namespace ortmodule
