#include "inference/loaded_model.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>

#include "base/error.h"
#include "base/keyed_hash.h"
#include "base/narrow_number.h"

namespace ortmodule {
namespace {

constexpr int64_t kAlignment = 64;
constexpr int64_t kBlockBytes = 1 << 20;  // small copies share blocks of this size

// Whether several elements share a byte, which in memory have one each.
bool is_packed(const OnnxTensor& weight) { return packed_bits(weight.dtype) < 8; }

}  // namespace

int64_t LoadedModel::original_bytes(const OnnxModel& model) {
  size_t bytes = 0;
  for (const OnnxInitializer& weight : model.graph.initializers)
    bytes += weight.tensor.bytes.size();
  return static_cast<int64_t>(bytes);
}

std::shared_ptr<const OnnxModel> LoadedModel::with_nodes() const {
  const std::lock_guard lock(nodes_mutex_);
  if (auto reader = readers_.lock()) return reader;
  if (packed_nodes_) packed_nodes_->unpack_into(model_.graph);
  packed_nodes_.reset();
  std::shared_ptr<const OnnxModel> reader(&model_, [](const OnnxModel*) {});
  readers_ = reader;
  return reader;
}

void LoadedModel::pack() {
  const std::lock_guard lock(nodes_mutex_);
  if (packed_nodes_ || !readers_.expired()) return;
  packed_nodes_.emplace(model_.graph);
}

bool LoadedModel::keeps_originals() const {
  constexpr int64_t kMuch = 2 << 20;
  return files_.empty() && original_bytes_ > kMuch;
}

const void* LoadedModel::elements(const OnnxTensor& weight) {
  const int64_t bytes = memory_bytes(weight);
  if (bytes == 0) return nullptr;
  const std::lock_guard lock(mutex_);
  const bool was_read = weight.element_type != 0;
  if (!was_read && !file_of(weight)) return computed_elements(weight);
  const Place place(weight.bytes.data(), bytes, weight.dtype);
  if (const auto known = places_.find(place); known != places_.end()) return known->second;
  const void* elements = is_readable(weight) ? weight.bytes.data() : copy(weight);
  owners_.insert(weight.bytes.owner());
  weight_bytes_ += bytes;
  if (elements == weight.bytes.data()) read_in_place_bytes_ += bytes;
  places_.emplace(place, elements);
  return elements;
}

int64_t LoadedModel::memory_bytes(const OnnxTensor& weight) {
  return is_packed(weight) ? element_count(weight.dims) : static_cast<int64_t>(weight.bytes.size());
}

const void* LoadedModel::computed_elements(const OnnxTensor& weight) {
  const std::string_view bytes = weight.bytes.view();
  const size_t hash = std::hash<std::string_view>()(bytes);
  const auto [first, last] = computed_.equal_range(hash);
  for (auto known = first; known != last; ++known)
    if (known->second.view() == bytes) return known->second.data();
  weight_bytes_ += static_cast<int64_t>(bytes.size());
  // Strings of the heap are aligned for every element type, short ones inside of theirs are not.
  constexpr size_t kShort = 64;
  if (bytes.size() >= kShort && is_readable(weight))
    return computed_.emplace(hash, weight.bytes)->second.data();
  const auto* place = static_cast<const char*>(copy(weight));
  return computed_.emplace(hash, SharedBytes::borrowed(place, bytes.size()))->second.data();
}

const TextTable& LoadedModel::texts() const {
  std::call_once(texts_made_, [&] { texts_ = TextTable(*with_nodes()); });
  return texts_;
}

const void* LoadedModel::copy(const OnnxTensor& weight) {
  const int64_t bytes = memory_bytes(weight);
  const int64_t taken = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  if (left_bytes_ < taken) {
    blocks_.push_back(memory_.allocate(std::max(taken, kBlockBytes)));
    if (taken >= kBlockBytes) HostMemory::make_resident(blocks_.back());
    left_bytes_ = blocks_.back().bytes();
  }
  Buffer& block = blocks_.back();
  void* to = static_cast<char*>(block.data()) + (block.bytes() - left_bytes_);
  copy_weight(weight, to);
  left_bytes_ -= taken;
  return to;
}

void LoadedModel::copy_weight(const OnnxTensor& weight, void* to) const {
  if (!is_packed(weight)) return copy_part(weight, 0, weight.bytes.size(), to);
  unpack_elements(weight.bytes.data(), element_count(weight.dims), weight.dtype,
                  static_cast<char*>(to));
  if (const MappedFile* file = file_of(weight)) file->forget(weight.bytes.view());
}

void LoadedModel::copy_part(const OnnxTensor& weight, size_t first, size_t bytes, void* to) const {
  const std::string_view part = weight.bytes.view().substr(first, bytes);
  if (part.empty()) return;
  if (const MappedFile* file = file_of(weight))
    file->read(part, to);
  else
    std::memcpy(to, part.data(), part.size());
}

bool LoadedModel::is_readable(const OnnxTensor& weight) const {
  if (is_packed(weight)) return false;
  if (reinterpret_cast<uintptr_t>(weight.bytes.data()) % size_of(weight.dtype) != 0) return false;
  const MappedFile* file = file_of(weight);
  return !file || file != files_.front().get();
}

const MappedFile* LoadedModel::file_of(const OnnxTensor& weight) const {
  for (const auto& file : files_)
    if (file->contains(weight.bytes.data())) return file.get();
  return nullptr;
}

std::string LoadedModel::key_of(const OnnxTensor& weight) {
  const std::string what = str(memory_bytes(weight), " ", name_of(weight.dtype));
  if (weight.element_type != 0)
    return str(static_cast<const void*>(weight.bytes.data()), " of ", what);
  return str("computed ", keyed_hash(weight.bytes.view()), " of ", what);
}

std::vector<ConstantStore::Tensors> LoadedModel::constants(const std::vector<std::string>& keys,
                                                           const ConstantStore::Compute& compute) {
  const std::lock_guard lock(mutex_);
  return constants_.find(keys, compute);
}

int64_t LoadedModel::weight_bytes() const {
  const std::lock_guard lock(mutex_);
  const int64_t bytes = weight_bytes_ + constants_.bytes();
  if (!keeps_originals()) return bytes;
  return bytes + std::max<int64_t>(0, original_bytes_ - read_in_place_bytes_);
}

void LoadedModel::check_files(bool for_run) const {
  // The first is the model itself, which runs do not read.
  for (size_t i = for_run ? 1 : 0; i < files_.size(); ++i)
    ORTM_CHECK(files_[i]->is_unchanged(), "[file] ", files_[i]->path(),
               " must stay as it is while sessions use it, but was written to: make a new session, "
               "and replace files by renaming others");
}

bool LoadedModel::is_current() const {
  return std::all_of(files_.begin(), files_.end(), [](const auto& file) {
    return file->is_unchanged() && MappedFile::identity_at(file->path()) == file->identity();
  });
}

void LoadedModel::forget_pages() const {
  for (const auto& file : files_) file->forget(file->bytes());
}

}  // namespace ortmodule
