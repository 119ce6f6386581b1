#include "kernels/product_epilogues.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string_view>
#include <utility>

#include "base/error.h"

namespace ortmodule {
namespace {

/// A difference that measuring again would not turn around.
constexpr float kClearlyLess = 0.95F;
/// More problems than programs have; beyond, nothing is measured.
constexpr size_t kMostChoices = 8192;
constexpr std::string_view kEpilogue = "epilogue", kParts = "parts";

/// A line of the file: form, microseconds with and without the epilogue, problem.
std::optional<EpilogueChoices::Choice> choice_of(const std::string& line) {
  std::array<std::string, 4> fields;
  std::istringstream in(line);
  for (std::string& field : fields)
    if (!std::getline(in, field, '\t') || field.empty()) return {};
  if (!in.eof() || (fields[0] != kEpilogue && fields[0] != kParts)) return {};
  std::array<float, 2> us = {};
  for (size_t i = 0; i < us.size(); ++i) {
    char* end = nullptr;
    us[i] = std::strtof(fields[i + 1].c_str(), &end);
    if (*end != '\0' || !std::isfinite(us[i])) return {};
  }
  return EpilogueChoices::Choice{fields[3], fields[0] == kEpilogue, {us[0], us[1]}};
}

std::string line_of(const EpilogueChoices::Choice& choice) {
  return str(choice.epilogue ? kEpilogue : kParts, '\t', choice.times.epilogue_us, '\t',
             choice.times.parts_us, '\t', choice.problem, '\n');
}

/// The file, opened for lines at its end and locked against other processes; false if it cannot be.
class LockedFile {
 public:
  explicit LockedFile(const std::string& path) {
    std::error_code failure;
    const std::filesystem::path folder = std::filesystem::path(path).parent_path();
    if (!folder.empty()) std::filesystem::create_directories(folder, failure);
    file_ = open(path.c_str(), O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    struct stat facts {};
    locked_ = file_ >= 0 && fstat(file_, &facts) == 0 && S_ISREG(facts.st_mode) &&
              flock(file_, LOCK_EX) == 0;
  }
  LockedFile(const LockedFile&) = delete;
  LockedFile& operator=(const LockedFile&) = delete;
  ~LockedFile() {
    if (file_ >= 0) close(file_);  // ends the lock
  }
  explicit operator bool() const { return locked_; }

  /// Behind the end of the last line, which a process may have died in.
  bool append(const std::string& line) const {
    char last = '\n';
    const off_t bytes = lseek(file_, 0, SEEK_END);
    if (bytes > 0 && pread(file_, &last, 1, bytes - 1) != 1) return false;
    const std::string text = last == '\n' ? line : "\n" + line;
    ssize_t written = -1;
    do written = write(file_, text.data(), text.size());
    while (written < 0 && errno == EINTR);
    return written == static_cast<ssize_t>(text.size());
  }

 private:
  int file_ = -1;
  bool locked_ = false;
};

struct Setting {
  std::mutex mutex;
  EpilogueUse use = EpilogueUse::Always;
  std::string file;
  /// By file: a choice of this process holds also after another setting has been used.
  std::map<std::string, std::shared_ptr<EpilogueChoices>> choices;
};

Setting& setting() {
  static Setting of_process;
  return of_process;
}

}  // namespace

EpilogueChoices::EpilogueChoices(std::string file) : file_(std::move(file)) { read_file(); }

void EpilogueChoices::read_file() {
  std::ifstream in(file_);
  std::string line;
  while (choices_.size() < kMostChoices && std::getline(in, line)) {
    if (in.eof()) break;  // its end is not written yet
    if (auto choice = choice_of(line)) choices_.emplace(choice->problem, *choice);
  }
}

bool EpilogueChoices::keep(const Choice& choice) {
  const LockedFile file(file_);
  if (!file) return false;
  read_file();
  if (choices_.contains(choice.problem)) return true;  // another process was first
  if (choices_.size() >= kMostChoices || !file.append(line_of(choice))) return false;
  choices_.emplace(choice.problem, choice);
  return true;
}

bool EpilogueChoices::chooses_epilogue(
    const std::string& problem, const std::function<std::optional<EpilogueTimes>()>& measure) {
  const std::lock_guard lock(mutex_);  // others would disturb the measurement
  const auto found = [&]() -> std::optional<bool> {
    if (const auto held = without_measure_.find(problem); held != without_measure_.end())
      return held->second;
    if (const auto kept = choices_.find(problem); kept != choices_.end())
      return kept->second.epilogue;
    return {};
  };
  if (const auto known = found()) return *known;
  read_file();
  if (const auto known = found()) return *known;
  const bool may_keep = choices_.size() < kMostChoices && LockedFile(file_);
  if (const auto times = may_keep ? measure() : std::nullopt) {
    const bool epilogue = times->parts_us >= kClearlyLess * times->epilogue_us;
    if (keep({problem, epilogue, *times})) return choices_.at(problem).epilogue;
  }
  return without_measure_[problem] = true;
}

std::vector<EpilogueChoices::Choice> EpilogueChoices::measured() {
  const std::lock_guard lock(mutex_);
  std::vector<Choice> all;
  for (const auto& [problem, choice] : choices_) all.push_back(choice);
  return all;
}

void use_product_epilogues(EpilogueUse use, const std::string& file) {
  const std::lock_guard lock(setting().mutex);
  setting().use = use;
  setting().file = file;
  std::shared_ptr<EpilogueChoices>& choices = setting().choices[file];
  if (use == EpilogueUse::Measured && !choices) choices = std::make_shared<EpilogueChoices>(file);
}

EpilogueUse product_epilogue_use() {
  const std::lock_guard lock(setting().mutex);
  return setting().use;
}

std::shared_ptr<EpilogueChoices> epilogue_choices() {
  const std::lock_guard lock(setting().mutex);
  return setting().use == EpilogueUse::Measured ? setting().choices.at(setting().file) : nullptr;
}

}  // namespace ortmodule
