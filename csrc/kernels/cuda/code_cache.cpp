#include "kernels/cuda/code_cache.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <memory>
#include <vector>

#include "base/error.h"
#include "base/keyed_hash.h"

namespace ortmodule::cuda {
namespace {

constexpr std::string_view kMagic = "ortmodule code 1";
constexpr std::string_view kSuffix = ".code", kPartSuffix = ".part";
/// After so long the writer of an unfinished file is taken for dead.
constexpr int64_t kStaleSeconds = 600;

/// 128 bits of a text. Nothing secret: only the user writes into the folder.
std::array<uint64_t, 2> cache_hash(std::string_view text) {
  return {sip_hash({1, 2}, text), sip_hash({3, 4}, text)};
}

std::string file_name(std::string_view key) {
  std::string name;
  for (uint64_t half : cache_hash(key))
    for (int shift = 60; shift >= 0; shift -= 4) name += "0123456789abcdef"[half >> shift & 15];
  return name + std::string(kSuffix);
}

/// What stands before the code in its file.
struct CacheHeader {
  char magic[kMagic.size()];
  std::array<uint64_t, 2> key, code;  // hashes
  uint64_t bytes;
};
static_assert(sizeof(CacheHeader) == kMagic.size() + 5 * sizeof(uint64_t), "it is compared whole");

CacheHeader header_of(std::string_view key, std::string_view code) {
  CacheHeader header{};
  std::copy(kMagic.begin(), kMagic.end(), header.magic);
  header.key = cache_hash(key);
  header.code = cache_hash(code);
  header.bytes = code.size();
  return header;
}

/// An open file, closed at the end.
class OpenFile {
 public:
  explicit OpenFile(int file) : file_(file) {}
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  ~OpenFile() {
    if (file_ >= 0) close(file_);
  }
  explicit operator bool() const { return file_ >= 0; }
  int number() const { return file_; }

  bool write_all(std::string_view bytes) const {
    while (!bytes.empty()) {
      const ssize_t written = write(file_, bytes.data(), bytes.size());
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(written));
    }
    return true;
  }

  std::string read_all(size_t bytes) const {
    std::string text(bytes, '\0');
    size_t have = 0;
    while (have < bytes) {
      const ssize_t got = read(file_, text.data() + have, bytes - have);
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) break;
      have += static_cast<size_t>(got);
    }
    text.resize(have);
    return text;
  }

 private:
  int file_;
};

bool is_whole(std::string_view text, std::string_view key) {
  if (text.size() < sizeof(CacheHeader)) return false;
  const CacheHeader expected = header_of(key, text.substr(sizeof(CacheHeader)));
  return std::memcmp(text.data(), &expected, sizeof(expected)) == 0;
}

struct CacheEntry {
  std::string name;
  int64_t used = 0;  // nanoseconds
  int64_t bytes = 0;
};

}  // namespace

CodeCache::CodeCache(const std::string& folder, int64_t most_bytes) : most_bytes_(most_bytes) {
  namespace fs = std::filesystem;
  std::error_code failure;
  const fs::path path(folder);
  if (path.has_parent_path()) fs::create_directories(path.parent_path(), failure);
  mkdir(folder.c_str(), 0700);  // if it is there, what follows decides
  folder_ = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  ORTM_CHECK(folder_ >= 0, "[code cache] ", folder, " must be a folder, but found \"",
             std::strerror(errno), "\": set ORTMODULE_CACHE_DIR");
  struct stat facts {};
  const bool known = fstat(folder_, &facts) == 0;
  if (known && facts.st_uid == geteuid() && (facts.st_mode & 077) == 0) return;
  close(folder_);
  throw Error(str("[code cache] ", folder,
                  " must belong to the user alone, but others may write or read it: remove it, or "
                  "chmod 700"));
}

CodeCache::~CodeCache() { close(folder_); }

std::optional<std::string> CodeCache::find(std::string_view key) const {
  const std::string name = file_name(key);
  const OpenFile file(
      openat(folder_, name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  struct stat facts {};
  if (!file || fstat(file.number(), &facts) != 0 || !S_ISREG(facts.st_mode)) return {};
  std::string text;
  if (facts.st_size <= most_bytes_) text = file.read_all(static_cast<size_t>(facts.st_size));
  if (!is_whole(text, key)) {
    unlinkat(folder_, name.c_str(), 0);
    return {};
  }
  futimens(file.number(), nullptr);  // it was used now
  text.erase(0, sizeof(CacheHeader));
  return text;
}

void CodeCache::keep(std::string_view key, std::string_view code) const {
  static std::atomic<int> parts{0};
  if (static_cast<int64_t>(sizeof(CacheHeader) + code.size()) > most_bytes_) return;
  const std::string name = file_name(key);
  const std::string part = str(name, ".", getpid(), ".", ++parts, kPartSuffix);
  bool written = false;
  {
    const OpenFile file(
        openat(folder_, part.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    const CacheHeader header = header_of(key, code);
    const std::string_view head(reinterpret_cast<const char*>(&header), sizeof(header));
    written = file && file.write_all(head) && file.write_all(code);
  }
  if (!written || renameat(folder_, part.c_str(), folder_, name.c_str()) != 0)
    unlinkat(folder_, part.c_str(), 0);
  remove_oldest();
}

void CodeCache::remove_oldest() const {
  const auto close_folder = [](DIR* dir) { closedir(dir); };
  const int listed = openat(folder_, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const std::unique_ptr<DIR, decltype(close_folder)> dir(listed >= 0 ? fdopendir(listed) : nullptr,
                                                         close_folder);
  if (!dir) return;
  std::vector<CacheEntry> entries;
  int64_t bytes = 0;
  while (const dirent* found = readdir(dir.get())) {
    const std::string name = found->d_name;
    struct stat facts {};
    if (fstatat(folder_, name.c_str(), &facts, AT_SYMLINK_NOFOLLOW) != 0) continue;
    if (name.ends_with(kPartSuffix) && std::time(nullptr) - facts.st_mtime > kStaleSeconds)
      unlinkat(folder_, name.c_str(), 0);
    if (!name.ends_with(kSuffix)) continue;
    const int64_t used = facts.st_mtim.tv_sec * int64_t{1000000000} + facts.st_mtim.tv_nsec;
    entries.push_back({name, used, facts.st_size});
    bytes += facts.st_size;
  }
  std::sort(entries.begin(), entries.end(),
            [](const CacheEntry& a, const CacheEntry& b) { return a.used < b.used; });
  for (const CacheEntry& entry : entries) {
    if (bytes <= most_bytes_) break;
    unlinkat(folder_, entry.name.c_str(), 0);
    bytes -= entry.bytes;
  }
}

}  // namespace ortmodule::cuda
