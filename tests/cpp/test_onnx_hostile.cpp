// Files made to harm: every one is an Error or a model, within bounded memory and time.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "mutate_onnx.h"
#include "onnx/onnx_file.h"
#include "onnx/onnx_reader.h"
#include "onnx_message.h"

namespace ortmodule {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMiB = size_t{1} << 20;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kCountsMemory = false;  // a sanitizer keeps freed memory
#else
constexpr bool kCountsMemory = true;
#endif

/// Bytes that end where their memory ends, so that a sanitizer sees a read beyond them.
SharedBytes exact_bytes(const std::string& bytes) {
  const std::shared_ptr<char[]> owner(new char[bytes.size()]);
  std::copy(bytes.begin(), bytes.end(), owner.get());
  return {owner, std::string_view(owner.get(), bytes.size())};
}

std::string error_of(const std::string& bytes) {
  try {
    parse_onnx_model(exact_bytes(bytes), "m");
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

/// The largest resident memory of the process since the last reset.
class PeakMemory {
 public:
  PeakMemory() { std::ofstream("/proc/self/clear_refs") << "5"; }
  size_t bytes() const {
    std::ifstream in("/proc/self/status");
    for (std::string word; in >> word;) {
      size_t kib = 0;
      if (word == "VmHWM:" && in >> kib) return kib * 1024;
    }
    return 0;
  }
};

/// Graphs within each other, as attributes of nodes.
Message nested_graphs(int depth) {
  Message graph;
  for (int i = 1; i < depth; ++i) {
    const Message node =
        node_message("If", {}, {"y"}).message(5, attr_message("then", 5).message(6, graph));
    graph = Message().message(1, node);
  }
  return model_message(graph);
}

Message nested_types(int depth) {
  Message type = tensor_type_message(1, {});
  for (int i = 1; i < depth; ++i) type = Message().message(4, Message().message(1, type));
  return type;
}

TEST(OnnxHostile, NestingIsBounded) {
  EXPECT_EQ(error_of(nested_graphs(64).bytes()), "no error");
  EXPECT_NE(error_of(nested_graphs(65).bytes()).find("nested at most 64 deep"), std::string::npos);
  EXPECT_NE(error_of(nested_graphs(2000).bytes()).find("nested at most 64 deep"),
            std::string::npos);
  auto with_type = [](const Message& type) {
    return model_message(Message().message(11, value_message("x", type))).bytes();
  };
  EXPECT_EQ(error_of(with_type(nested_types(63))), "no error");
  EXPECT_NE(error_of(with_type(nested_types(64))).find("nested at most 64 deep"),
            std::string::npos);
  const Message node =
      node_message("Op", {}, {}).message(5, attr_message("t", 13).message(14, nested_types(2000)));
  const Message function = Message().text(1, "f").message(7, node);
  EXPECT_NE(error_of(Message().message(25, function).bytes()).find("nested at most 64 deep"),
            std::string::npos);
}

// A model takes more memory than its file, but not without bound.
TEST(OnnxHostile, MemoryIsBoundedByTheFile) {
  std::string nodes;
  std::string inputs;
  std::string dims;
  for (int i = 0; i < 300000; ++i) {
    nodes += Message().message(1, Message().text(4, "A")).bytes();
    if (i % 4 != 0) continue;
    inputs += Message().text(1, "").bytes();
    dims += Message().message(1, Message()).bytes();
  }
  const Message node = Message().text(4, "A").raw_text(inputs);
  const Message type = Message().message(1, Message().number(1, 1).text(2, dims));
  const std::string many_inputs = Message().message(1, node).bytes();
  const std::string many_dims = Message().message(11, value_message("x", type)).bytes();
  for (const std::string& graph : {nodes, many_inputs, many_dims}) {
    const std::string bytes = Message().text(7, graph).bytes();
    const PeakMemory peak;
    const size_t before = peak.bytes();
    const std::string error = error_of(bytes);
    if (graph == nodes)
      EXPECT_NE(error.find("must not take more than 32 times"), std::string::npos) << error;
    else
      EXPECT_EQ(error, "no error");
    // A list doubles while it grows.
    if (kCountsMemory) {
      EXPECT_LT(peak.bytes(), before + 3 * (32 * bytes.size() + 16 * kMiB));
    }
  }
}

/// A file that ends with the data of a tensor of one byte each, all 0. It takes no disk space.
std::string file_of(const fs::path& path, size_t tensor_bytes) {
  const Message tensor = tensor_message("w", 2, {tensor_bytes}).start(9, tensor_bytes);
  const Message graph = Message().start(5, tensor.bytes().size() + tensor_bytes);
  const size_t graph_bytes = graph.bytes().size() + tensor.bytes().size() + tensor_bytes;
  const std::string start =
      Message().start(7, graph_bytes).bytes() + graph.bytes() + tensor.bytes();
  std::ofstream(path, std::ios::binary) << start;
  fs::resize_file(path, start.size() + tensor_bytes);
  return path.string();
}

TEST(OnnxHostile, LargeTensorsStayInTheFile) {
  const fs::path path = fs::temp_directory_path() / str("ortmodule_large_", getpid(), ".onnx");
  const std::string name = file_of(path, 1500 * kMiB);
  const PeakMemory peak;
  const size_t before = peak.bytes();
  const OnnxModel model = read_onnx_model(name);
  EXPECT_EQ(model.graph.initializers[0].tensor.bytes.size(), 1500 * kMiB);
  if (kCountsMemory) {
    EXPECT_LT(peak.bytes() - before, kMiB);
  }
  file_of(path, 2500 * kMiB);
  EXPECT_THROW(read_onnx_model(name), Error);
  fs::remove(path);
}

TEST(OnnxHostile, LengthsAreChecked) {
  const std::string bytes = model_of_attributes().bytes();
  for (size_t size = 0; size < bytes.size(); ++size)
    EXPECT_NE(error_of(bytes.substr(0, size)), "no error") << size;
  EXPECT_EQ(error_of(bytes), "no error");
  for (const char* length : {"\xff\xff\xff\xff\x07", "\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
                             "\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "\x01"})
    EXPECT_NE(error_of(str("\x3a", length)).find("must end within its message"), std::string::npos);
}

// ---- mutations
// -----------------------------------------------------------------------------------

/// Ten small models with everything that a file may hold.
class OnnxMutations : public testing::Test {
 protected:
  OnnxMutations() : folder_(fs::temp_directory_path() / str("ortmodule_hostile_", getpid())) {
    fs::create_directories(folder_);
    std::ofstream(folder_ / "w.bin") << "0123456789abcdef";
    const Message floats = tensor_message("w", 1, {3}).packed_fixed<float>(4, {1, 2, 3});
    const Message unpacked = tensor_message("w", 6, {2}).number(5, 1).number(5, 200);
    const Message raw = tensor_message("w", 1, {2, 2}).text(9, "abcdefghijklmnop");
    const Message text = tensor_message("w", 8, {2}).text(6, "ab").text(6, "c");
    const auto external =
        external_message("w", {2}, {{"location", "w.bin"}, {"offset", "4"}, {"length", "8"}});
    for (const Message& seed :
         {model_of_attributes(), model_of_functions(), model_of_types(), model_with(floats),
          model_with(unpacked), model_with(raw), model_with(text), model_with(external),
          model_with(sparse_message(), 15)})
      seeds_.push_back(seed.bytes());
    seeds_.push_back(written());
  }
  ~OnnxMutations() override { fs::remove_all(folder_); }

  std::string written() const {
    const std::string path = (folder_ / "m.onnx").string();
    write_onnx_file(parse_onnx_model(model_of_functions().bytes(), "m"), path, {.threshold = kMiB});
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  }

  /// Whether the bytes are a model. All that it refers to is read.
  bool is_model(const std::string& bytes) const {
    try {
      const OnnxModel model = parse_onnx_model(exact_bytes(bytes), "m", folder_.string());
      return !ModelText::of(model).empty();
    } catch (const Error& error) {
      EXPECT_TRUE(std::string_view(error.what()).starts_with("[onnx] m: ")) << error.what();
      return false;
    }
  }

  fs::path folder_;
  std::vector<std::string> seeds_;
  Mutator random_{35};
};

TEST_F(OnnxMutations, AnErrorOrAModel) {
  for (const std::string& seed : seeds_) EXPECT_TRUE(is_model(seed));
  const PeakMemory peak;
  const size_t before = peak.bytes();
  size_t models = 0;
  constexpr size_t kMutants = 10000;
  for (size_t i = 0; i < kMutants; ++i) {
    std::string bytes = seeds_[i % seeds_.size()];
    for (size_t changes = 1 + random_.below(3); changes > 0; --changes) random_.change(bytes);
    models += is_model(bytes) ? 1 : 0;
  }
  EXPECT_GT(models, kMutants / 50);
  EXPECT_LT(models, kMutants / 2);
  if (kCountsMemory) {
    EXPECT_LT(peak.bytes(), before + 64 * kMiB);
  }
}

}  // namespace
}  // namespace ortmodule
