#include "inference/constant_store.h"

#include <string_view>
#include <utility>

#include "base/error.h"

namespace ortmodule {

std::vector<ConstantStore::Tensors> ConstantStore::find(const std::vector<std::string>& keys,
                                                        const Compute& compute) {
  std::vector<Tensors> found(keys.size());
  std::vector<size_t> missing;
  std::unordered_map<std::string_view, size_t> first;  // place of a missing key in the list
  for (size_t i = 0; i < keys.size(); ++i) {
    if (const auto known = known_.find(keys[i]); known != known_.end())
      found[i] = known->second.lock();
    if (!found[i] && first.try_emplace(keys[i], i).second) missing.push_back(i);
  }
  if (missing.empty()) return found;
  std::erase_if(known_, [](const auto& known) { return known.second.expired(); });
  std::vector<std::vector<HostTensor>> made = compute(missing);
  ORTM_ASSERT(made.size() == missing.size(), "each missing key has its tensors");
  for (size_t m = 0; m < missing.size(); ++m) {
    found[missing[m]] = counted(std::move(made[m]));
    known_[keys[missing[m]]] = found[missing[m]];
  }
  for (size_t i = 0; i < keys.size(); ++i)
    if (!found[i]) found[i] = found[first.at(keys[i])];
  return found;
}

ConstantStore::Tensors ConstantStore::counted(std::vector<HostTensor> tensors) {
  int64_t bytes = 0;
  for (const HostTensor& tensor : tensors) bytes += tensor.byte_count();
  *bytes_ += bytes;
  return {new std::vector<HostTensor>(std::move(tensors)),
          [bytes, total = bytes_](const std::vector<HostTensor>* gone) {
            *total -= bytes;
            delete gone;
          }};
}

}  // namespace ortmodule
