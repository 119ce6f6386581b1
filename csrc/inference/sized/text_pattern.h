// Regular expressions of RE2's syntax, which ONNX's operators on strings have. A match is the
// longest one at the first place that has any; time grows with the text times the pattern, never
// exponentially. (Thompson, "Regular Expression Search Algorithm", 1968.)
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "inference/sized/utf8.h"

namespace ortmodule {

/// For one thread: what searches find out is kept.
class TextPattern {
 public:
  struct Match {
    size_t begin = 0, end = 0;  // bytes
  };

  /// Throws Error for what is not a pattern, or has a part that is not supported.
  explicit TextPattern(std::string_view text);

  bool matches_whole(std::string_view text);
  std::optional<Match> find(std::string_view text, size_t from);

 private:
  friend class TextPatternParser;

  /// Points that one step takes.
  struct Set {
    std::vector<std::pair<uint32_t, uint32_t>> ranges;
    std::vector<std::pair<PointClass, bool>> classes;  // with whether points must be outside
    bool negated = false, folds_case = false;

    bool has(uint32_t point) const;
    bool has_exactly(uint32_t point) const;
  };
  enum class Step : uint8_t {
    Take,   // a point of set `a`
    Fork,   // go on at `a` and at `b`
    Begin,  // of the text, or of a line
    End,
    LineBegin,
    LineEnd,
    WordEdge,
    NoWordEdge,
    Done,
  };
  struct Instruction {
    Step step = Step::Done;
    size_t a = 0, b = 0;
  };

  /// Steps that may be next, with those that each point of ASCII leads to, once it was met. Only of
  /// patterns that do not look at places.
  struct State {
    std::vector<size_t> alive;
    bool done = false;
    std::array<int32_t, 128> next{};
  };
  static constexpr int32_t kUnknown = -1, kDead = -2;

  /// The end of the longest match from `begin` on.
  std::optional<size_t> longest(std::string_view text, size_t begin);
  std::optional<size_t> longest_by_states(std::string_view text, size_t begin);
  int32_t state_of(std::vector<size_t> alive);
  int32_t next_state(int32_t state, uint32_t point);
  void add(size_t at, std::string_view text, size_t place, std::vector<size_t>& alive);
  void take(uint32_t point, std::string_view text, size_t place, const std::vector<size_t>& alive,
            std::vector<size_t>& next);
  static bool holds(Step step, std::string_view text, size_t place);

  std::vector<Set> sets_;
  std::vector<Instruction> program_;
  bool looks_at_places_ = false;
  std::vector<size_t> seen_;  // by step: the last turn that added it
  size_t turn_ = 0;
  std::vector<State> states_;
  std::map<std::vector<size_t>, int32_t> places_of_states_;
};

}  // namespace ortmodule
