// Sessions of changed models: each import and run is an Error or a result, within bounded memory.
// ORTM_MODELS names a folder of more models (`python -m tests.onnx_backend FOLDER` writes some),
// ORTM_MUTANTS and ORTM_FIRST_MUTANT which mutants to try.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <mutex>
#include <set>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "inference/inference_session.h"
#include "mutate_onnx.h"
#include "onnx/onnx_reader.h"
#include "onnx_message.h"
#include "small_onnx_models.h"

namespace ortmodule::testing {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kLimitBytes = int64_t{256} << 20;

/// Ends a run that takes too long.
class Watchdog {
 public:
  explicit Watchdog(std::chrono::seconds limit)
      : thread_([this, limit](const std::stop_token& stop) {
          std::unique_lock lock(mutex_);
          ended_.wait_for(lock, stop, limit, [] { return false; });
          terminate_ = true;
        }) {}
  const std::atomic<bool>* terminate() const { return &terminate_; }

 private:
  std::mutex mutex_;
  std::condition_variable_any ended_;
  std::atomic<bool> terminate_{false};
  std::jthread thread_;
};

/// Tensors with small numbers for all inputs of a session.
class Feeds {
 public:
  Feeds(const InferenceSession& session, Mutator& random) {
    for (size_t i = 0; i < session.inputs().size(); ++i)
      feeds_.push_back(feed_of(session, i, random));
    feeds_.resize(session.inputs().size() + session.overridable().size());
  }
  /// Whether each input has a type that feeds are made for.
  bool complete() const { return complete_; }
  const std::vector<HostFeed>& get() const { return feeds_; }

 private:
  HostFeed feed_of(const InferenceSession& session, size_t input, Mutator& random) {
    const OnnxType* type = &session.inputs()[input]->type;
    HostFeed feed;
    feed.is_sequence = type->kind == OnnxType::Kind::Sequence;
    if (feed.is_sequence) type = type->element.get();
    if (!type || type->kind != OnnxType::Kind::Tensor || type->dtype == DType::Undefined ||
        size_of(type->dtype) == 0) {
      complete_ = false;
      return {};
    }
    HostTensorView view;
    view.dtype = type->dtype;
    int64_t count = 1;
    for (const OnnxDim& dim : type->dims.value_or(std::vector<OnnxDim>{})) {
      const int64_t* size = std::get_if<int64_t>(&dim);
      view.sizes.push_back(size ? std::clamp<int64_t>(*size, 0, 1 << 16) : 2);
      count = std::min(count * view.sizes.back(), int64_t{1} << 20);
    }
    complete_ &= count < int64_t{1} << 20;
    view.data = elements(type->dtype, complete_ ? static_cast<size_t>(count) : 1, random);
    feed.tensors.push_back(std::move(view));
    return feed;
  }

  const void* elements(DType dtype, size_t count, Mutator& random) {
    const size_t width = size_of(dtype);
    const bool is_integer = !is_floating(dtype) && dtype != DType::Complex64;
    // Exactly as long as the tensor, so that a sanitizer sees a read beyond it.
    std::unique_ptr<std::byte[]>& memory = memory_.emplace_back(new std::byte[count * width]);
    for (size_t i = 0; i < count * width; ++i)
      memory[i] = is_integer ? std::byte(i % width == 0 ? random.below(2) : 0)
                             : std::byte(random.below(64));
    return memory.get();
  }

  std::vector<std::unique_ptr<std::byte[]>> memory_;
  std::vector<HostFeed> feeds_;
  bool complete_ = true;
};

class MutatedSessions : public ::testing::Test {
 protected:
  MutatedSessions() {
    for (const std::string& model : {sum_model(), sequence_model(), optional_model(),
                                     model_of_attributes().bytes(), model_of_functions().bytes()})
      seeds_.push_back(model);
    if (const char* folder = std::getenv("ORTM_MODELS")) read_all(folder);
    std::set<std::string> ops;
    for (const std::string& seed : seeds_) {
      const OnnxModel model = parse_onnx_model(SharedBytes(seed), "m");
      for (const OnnxNode& node : model.graph.nodes) ops.insert(node.op);
    }
    ops_.assign(ops.begin(), ops.end());
  }

  void read_all(const fs::path& folder) {
    std::set<fs::path> paths;
    for (const auto& entry : fs::directory_iterator(folder))
      if (entry.path().extension() == ".onnx") paths.insert(entry.path());
    for (const fs::path& path : paths) {
      std::ifstream in(path, std::ios::binary);
      seeds_.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
    }
  }

  /// The model of a mutant: bytes changed of every second one, of the others nodes.
  OnnxModel mutant(size_t index, Mutator& random) {
    std::string bytes = seeds_[random.below(seeds_.size())];
    const size_t changes = 1 + random.below(2);
    if (index % 2 == 0)
      for (size_t i = 0; i < changes; ++i) random.change(bytes);
    OnnxModel model = parse_onnx_model(SharedBytes(bytes), "m");
    if (index % 2 == 1)
      for (size_t i = 0; i < changes; ++i) random.change(model, ops_);
    return model;
  }

  /// Whether the mutant ran to its end.
  bool runs(size_t index) {
    Mutator random(static_cast<uint32_t>(index));
    try {
      InferenceOptions options;
      options.threads = 1;
      options.seed = 1;
      options.memory.limit_bytes = kLimitBytes;
      OnnxModel model = mutant(index, random);
      if (std::getenv("ORTM_MUTANTS"))  // what ended the process, if it does
        std::ofstream(fs::temp_directory_path() / "ortmodule_mutant") << index << '\n'
                                                                      << ModelText::of(model);
      InferenceSession session(std::make_shared<LoadedModel>(std::move(model)), options);
      const Feeds feeds(session, random);
      if (!feeds.complete()) return false;
      const Watchdog watchdog(std::chrono::seconds(20));
      session.run(feeds.get(), {}, watchdog.terminate());
      return true;
    } catch (const Error& error) {
      EXPECT_EQ(std::string_view(error.what()).find("internal error"), std::string_view::npos)
          << "mutant " << index << ": " << error.what();
      return false;
    }
  }

  std::vector<std::string> seeds_;
  std::vector<std::string> ops_;
};

size_t number_in(const char* variable, size_t otherwise) {
  const char* text = std::getenv(variable);
  return text ? std::strtoull(text, nullptr, 10) : otherwise;
}

TEST_F(MutatedSessions, AnErrorOrAResult) {
  using Clock = std::chrono::steady_clock;
  constexpr size_t kFew = 300;
  const size_t first = number_in("ORTM_FIRST_MUTANT", 0);
  const size_t count = number_in("ORTM_MUTANTS", kFew);
  size_t ran = 0;
  for (size_t index = first; index < first + count; ++index) {
    const Clock::time_point start = Clock::now();
    ran += runs(index) ? 1 : 0;
    const std::chrono::duration<double> seconds = Clock::now() - start;
    if (seconds > std::chrono::seconds(5))
      std::cout << "mutant " << index << " took " << seconds.count() << " s\n";
    EXPECT_LT(seconds.count(), 60) << "mutant " << index;
  }
  if (count != kFew) std::cout << ran << " of " << count << " ran\n";
  if (count >= kFew) {
    EXPECT_GT(ran, count / 50);
    EXPECT_LT(ran, count);
  }
}

}  // namespace
}  // namespace ortmodule::testing
