#include "inference/constant_store.h"

#include <cstddef>
#include <cstring>
#include <iterator>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "base/keyed_hash.h"

namespace ortmodule {
namespace {

constexpr size_t kAlign = 64;         // of a tensor
constexpr int64_t kSmall = 32 << 10;  // bytes of tensors that have no pages of their own

/// Keeps the memory while something is in it.
template <class T>
struct SharedAllocator {
  using value_type = T;

  ConstantStore::Memory memory;

  explicit SharedAllocator(ConstantStore::Memory of) : memory(std::move(of)) {}
  template <class U>
  SharedAllocator(const SharedAllocator<U>& other) : memory(other.memory) {}  // NOLINT: rebound
  T* allocate(size_t count) {
    return static_cast<T*>(memory->allocate(count * sizeof(T), alignof(T)));
  }
  void deallocate(T* at, size_t count) { memory->deallocate(at, count * sizeof(T), alignof(T)); }
  friend bool operator==(const SharedAllocator&, const SharedAllocator&) = default;
};

bool is_small(const HostTensor& tensor) {
  return tensor.memory && tensor.byte_count() > 0 && tensor.byte_count() < kSmall;
}

size_t room_of(const HostTensor& tensor) {
  return (static_cast<size_t>(tensor.byte_count()) + kAlign - 1) / kAlign * kAlign;
}

}  // namespace

struct ConstantStore::Counted {
  std::pmr::vector<HostTensor> tensors;
  std::pmr::vector<std::byte> small;  // elements of small ones
  int64_t bytes = 0;
  std::shared_ptr<std::atomic<int64_t>> total;

  Counted(std::vector<HostTensor> made, std::pmr::memory_resource* memory,
          std::shared_ptr<std::atomic<int64_t>> of)
      : tensors(std::make_move_iterator(made.begin()), std::make_move_iterator(made.end()), memory),
        small(memory),
        total(std::move(of)) {
    for (const HostTensor& tensor : tensors) bytes += tensor.byte_count();
    *total += bytes;
  }
  ~Counted() { *total -= bytes; }
  Counted(const Counted&) = delete;
  Counted& operator=(const Counted&) = delete;
};

std::vector<ConstantStore::Tensors> ConstantStore::find(const std::vector<std::string>& keys,
                                                        const Compute& compute) {
  std::vector<Tensors> found(keys.size());
  std::vector<size_t> missing;
  std::vector<std::pmr::string> hashes;
  std::unordered_map<std::string_view, size_t> first;  // place of a missing key in the list
  for (size_t i = 0; i < keys.size(); ++i) {
    hashes.emplace_back(keyed_hash(keys[i]));
    if (const auto known = known_.find(hashes[i]); known != known_.end())
      found[i] = known->second.lock();
    if (!found[i] && first.try_emplace(keys[i], i).second) missing.push_back(i);
  }
  if (missing.empty()) return found;
  std::erase_if(known_, [](const auto& known) { return known.second.expired(); });
  std::vector<std::vector<HostTensor>> made = compute(missing);
  ORTM_ASSERT(made.size() == missing.size(), "each missing key has its tensors");
  for (size_t m = 0; m < missing.size(); ++m) {
    found[missing[m]] = counted(std::move(made[m]));
    known_[hashes[missing[m]]] = found[missing[m]];
  }
  for (size_t i = 0; i < keys.size(); ++i)
    if (!found[i]) found[i] = found[first.at(keys[i])];
  return found;
}

ConstantStore::Tensors ConstantStore::counted(std::vector<HostTensor> tensors) {
  const auto made = std::allocate_shared<Counted>(SharedAllocator<Counted>(memory_),
                                                  std::move(tensors), memory_.get(), bytes_);
  if (on_host_) gather(*made);
  return {made, &made->tensors};
}

void ConstantStore::gather(Counted& made) {
  size_t room = 0;
  for (const HostTensor& tensor : made.tensors)
    if (is_small(tensor)) room += room_of(tensor);
  if (room == 0) return;
  made.small.resize(room + kAlign - 1);
  const auto begin = reinterpret_cast<uintptr_t>(made.small.data());
  std::byte* to = made.small.data() + (kAlign - begin % kAlign) % kAlign;
  for (HostTensor& tensor : made.tensors) {
    if (!is_small(tensor)) continue;
    std::memcpy(to, tensor.memory.data(), static_cast<size_t>(tensor.byte_count()));
    tensor.memory = Buffer(to, tensor.byte_count(), to, [](void*) {});
    to += room_of(tensor);
  }
}

}  // namespace ortmodule
