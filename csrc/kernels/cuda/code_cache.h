// Machine code kept on disk from one process to the next.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace ortmodule::cuda {

/// A folder of one file per entry. Code from it runs in this process, so the folder must belong to
/// the user alone; another one is refused. Several processes may use it at once: files appear
/// whole, by renaming, and one that does not hold what it says is removed. Entries beyond the limit
/// go, the least recently used ones first.
class CodeCache {
 public:
  /// Makes the folder if it is not there. Throws Error if it may not be used.
  CodeCache(const std::string& folder, int64_t most_bytes);
  ~CodeCache();
  CodeCache(const CodeCache&) = delete;
  CodeCache& operator=(const CodeCache&) = delete;

  /// The code that was kept under `key`, a text of any length.
  std::optional<std::string> find(std::string_view key) const;
  /// A full disk is no error: then the code is not kept.
  void keep(std::string_view key, std::string_view code) const;

 private:
  void remove_oldest() const;

  int folder_ = -1;
  int64_t most_bytes_;
};

}  // namespace ortmodule::cuda
