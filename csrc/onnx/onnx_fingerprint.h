// Detects edits of a graph that we wrote: a hash of its serialized nodes, inputs and outputs.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace ortmodule {

/// FNV-1a of the messages and their lengths.
class OnnxFingerprint {
 public:
  /// The key of the fingerprint in a model's metadata.
  static constexpr std::string_view kKey = "ortmodule.fingerprint";

  void add(std::string_view message) {
    for (char byte : message) mix(static_cast<unsigned char>(byte));
    mix(message.size());
  }
  std::string text() const { return std::to_string(hash_); }

 private:
  void mix(uint64_t value) { hash_ = (hash_ ^ value) * 0x100000001b3u; }

  uint64_t hash_ = 0xcbf29ce484222325u;
};

}  // namespace ortmodule
