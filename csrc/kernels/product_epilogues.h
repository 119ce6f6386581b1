// Whether cuBLASLt's epilogues that give a second result (a bias's gradient, what Gelu is applied
// to) are used, which builds without CUDA know, too: one call that does both may take longer than
// the product and a kernel behind it. The two round differently, so a choice by time is made once
// and kept in a file: then budgets, levels and later processes have equal bits.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace ortmodule {

enum class EpilogueUse : uint8_t { Always, Never, Measured };

/// Of one problem, with and without the epilogue.
struct EpilogueTimes {
  float epilogue_us = 0, parts_us = 0;
};

/// The choices of a file, by problem. Threads and processes may share one: the first choice holds.
class EpilogueChoices {
 public:
  /// The file need not be there.
  explicit EpilogueChoices(std::string file);

  /// Whether the epilogue computes the problem. One that nobody has chosen yet is measured; if it
  /// cannot be now (`measure` gives nothing), or could not be kept, it is the epilogue until the
  /// process ends. A problem is one line of text.
  bool chooses_epilogue(const std::string& problem,
                        const std::function<std::optional<EpilogueTimes>()>& measure);

  const std::string& file() const { return file_; }

  struct Choice {
    std::string problem;
    bool epilogue = true;
    EpilogueTimes times;
  };
  /// What the file says, sorted by problem.
  std::vector<Choice> measured();

 private:
  void read_file();
  bool keep(const Choice& choice);

  const std::string file_;
  std::mutex mutex_;
  std::map<std::string, Choice> choices_;        // of the file
  std::map<std::string, bool> without_measure_;  // of this process
};

/// For plans made from now on; at first they always use epilogues. `file`: where Measured keeps its
/// choices.
void use_product_epilogues(EpilogueUse use, const std::string& file = {});
EpilogueUse product_epilogue_use();
/// Those of plans that measure, else null.
std::shared_ptr<EpilogueChoices> epilogue_choices();

}  // namespace ortmodule
