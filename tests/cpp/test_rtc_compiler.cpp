// NVRTC without a driver: machine code of real groups for the GPUs that releases support. Skipped
// where CUDA's wheels are not installed.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "kernels/cuda/pointwise_source.h"
#include "kernels/cuda/rtc_compiler.h"
#include "pointwise_samples.h"

namespace ortmodule::testing {
namespace {

namespace fs = std::filesystem;

/// ORTM_NVRTC, or the wheels' folder in an environment beside the sources.
std::string rtc_folder() {
  std::vector<std::string> folders;
  if (const char* given = std::getenv("ORTM_NVRTC")) folders.emplace_back(given);
  std::error_code ignored;
  for (const auto& lib : fs::directory_iterator(ORTM_SOURCE_DIR "/.venv-cuda/lib", ignored))
    for (const auto& part :
         fs::directory_iterator(lib.path() / "site-packages" / "nvidia", ignored))
      folders.push_back((part.path() / "lib").string());
  return cuda::folder_with_rtc(folders);
}

#define ORTM_NEED_RTC(folder)                                               \
  const std::string folder = rtc_folder();                                  \
  if (folder.empty())                                                       \
  GTEST_SKIP() << "no libnvrtc: `make cuda` installs it in .venv-cuda, or " \
                  "ORTM_NVRTC names its folder"

TEST(RtcCompiler, CompilesForEveryArchitecture) {
  ORTM_NEED_RTC(folder);
  const cuda::RtcCompiler compiler(folder);
  EXPECT_GE(compiler.version(), 12000);
  for (const auto& [name, example] : pointwise_samples()) {
    const auto program = cuda::compile_pointwise(example.facts());
    const cuda::PointwiseSource source = cuda::pointwise_source(*program, "pointwise_group");
    for (int architecture : {75, 80, 90, 100}) {
      const std::string cubin = compiler.compile(source.text, architecture);
      EXPECT_EQ(cubin.substr(0, 4),
                "\x7f"
                "ELF")
          << name;
      EXPECT_NE(cubin.find("pointwise_group"), std::string::npos) << name;
      if (const char* to = std::getenv("ORTM_CUBINS"))
        std::ofstream(str(to, "/", name, ".sm_", architecture, ".cubin"), std::ios::binary)
            << cubin;
    }
  }
}

TEST(RtcCompiler, CompilesEveryFormula) {
  ORTM_NEED_RTC(folder);
  const cuda::RtcCompiler compiler(folder);
  RandomGroups groups(11);
  std::vector<OpRow> rows;
  for (const OpRow& row : kOpRows) {
    const bool is_library =
        row.loop == PointwiseLoop::unary_library || std::string_view(row.name) == "Atan2";
    if (row.in != Compute::F64 && !(is_library && row.in == Compute::F32)) rows.push_back(row);
  }
  std::string text;
  for (size_t i = 0; i < rows.size(); i += 16) {
    const size_t end = std::min(i + 16, rows.size());
    const PointwiseExample example =
        groups.group_of({rows.begin() + static_cast<std::ptrdiff_t>(i),
                         rows.begin() + static_cast<std::ptrdiff_t>(end)});
    text +=
        cuda::pointwise_source(*cuda::compile_pointwise(example.facts()), str("group_", i)).text;
  }
  EXPECT_EQ(compiler.compile(text, 90).substr(0, 4),
            "\x7f"
            "ELF");
}

TEST(RtcCompiler, NamesWhatCodeDependsOn) {
  ORTM_NEED_RTC(folder);
  const cuda::RtcCompiler compiler(folder);
  const std::vector<int>& known = compiler.architectures();
  EXPECT_TRUE(std::is_sorted(known.begin(), known.end()));
  EXPECT_EQ(std::count(known.begin(), known.end(), 90), 1);
  const std::string environment = compiler.environment();
  EXPECT_EQ(environment.find(str("nvrtc ", compiler.version(), " ")), 0u);
  EXPECT_NE(environment.find("--fmad=false"), std::string::npos);
  EXPECT_NE(environment.find("struct GeluGrad"), std::string::npos);
}

TEST(RtcCompiler, RepeatsTheCompilersMessages) {
  ORTM_NEED_RTC(folder);
  const cuda::RtcCompiler compiler(folder);
  try {
    compiler.compile("__global__ void f() { undeclared(); }", 90);
    FAIL() << "wrong code compiled";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("undeclared"), std::string::npos) << error.what();
  }
}

TEST(RtcCompiler, SaysWhereItLooked) {
  try {
    const cuda::RtcCompiler compiler("/nowhere");
    FAIL() << "a library was found in /nowhere";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("/nowhere"), std::string::npos);
  }
  EXPECT_EQ(cuda::folder_with_rtc({"/nowhere"}), "");
}

}  // namespace
}  // namespace ortmodule::testing
