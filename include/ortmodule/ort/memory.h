// Places of memory, allocators, and what they allocate.
#pragma once

#include <ortmodule/ort/handle.h>

#include <cstring>
#include <new>
#include <string>

/// Where memory is. Sessions of this library compute on the host.
struct OrtMemoryInfo {
  std::string name = "Cpu";
  OrtAllocatorType allocator = OrtDeviceAllocator;
  int id = 0;
  OrtMemType memory = OrtMemTypeDefault;

  friend bool operator==(const OrtMemoryInfo& a, const OrtMemoryInfo& b) {
    return a.name == b.name && a.allocator == b.allocator && a.id == b.id && a.memory == b.memory;
  }
};

struct OrtArenaCfg {
  size_t most = 0;
  int strategy = -1, first_chunk = -1, most_unused = -1;
};

namespace Ort {
namespace detail {

template <class Holder>
class MemoryInfoImpl : public Holder {
 public:
  using Holder::Holder;
  std::string GetAllocatorName() const { return info().name; }
  OrtAllocatorType GetAllocatorType() const { return info().allocator; }
  int GetDeviceId() const { return info().id; }
  OrtMemType GetMemoryType() const { return info().memory; }
  OrtMemoryInfoDeviceType GetDeviceType() const {
    return on_host(info()) ? OrtMemoryInfoDeviceType_CPU : OrtMemoryInfoDeviceType_GPU;
  }
  template <class Other>
  bool operator==(const MemoryInfoImpl<Other>& other) const {
    return info() == other.info();
  }
  const OrtMemoryInfo& info() const { return checked(this->p_, "MemoryInfo"); }

  /// Pinned memory of a GPU's driver is memory of the host.
  static bool on_host(const OrtMemoryInfo& info) {
    return info.name == "Cpu" || info.name == "CudaPinned" || info.name == "HipPinned" ||
           info.memory == OrtMemTypeCPU || info.memory == OrtMemTypeCPUInput;
  }
};

}  // namespace detail

using ConstMemoryInfo = detail::MemoryInfoImpl<detail::Unowned<const OrtMemoryInfo>>;
using UnownedMemoryInfo = detail::MemoryInfoImpl<detail::Unowned<OrtMemoryInfo>>;

/// A place of memory.
class MemoryInfo : public detail::MemoryInfoImpl<detail::Base<OrtMemoryInfo>> {
 public:
  MemoryInfo() = default;
  explicit MemoryInfo(std::nullptr_t) {}
  explicit MemoryInfo(OrtMemoryInfo* info) { p_ = info; }
  MemoryInfo(const char* name, OrtAllocatorType type, int id, OrtMemType memory) {
    p_ = new OrtMemoryInfo{name, type, id, memory};
  }
  /// Memory of the host.
  static MemoryInfo CreateCpu(OrtAllocatorType type, OrtMemType memory) {
    return MemoryInfo("Cpu", type, 0, memory);
  }
  ConstMemoryInfo GetConst() const { return ConstMemoryInfo(p_); }
};

namespace detail {

struct HostAllocator : OrtAllocator {
  HostAllocator() {
    Alloc = [](OrtAllocator*, size_t bytes) -> void* {
      return ::operator new (bytes, std::align_val_t{64});
    };
    Free = [](OrtAllocator*, void* memory) { ::operator delete (memory, std::align_val_t{64}); };
    Info = [](const OrtAllocator* self) { return &static_cast<const HostAllocator*>(self)->info; };
  }
  OrtMemoryInfo info;
};

inline OrtAllocator* host_allocator() {
  static HostAllocator allocator;
  return &allocator;
}

/// Frees by the allocator that allocated.
struct AllocatedFree {
  OrtAllocator* allocator = nullptr;
  AllocatedFree() = default;
  explicit AllocatedFree(OrtAllocator* from) : allocator(from) {}
  void operator()(void* memory) const {
    if (memory) allocator->Free(allocator, memory);
  }
};

}  // namespace detail

/// A string that an allocator allocated: `get()` is a `char*`.
using AllocatedStringPtr = std::unique_ptr<char, detail::AllocatedFree>;

/// A block of memory, freed with the object.
class MemoryAllocation {
 public:
  MemoryAllocation(OrtAllocator* allocator, void* memory, size_t bytes)
      : memory_(memory, detail::AllocatedFree(allocator)), bytes_(bytes) {}
  void* get() { return memory_.get(); }
  size_t size() const { return bytes_; }

 private:
  std::unique_ptr<void, detail::AllocatedFree> memory_;
  size_t bytes_;
};

namespace detail {

/// What all allocators can do.
class AllocatorImpl {
 public:
  operator OrtAllocator*() const noexcept { return allocator_; }
  void* Alloc(size_t bytes) { return used().Alloc(allocator_, bytes); }
  MemoryAllocation GetAllocation(size_t bytes) { return {allocator_, Alloc(bytes), bytes}; }
  void Free(void* memory) { used().Free(allocator_, memory); }
  ConstMemoryInfo GetInfo() const { return ConstMemoryInfo(used().Info(allocator_)); }

 protected:
  explicit AllocatorImpl(OrtAllocator* allocator) : allocator_(allocator) {}

 private:
  OrtAllocator& used() const { return checked(allocator_, "Allocator"); }
  OrtAllocator* allocator_;
};

/// A copy of `text` in memory of the allocator.
inline AllocatedStringPtr allocated(const std::string& text, OrtAllocator* allocator) {
  OrtAllocator& used = checked(allocator, "Allocator");
  auto* copy = static_cast<char*>(used.Alloc(allocator, text.size() + 1));
  std::memcpy(copy, text.c_str(), text.size() + 1);
  return AllocatedStringPtr(copy, AllocatedFree(allocator));
}

}  // namespace detail

/// The allocator of the host, one for the process.
class AllocatorWithDefaultOptions : public detail::AllocatorImpl {
 public:
  AllocatorWithDefaultOptions() : AllocatorImpl(detail::host_allocator()) {}
  explicit AllocatorWithDefaultOptions(std::nullptr_t) : AllocatorImpl(nullptr) {}
};

/// How an arena grows. Accepted: the block of a session has the size that its plan says.
class ArenaCfg : public detail::Base<OrtArenaCfg> {
 public:
  explicit ArenaCfg(std::nullptr_t) {}
  ArenaCfg(size_t most, int strategy, int first_chunk, int most_unused) {
    p_ = new OrtArenaCfg{most, strategy, first_chunk, most_unused};
  }
};

}  // namespace Ort
