// Runs every section of tests/golden/*.txt: a graph, a pass, and the graph that must come out.
//
//   // PASS fuse_bias_gelu                 the pass; without it, the file's name
//   // CASE operands swapped               one section; STAGE joint, DEVICE cuda or host may follow
//   g (h: f32[8,64], b: f32[64]) => (y) { s = Add (b, h)  y = Gelu (s) }
//   // EXPECT hits=1                       or: hits=0 reason="why", the graph unchanged
//   g (...) => (y) { ... }
//
// DEVICE host is inference: no gradient will be built. Attention is fused in training, too.
// ORTM_UPDATE_GOLDEN=1 writes what comes out into the files; read the diff before you commit it.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "ir/text.h"
#include "ir/verify.h"
#include "ops/emit.h"
#include "optimizer/pass_manager.h"
#include "optimizer/pipeline.h"

namespace ortmodule {
namespace {

struct Section {
  std::string file;  // stem
  std::string pass;
  std::string name;
  Stage stage = Stage::Forward;
  Device device = Device::CPU;
  std::string input;
  int64_t hits = 0;
  std::string reason;  // empty: none asked for
  std::string expected;
};

// What GoogleTest shows of a section.
void PrintTo(const Section& section, std::ostream* out) {
  *out << section.file << ": " << section.name;
}

std::filesystem::path golden_folder() {
  const char* folder = std::getenv("ORTM_GOLDEN_DIR");
  return folder ? std::filesystem::path(folder)
                : std::filesystem::path(ORTM_SOURCE_DIR) / "tests" / "golden";
}

std::vector<std::filesystem::path> golden_files() {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(golden_folder()))
    if (entry.path().extension() == ".txt") files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

// The rest of the line if it starts with `// KEY `.
std::optional<std::string> marker(const std::string& line, const std::string& key) {
  const std::string start = "// " + key + " ";
  if (!line.starts_with(start)) return {};
  return line.substr(start.size());
}

void read_expectation(const std::string& text, Section& section) {
  section.hits = std::stoll(text.substr(text.find("hits=") + 5));
  const size_t at = text.find("reason=\"");
  if (at != std::string::npos) section.reason = text.substr(at + 8, text.rfind('"') - at - 8);
}

std::vector<Section> read_sections(const std::filesystem::path& file) {
  std::vector<Section> sections;
  std::ifstream in(file);
  std::string pass = file.stem().string();
  std::string* text = nullptr;
  for (std::string line; std::getline(in, line);) {
    if (auto name = marker(line, "PASS")) {
      pass = *name;
    } else if (auto title = marker(line, "CASE")) {
      Section& section = sections.emplace_back();
      section.file = file.stem().string();
      section.pass = pass;
      section.name = *title;
      text = &section.input;
    } else if (auto stage = marker(line, "STAGE")) {
      sections.back().stage = *stage == "joint" ? Stage::Joint : Stage::Forward;
    } else if (auto device = marker(line, "DEVICE")) {
      sections.back().device = *device == "cuda"   ? Device::CUDA
                               : *device == "host" ? Device::Host
                                                   : Device::CPU;
    } else if (auto expectation = marker(line, "EXPECT")) {
      read_expectation(*expectation, sections.back());
      text = &sections.back().expected;
    } else if (text) {
      *text += line + "\n";
    }
  }
  return sections;
}

std::vector<Section> all_sections() {
  std::vector<Section> sections;
  for (const auto& file : golden_files())
    for (Section& section : read_sections(file)) sections.push_back(std::move(section));
  return sections;
}

Pass pass_named(const std::string& name) {
  for (const auto& passes : {forward_passes(), joint_passes()})
    for (const Pass& pass : passes)
      if (pass.name == name) return pass;
  throw Error("no pass is called " + name);
}

std::unique_ptr<Graph> read_graph(const std::string& text) {
  std::unique_ptr<Graph> graph = parse_graph(text);
  infer(*graph);
  return graph;
}

struct Outcome {
  std::string text;
  PassRow row;
  std::unique_ptr<Graph> graph;
};

Outcome run_section(const Section& section, bool partial_reasons = true) {
  std::unique_ptr<Graph> graph = read_graph(section.input);
  OptimizerOptions options;
  options.partial_reasons = partial_reasons;
  options.device = section.device;
  options.training = section.device != Device::Host;
  options.attention =
      section.device == Device::CUDA ? TrainedAttention::TorchCUDA : TrainedAttention::Own;
  options.channels_last = true;
  const PassReport report = run_passes(*graph, section.stage, {pass_named(section.pass)}, options);
  return {print(*graph), report.rows.at(0), std::move(graph)};
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

// Lines of both texts in order, `-` for what is missing and `+` for what should not be there.
std::string difference(const std::string& expected, const std::string& actual) {
  const std::vector<std::string> a = lines_of(expected);
  const std::vector<std::string> b = lines_of(actual);
  std::vector<std::vector<size_t>> common(a.size() + 1, std::vector<size_t>(b.size() + 1, 0));
  for (size_t i = a.size(); i-- > 0;)
    for (size_t k = b.size(); k-- > 0;)
      common[i][k] =
          a[i] == b[k] ? common[i + 1][k + 1] + 1 : std::max(common[i + 1][k], common[i][k + 1]);
  std::string text;
  size_t i = 0;
  size_t k = 0;
  while (i < a.size() || k < b.size()) {
    if (i < a.size() && k < b.size() && a[i] == b[k]) {
      text += "  " + a[i++] + "\n";
      ++k;
    } else if (k >= b.size() || (i < a.size() && common[i + 1][k] >= common[i][k + 1])) {
      text += "- " + a[i++] + "\n";
    } else {
      text += "+ " + b[k++] + "\n";
    }
  }
  return text;
}

std::string reasons_of(const PassRow& row) {
  std::string text;
  for (const Rejection& rejection : row.rejections) text += "  " + rejection.reason + "\n";
  return text;
}

bool has_reason(const PassRow& row, const std::string& reason) {
  return std::any_of(row.rejections.begin(), row.rejections.end(),
                     [&](const Rejection& rejection) { return rejection.reason == reason; });
}

class Golden : public testing::TestWithParam<Section> {};

TEST_P(Golden, Matches) {
  if (std::getenv("ORTM_UPDATE_GOLDEN")) GTEST_SKIP() << "the files are being written";
  const Section& section = GetParam();
  Outcome outcome = run_section(section);
  EXPECT_EQ(run_section(section, false).text, outcome.text) << "with reasons of partial matches";
  EXPECT_EQ(outcome.row.hits, section.hits) << "reasons:\n" << reasons_of(outcome.row);
  if (!section.reason.empty()) {
    EXPECT_TRUE(has_reason(outcome.row, section.reason))
        << "wanted: " << section.reason << "\nfound:\n"
        << reasons_of(outcome.row);
  }
  const bool unchanged = section.expected.find('{') == std::string::npos;
  const std::string expected = print(*read_graph(unchanged ? section.input : section.expected));
  EXPECT_EQ(outcome.text, expected) << difference(expected, outcome.text);
  const Reason invalid = verify(*outcome.graph);
  EXPECT_FALSE(invalid) << *invalid;
  infer(*outcome.graph);
  EXPECT_EQ(print(*outcome.graph), outcome.text) << "types are not what inference says";
}

std::string title(const testing::TestParamInfo<Section>& info) {
  std::string title = info.param.file + "_" + info.param.name;
  for (char& c : title)
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
  return title + "_" + std::to_string(info.index);
}

INSTANTIATE_TEST_SUITE_P(Files, Golden, testing::ValuesIn(all_sections()), title);

std::string updated(const std::filesystem::path& file) {
  std::ifstream in(file);
  std::string text;
  for (std::string line; std::getline(in, line) && !marker(line, "CASE");) text += line + "\n";
  for (const Section& section : read_sections(file)) {
    const Outcome outcome = run_section(section);
    text += "// CASE " + section.name + "\n";
    if (section.stage == Stage::Joint) text += "// STAGE joint\n";
    if (section.device == Device::CUDA) text += "// DEVICE cuda\n";
    if (section.device == Device::Host) text += "// DEVICE host\n";
    text += section.input + str("// EXPECT hits=", outcome.row.hits);
    const auto& rejections = outcome.row.rejections;
    if (!section.reason.empty() && has_reason(outcome.row, section.reason))
      text += " reason=\"" + section.reason + "\"";
    else if (outcome.row.hits == 0 && !rejections.empty())
      text += " reason=\"" + rejections[0].reason + "\"";
    text += "\n";
    if (outcome.row.hits > 0) text += outcome.text;
  }
  return text;
}

TEST(GoldenFiles, Update) {
  if (!std::getenv("ORTM_UPDATE_GOLDEN")) GTEST_SKIP() << "ORTM_UPDATE_GOLDEN=1 writes the files";
  for (const auto& file : golden_files()) {
    const std::string text = updated(file);
    std::ofstream(file) << text;
  }
}

}  // namespace
}  // namespace ortmodule
