// Plans as text: tests/golden/plans/*.txt hold a forward graph, and the plan of it and its
// gradient.
//
//   // SYMBOLS n=8            sizes by symbol
//   // RECOMPUTE h t          values that backward recomputes
//   g (x: f32[n,64], w: param grad f32[64,64]) => (y) { ... }
//   // PLAN
//   plan for n=8 ...
//
// ORTM_UPDATE_GOLDEN=1 writes the plans into the files; read the diff before you commit it.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "gradient/build_gradient.h"
#include "ir/text.h"
#include "ops/emit.h"
#include "plan/make_plan.h"

namespace ortmodule {
namespace {

constexpr std::string_view kPlan = "// PLAN\n";

struct Case {
  std::filesystem::path file;
  std::string head;  // up to the plan
  std::string plan;
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.file.stem().string(); }

std::vector<Case> all_cases() {
  const char* folder = std::getenv("ORTM_GOLDEN_DIR");
  const std::filesystem::path root =
      folder ? folder : std::filesystem::path(ORTM_SOURCE_DIR) / "tests" / "golden";
  std::vector<Case> cases;
  for (const auto& entry : std::filesystem::directory_iterator(root / "plans")) {
    std::ostringstream text;
    text << std::ifstream(entry.path()).rdbuf();
    const size_t at = text.str().find(kPlan);
    EXPECT_NE(at, std::string::npos) << entry.path();
    const size_t begin = at + kPlan.size();
    cases.push_back({entry.path(), text.str().substr(0, begin), text.str().substr(begin)});
  }
  std::sort(cases.begin(), cases.end(),
            [](const Case& a, const Case& b) { return a.file < b.file; });
  return cases;
}

/// The words of the line `// KEY words`.
std::vector<std::string> words_after(const std::string& text, const std::string& key) {
  std::vector<std::string> words;
  const std::string start = "// " + key + " ";
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with(start)) continue;
    std::istringstream rest(line.substr(start.size()));
    for (std::string word; rest >> word;) words.push_back(word);
  }
  return words;
}

Layout dense(const Sizes& sizes) { return {sizes, contiguous_strides(sizes), 0}; }

std::string plan_text(const std::string& head) {
  std::unique_ptr<Graph> forward = parse_graph(head);
  infer(*forward);
  const std::unique_ptr<Graph> joint = build_gradient(*forward);
  PlanRequest request;
  for (const std::string& binding : words_after(head, "SYMBOLS")) {
    const size_t equal = binding.find('=');
    request.symbols.bind(binding.substr(0, equal), std::stoll(binding.substr(equal + 1)));
  }
  MemoryDecisions decisions;
  for (const std::string& name : words_after(head, "RECOMPUTE"))
    for (const Value* value : joint->values())
      if (!value->is_literal() && value->name == name) decisions.recompute.push_back(value->id());
  const Lowered lowered = lower(*joint, Device::CPU, decisions);
  for (const GraphInput& input : lowered.graph->inputs())
    request.arguments.push_back(dense(evaluate(input.value->dims, request.symbols)));
  return print(*make_plan(lowered, request));
}

class PlanText : public testing::TestWithParam<Case> {};

TEST_P(PlanText, IsAsWritten) {
  const Case& c = GetParam();
  const std::string found = plan_text(c.head);
  if (std::getenv("ORTM_UPDATE_GOLDEN")) {
    std::ofstream(c.file) << c.head << found;
    return;
  }
  EXPECT_EQ(found, c.plan);
}

INSTANTIATE_TEST_SUITE_P(Golden, PlanText, testing::ValuesIn(all_cases()),
                         [](const auto& info) { return info.param.file.stem().string(); });

}  // namespace
}  // namespace ortmodule
