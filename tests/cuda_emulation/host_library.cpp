#include "host_library.h"

#include <dlfcn.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "base/error.h"
#include "emulation.h"

namespace ortmodule::cuda::emulation {
namespace {

namespace fs = std::filesystem;

// The library asks this program where the running fiber is.
constexpr const char* kPositionText = R"(
namespace ortmodule::cuda::emulation {
static const Position& (*current_position)();
const Position& position() { return current_position(); }
}  // namespace ortmodule::cuda::emulation
extern "C" __attribute__((visibility("default"))) void ortm_tell_position(
    const ortmodule::cuda::emulation::Position& (*position)()) {
  ortmodule::cuda::emulation::current_position = position;
}
)";

/// A folder for one compilation or library, removed with its contents.
class HostFolder {
 public:
  HostFolder() {
    std::string pattern = (fs::temp_directory_path() / "ortmodule_host_XXXXXX").string();
    ORTM_CHECK(mkdtemp(pattern.data()), "[cuda_emulation] no folder can be made in ",
               fs::temp_directory_path().string());
    path_ = pattern;
  }
  HostFolder(const HostFolder&) = delete;
  HostFolder& operator=(const HostFolder&) = delete;
  ~HostFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  std::string file(const char* name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

class HostCode : public LoadedCode {
 public:
  HostCode(const std::string& bytes, std::string name)
      : name_(std::move(name)), kernel_(HostLibrary(bytes).kernel(name_)) {}

  void launch(const PointwiseLaunch& launch, int64_t blocks, const KernelContext&) const override {
    emulation::launch(name_.c_str(), Dim3(static_cast<unsigned>(blocks)), Dim3(kPointwiseThreads),
                      0, [&] { kernel_(launch); });
  }

 private:
  std::string name_;
  HostLibrary::Kernel kernel_;
};

std::string contents_of(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace

std::string compile_for_host(const std::string& text) {
  const HostFolder folder;
  const std::string source = folder.file("code.cpp"), library = folder.file("code.so"),
                    messages = folder.file("messages");
  std::ofstream(source) << text << kPositionText;
  const std::string command =
      str(ORTM_CXX
          " -std=c++20 -O1 -ffp-contract=off -fPIC -shared -Wno-unknown-pragmas "
          "-DORTM_CUDA_EMULATION -DORTM_ISA=cuda_emulation -I" ORTM_SOURCE_DIR
          "/csrc -I" ORTM_SOURCE_DIR "/tests/cuda_emulation -o ",
          library, " ", source, " > ", messages, " 2>&1");
  const int status = std::system(command.c_str());
  ORTM_CHECK(status == 0, "[cuda_emulation] generated code must compile, but found:\n",
             contents_of(messages), text);
  return contents_of(library);
}

HostLibrary::HostLibrary(const std::string& bytes) {
  const HostFolder folder;
  const std::string file = folder.file("code.so");
  std::ofstream(file, std::ios::binary) << bytes;
  library_ = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  ORTM_CHECK(library_, "[cuda_emulation] generated code must load, but found ", dlerror());
  const auto tell =
      reinterpret_cast<void (*)(const Position& (*)())>(dlsym(library_, "ortm_tell_position"));
  ORTM_CHECK(tell, "[cuda_emulation] no compiled code was found in ", bytes.size(), " bytes");
  tell(&position);
}

HostLibrary::Kernel HostLibrary::kernel(const std::string& name) const {
  const auto kernel = reinterpret_cast<Kernel>(dlsym(library_, name.c_str()));
  ORTM_CHECK(kernel, "[cuda_emulation] generated code must hold ", name);
  return kernel;
}

std::string HostCodeMaker::environment(int device) const {
  return str(ORTM_CXX " " __VERSION__ " device ", device, "\n");
}

std::string HostCodeMaker::compile(const PointwiseSource& source, int) const {
  return compile_for_host(source.text);
}

std::unique_ptr<LoadedCode> HostCodeMaker::load(const std::string& code,
                                                const PointwiseSource& source, int) const {
  return std::make_unique<HostCode>(code, source.name);
}

static const RegisterStepCompiler host_compiler_of_build([](const std::vector<std::string>&,
                                                            const std::string& cache_folder) {
  enable_generated_code(std::make_unique<HostCodeMaker>(), cache_folder);
});

}  // namespace ortmodule::cuda::emulation
