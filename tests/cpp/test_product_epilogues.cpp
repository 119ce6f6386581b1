// The choices between epilogues and parts: what is kept, by whom, and what is never measured.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "kernels/product_epilogues.h"
#include "temporary_folder.h"

namespace ortmodule::testing {
namespace {

namespace fs = std::filesystem;

/// Of a problem that takes so long; the number of measurements is counted.
class Measure {
 public:
  Measure(float epilogue_us, float parts_us) : times_{epilogue_us, parts_us} {}
  bool of(EpilogueChoices& choices, const std::string& problem = "a problem") {
    return choices.chooses_epilogue(problem, [this] {
      ++count;
      return std::optional(times_);
    });
  }
  int count = 0;

 private:
  EpilogueTimes times_;
};

std::string contents(const std::string& file) {
  std::ostringstream text;
  text << std::ifstream(file).rdbuf();
  return text.str();
}

TEST(EpilogueChoices, AreMadeOnceAndKept) {
  const TemporaryFolder folder;
  const std::string file = folder / "a/b/choices";
  Measure slow(10, 5), fast(5, 10), close(10, 9.8F);
  {
    EpilogueChoices choices(file);
    EXPECT_FALSE(slow.of(choices));
    EXPECT_FALSE(fast.of(choices)) << "the first choice holds";
    EXPECT_TRUE(close.of(choices, "a close one"));
    EXPECT_EQ(fast.count, 0);
  }
  EXPECT_EQ(contents(file), "parts\t10\t5\ta problem\nepilogue\t10\t9.8\ta close one\n");
  EpilogueChoices later(file);
  EXPECT_FALSE(fast.of(later));
  EXPECT_TRUE(slow.of(later, "a close one"));
  EXPECT_EQ(fast.count + slow.count, 1);
  const auto measured = later.measured();
  ASSERT_EQ(measured.size(), 2u);
  EXPECT_EQ(measured[0].problem, "a close one");
  EXPECT_EQ(measured[1].times.parts_us, 5);
}

TEST(EpilogueChoices, OfAnotherProcessHold) {
  const TemporaryFolder folder;
  const std::string file = folder / "choices";
  Measure slow(10, 5), fast(5, 10);
  EpilogueChoices before(file);
  const pid_t child = fork();
  if (child == 0) {
    EpilogueChoices choices(file);
    _exit(slow.of(choices) ? 1 : 0);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_FALSE(fast.of(before));
  EXPECT_EQ(fast.count, 0);
  // Or while this one measures.
  const bool epilogue = before.chooses_epilogue("another", [&] {
    EpilogueChoices other(file);
    EXPECT_FALSE(slow.of(other, "another"));
    return std::optional(EpilogueTimes{5, 10});
  });
  EXPECT_FALSE(epilogue);
}

TEST(EpilogueChoices, ThatCannotBeKeptAreNotMade) {
  const TemporaryFolder folder;
  std::ofstream(folder / "file") << "no folder";
  Measure slow(10, 5);
  for (const std::string& file : {std::string(), folder / "file/choices", folder / "."}) {
    EpilogueChoices choices(file);
    EXPECT_TRUE(slow.of(choices));
    EXPECT_TRUE(choices.measured().empty());
  }
  EXPECT_EQ(slow.count, 0);
}

TEST(EpilogueChoices, ThatCannotBeMeasuredNowAreEpilogues) {
  const TemporaryFolder folder;
  EpilogueChoices choices(folder / "choices");
  EXPECT_TRUE(choices.chooses_epilogue("a problem", [] { return std::nullopt; }));
  Measure slow(10, 5);
  EXPECT_TRUE(slow.of(choices)) << "until the process ends";
  EXPECT_EQ(slow.count, 0);
  EXPECT_EQ(contents(folder / "choices"), "");
}

TEST(EpilogueChoices, SurviveDamage) {
  const TemporaryFolder folder;
  const std::string file = folder / "choices";
  std::ofstream(file) << "parts\t10\t5\tfirst\nparts\t10\tfirst\n\nneither\t1\t2\tsecond\n"
                      << "parts\t1x\t2\tthird\nparts\tnan\t2\tfourth\nparts\t1\t2\tfifth\tmore\n"
                      << "epilogue\t5\t10\tfirst\nparts\t10\t5\tsix";
  Measure slow(10, 5);
  EpilogueChoices choices(file);
  EXPECT_EQ(choices.measured().size(), 1u);
  EXPECT_FALSE(slow.of(choices, "first"));
  EXPECT_FALSE(slow.of(choices, "sixth")) << "its line was not written to the end";
  EXPECT_EQ(slow.count, 1);
  EpilogueChoices again(file);
  EXPECT_FALSE(slow.of(again, "sixth"));
  EXPECT_EQ(slow.count, 1);
}

TEST(EpilogueChoices, BelongToASettingOfTheProcess) {
  const TemporaryFolder folder;
  EXPECT_EQ(epilogue_choices(), nullptr);
  EXPECT_EQ(product_epilogue_use(), EpilogueUse::Always);
  use_product_epilogues(EpilogueUse::Measured, folder / "choices");
  const auto choices = epilogue_choices();
  ASSERT_NE(choices, nullptr);
  use_product_epilogues(EpilogueUse::Never);
  EXPECT_EQ(epilogue_choices(), nullptr);
  use_product_epilogues(EpilogueUse::Measured, folder / "choices");
  EXPECT_EQ(epilogue_choices(), choices) << "what was held for the process stays";
  use_product_epilogues(EpilogueUse::Always);
}

}  // namespace
}  // namespace ortmodule::testing
