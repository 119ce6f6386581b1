// MurmurHash3: Appleby's hash x86_32 of each text or number, whose bytes lie as they do in memory.
#include <bit>
#include <cstring>

#include "inference/sized/sized_op.h"

namespace ortmodule {
namespace {

uint32_t hash_of(const char* bytes, size_t count, uint32_t hash) {
  const auto mixed = [](uint32_t word) { return std::rotl(word * 0xcc9e2d51u, 15) * 0x1b873593u; };
  size_t at = 0;
  for (; at + 4 <= count; at += 4) {
    uint32_t word = 0;
    std::memcpy(&word, bytes + at, 4);
    hash = std::rotl(hash ^ mixed(word), 13) * 5 + 0xe6546b64u;
  }
  if (at < count) {
    uint32_t word = 0;
    std::memcpy(&word, bytes + at, count - at);
    hash ^= mixed(word);
  }
  hash ^= static_cast<uint32_t>(count);
  hash = (hash ^ hash >> 16) * 0x85ebca6bu;
  hash = (hash ^ hash >> 13) * 0xc2b2ae35u;
  return hash ^ hash >> 16;
}

DType hash_dtype(const SizedCall& call) {
  return call.attrs().flag("positive") ? DType::UInt32 : DType::Int32;
}

void run_murmur_hash3(const SizedCall& call) {
  const HostTensorView& x = call.operand(0);
  const auto seed = static_cast<uint32_t>(call.attrs().integer("seed"));
  auto* to = call.result<uint32_t>(hash_dtype(call), x.sizes);
  const size_t bytes = size_of(x.dtype);
  for (int64_t k = 0; k < element_count(x.sizes); ++k) {
    if (x.texts) {
      const std::string& text = call.text(0, k);
      to[k] = hash_of(text.data(), text.size(), seed);
    } else {
      to[k] = hash_of(call.data<char>(0) + static_cast<size_t>(k) * bytes, bytes, seed);
    }
  }
}

std::vector<SizedResult> most_murmur_hash3(const SizedCall& call) {
  return {{hash_dtype(call), call.operand(0).sizes}};
}

const SizedRegistrar kMurmurHash3({"MurmurHash3", run_murmur_hash3, most_murmur_hash3});

}  // namespace
}  // namespace ortmodule
