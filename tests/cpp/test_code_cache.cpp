// The cache of machine code on disk: what it keeps, what it refuses, several processes at once.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "base/error.h"
#include "kernels/cuda/code_cache.h"

namespace ortmodule::cuda {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kPlenty = 1 << 20;

class CodeCacheTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "ortmodule_cache_XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
    folder_ = root_ + "/a/kernels";
  }
  void TearDown() override { fs::remove_all(root_); }

  std::vector<fs::path> files() const {
    std::vector<fs::path> found;
    for (const auto& entry : fs::directory_iterator(folder_)) found.push_back(entry.path());
    return found;
  }
  std::string refusal() const {
    try {
      const CodeCache cache(folder_, kPlenty);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }

  std::string root_, folder_;
};

TEST_F(CodeCacheTest, KeepsCodeByKey) {
  const std::string code("ELF\0code", 8);
  {
    const CodeCache cache(folder_, kPlenty);
    EXPECT_FALSE(cache.find("key"));
    cache.keep("key", code);
    EXPECT_EQ(cache.find("key"), code);
    EXPECT_FALSE(cache.find("key "));
    cache.keep("key", "newer");
  }
  const CodeCache again(folder_, kPlenty);
  EXPECT_EQ(again.find("key"), "newer");
  EXPECT_EQ(files().size(), 1u);
  struct stat facts {};
  ASSERT_EQ(stat(folder_.c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 0777, 0700u);
}

TEST_F(CodeCacheTest, RemovesWhatIsNotWhole) {
  const CodeCache cache(folder_, kPlenty);
  const std::string code(1000, 'x');
  for (int damage = 0; damage < 4; ++damage) {
    cache.keep("key", code);
    const fs::path file = files().at(0);
    if (damage == 0) fs::resize_file(file, fs::file_size(file) - 1);
    if (damage == 1) fs::resize_file(file, 3);
    if (damage == 2) std::fstream(file).seekp(500) << 'y';
    if (damage == 3) std::ofstream(file, std::ios::app) << 'x';
    EXPECT_FALSE(cache.find("key")) << damage;
    EXPECT_TRUE(files().empty()) << damage;
  }
  // Another key's file under this one's name.
  cache.keep("other", code);
  const fs::path other = files().at(0);
  cache.keep("key", code);
  for (const fs::path& file : files())
    if (file != other) fs::copy_file(other, file, fs::copy_options::overwrite_existing);
  EXPECT_FALSE(cache.find("key"));
  EXPECT_EQ(cache.find("other"), code);
}

TEST_F(CodeCacheTest, DropsTheLeastRecentlyUsed) {
  const std::string code(1000, 'x');
  const CodeCache cache(folder_, 3500);
  for (const char* key : {"a", "b", "c"}) {
    cache.keep(key, code);
    usleep(20000);
  }
  EXPECT_TRUE(cache.find("a"));
  usleep(20000);
  cache.keep("d", code);
  EXPECT_TRUE(cache.find("a"));
  EXPECT_FALSE(cache.find("b"));
  EXPECT_TRUE(cache.find("c"));
  EXPECT_TRUE(cache.find("d"));
  cache.keep("large", std::string(4000, 'x'));
  EXPECT_FALSE(cache.find("large"));
  EXPECT_EQ(files().size(), 3u);
}

TEST_F(CodeCacheTest, RefusesFoldersOfOthers) {
  EXPECT_EQ(refusal(), "");
  fs::permissions(folder_, fs::perms::group_write, fs::perm_options::add);
  EXPECT_NE(refusal().find("must belong to the user alone"), std::string::npos);
  fs::remove_all(folder_);
  fs::create_directory(root_ + "/real");
  fs::create_directory_symlink(root_ + "/real", folder_);
  EXPECT_NE(refusal().find("must be a folder"), std::string::npos);
  fs::remove(folder_);
  std::ofstream(folder_) << "a file";
  EXPECT_NE(refusal().find("must be a folder"), std::string::npos);
}

TEST_F(CodeCacheTest, DoesNotFollowLinksToFiles) {
  const CodeCache cache(folder_, kPlenty);
  cache.keep("key", "code");
  const fs::path file = files().at(0);
  fs::rename(file, root_ + "/elsewhere");
  fs::create_symlink(root_ + "/elsewhere", file);
  EXPECT_FALSE(cache.find("key"));
}

// Each process keeps and reads the same few keys, in a cache that overflows all the time.
int use_cache(const std::string& folder, int process) {
  const CodeCache cache(folder, 20000);
  for (int i = 0; i < 300; ++i) {
    const std::string key = str("key ", (i * 7 + process) % 5);
    const std::string code(3000 + static_cast<size_t>(key.back()) * 10, key.back());
    const auto found = cache.find(key);
    if (found && *found != code) return 1;
    if (!found || i % 3 == 0) cache.keep(key, code);
  }
  return 0;
}

TEST_F(CodeCacheTest, ServesTwoProcessesAtOnce) {
  const pid_t child = fork();
  if (child == 0) {
    int status = 2;
    try {
      status = use_cache(folder_, 1);
    } catch (...) {
    }
    _exit(status);
  }
  EXPECT_EQ(use_cache(folder_, 0), 0);
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  for (const fs::path& file : files()) EXPECT_EQ(file.extension(), ".code");
  int64_t bytes = 0;
  for (const fs::path& file : files()) bytes += static_cast<int64_t>(fs::file_size(file));
  EXPECT_LE(bytes, 20000);
}

TEST_F(CodeCacheTest, RemovesWhatADeadProcessLeft) {
  const CodeCache cache(folder_, kPlenty);
  const std::string old = folder_ + "/x.code.1.1.part", young = folder_ + "/x.code.1.2.part";
  std::ofstream(old) << "half";
  std::ofstream(young) << "half";
  fs::last_write_time(old, fs::file_time_type::clock::now() - std::chrono::hours(1));
  cache.keep("key", "code");
  EXPECT_FALSE(fs::exists(old));
  EXPECT_TRUE(fs::exists(young));
}

}  // namespace
}  // namespace ortmodule::cuda
