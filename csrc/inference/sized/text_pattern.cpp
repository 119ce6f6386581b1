#include "inference/sized/text_pattern.h"

#include <algorithm>
#include <memory>

#include "base/error.h"

namespace ortmodule {
namespace {

bool is_word_byte(std::string_view text, size_t at) {
  if (at >= text.size()) return false;
  const auto c = static_cast<unsigned char>(text[at]);
  return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_';
}

constexpr uint32_t kLastPoint = 0x10ffff;

}  // namespace

/// Turns the text of a pattern into a tree, and that into steps.
class TextPatternParser {
 public:
  TextPatternParser(std::string_view text, TextPattern& pattern) : text_(text), pattern_(pattern) {}

  void run() {
    const NodeRef tree = alternatives();
    if (at_ < text_.size()) refuse("a parenthesis that nothing opens");
    emit(*tree);
    add(TextPattern::Step::Done);
  }

 private:
  struct Node {
    enum class Kind : uint8_t { Set, Place, Sequence, Either, Repeat };
    Kind kind = Kind::Sequence;
    size_t set = 0;
    TextPattern::Step place = TextPattern::Step::Done;
    std::vector<std::unique_ptr<Node>> parts{};
    int64_t least = 0, most = 0;  // -1: any number
  };
  using NodeRef = std::unique_ptr<Node>;
  struct Flags {
    bool folds_case = false, dot_takes_lines = false, by_line = false;
  };

  [[noreturn]] void refuse(const std::string& why) const {
    throw Error(str("[model] a regular expression must be one of RE2's, but found ", why, " in '",
                    text_, "'"));
  }
  bool more() const { return at_ < text_.size(); }
  bool next_is(std::string_view what) const { return text_.substr(at_).starts_with(what); }
  bool take(std::string_view what) {
    if (!next_is(what)) return false;
    at_ += what.size();
    return true;
  }

  // --- the tree
  NodeRef alternatives() {
    if (++depth_ > 200) refuse("more than 200 groups inside of each other");
    auto either = std::make_unique<Node>();
    either->kind = Node::Kind::Either;
    const Flags outer = flags_;
    do either->parts.push_back(sequence());
    while (take("|"));
    flags_ = outer;
    --depth_;
    return either->parts.size() == 1 ? std::move(either->parts[0]) : std::move(either);
  }

  NodeRef sequence() {
    auto parts = std::make_unique<Node>();
    while (more() && !next_is("|") && !next_is(")")) {
      NodeRef part = atom();
      if (part) parts->parts.push_back(repeated(std::move(part)));
    }
    return parts;
  }

  NodeRef repeated(NodeRef part) {
    int64_t least = 0, most = 0;
    if (count(least, most)) {
      take("?");  // the fewest: the longest match is the same
      if (most > 1000 || least > 1000 || (most >= 0 && most < least)) refuse("such a repetition");
      auto repeat = std::make_unique<Node>();
      repeat->kind = Node::Kind::Repeat;
      repeat->least = least;
      repeat->most = most;
      repeat->parts.push_back(std::move(part));
      part = std::move(repeat);
      if (count(least, most)) refuse("a repetition of a repetition");
    }
    return part;
  }

  bool count(int64_t& least, int64_t& most) {
    if (take("*")) return least = 0, most = -1, true;
    if (take("+")) return least = 1, most = -1, true;
    if (take("?")) return least = 0, most = 1, true;
    const size_t begin = at_;
    if (!take("{")) return false;
    const auto number = [&](int64_t& value) {
      const size_t first = at_;
      for (value = 0; more() && text_[at_] >= '0' && text_[at_] <= '9' && value <= 1000; ++at_)
        value = value * 10 + (text_[at_] - '0');
      return at_ > first;
    };
    bool fits = number(least);
    most = least;
    if (fits && take(",") && !number(most)) most = -1;
    if (fits && take("}")) return true;
    at_ = begin;  // a brace as it is
    return false;
  }

  NodeRef place(TextPattern::Step step) {
    auto node = std::make_unique<Node>();
    node->kind = Node::Kind::Place;
    node->place = step;
    return node;
  }
  NodeRef taken(TextPattern::Set set) {
    set.folds_case = flags_.folds_case;
    auto node = std::make_unique<Node>();
    node->kind = Node::Kind::Set;
    node->set = pattern_.sets_.size();
    pattern_.sets_.push_back(std::move(set));
    return node;
  }
  NodeRef single(uint32_t point) { return taken({{{point, point}}, {}}); }

  // Null where flags are set.
  NodeRef atom() {
    using Step = TextPattern::Step;
    if (take("^")) return place(flags_.by_line ? Step::LineBegin : Step::Begin);
    if (take("$")) return place(flags_.by_line ? Step::LineEnd : Step::End);
    if (take("(")) return group();
    if (take("[")) return bracket();
    if (take(".")) {
      if (flags_.dot_takes_lines) return taken({{{0, kLastPoint}}, {}});
      return taken({{{0, '\n' - 1}, {'\n' + 1, kLastPoint}}, {}});
    }
    if (next_is("*") || next_is("+") || next_is("?")) refuse("a repetition of nothing");
    if (!take("\\")) return single(next_point(text_, at_));
    if (take("b")) return place(Step::WordEdge);
    if (take("B")) return place(Step::NoWordEdge);
    if (take("A")) return place(Step::Begin);
    if (take("z")) return place(Step::End);
    if (take("Q")) return quoted();
    TextPattern::Set set;
    escaped(set);
    return taken(std::move(set));
  }

  NodeRef quoted() {
    auto parts = std::make_unique<Node>();
    while (more() && !take("\\E")) parts->parts.push_back(single(next_point(text_, at_)));
    return parts;
  }

  NodeRef group() {
    const Flags outer = flags_;
    if (take("?P<") || take("?<")) {
      while (more() && text_[at_] != '>') ++at_;
      if (!take(">")) refuse("a name without an end");
    } else if (take("?") && set_flags()) {
      return nullptr;
    }
    NodeRef inner = alternatives();
    if (!take(")")) refuse("a missing )");
    flags_ = outer;
    return inner;
  }

  // Whether flags are all there is: (?i) and not (?i:...)
  bool set_flags() {
    for (bool on = true; more();) {
      const char c = text_[at_++];
      switch (c) {
        case '-': on = false; break;
        case 'i': flags_.folds_case = on; break;
        case 's': flags_.dot_takes_lines = on; break;
        case 'm': flags_.by_line = on; break;
        case 'U': break;
        case ':': return false;
        case ')': return true;
        default: refuse(str("a group (?", c));
      }
    }
    refuse("a missing )");
  }

  // --- sets
  NodeRef bracket() {
    TextPattern::Set set;
    set.negated = take("^");
    for (bool first = true; first || !take("]"); first = false) {
      if (!more()) refuse("a missing ]");
      if (take("[:")) {
        named(set);
        continue;
      }
      TextPattern::Set one;
      if (take("\\"))
        escaped(one);
      else
        one.ranges.emplace_back(0, 0),
            one.ranges[0].first = one.ranges[0].second = next_point(text_, at_);
      const bool is_single = one.ranges.size() == 1 && one.classes.empty() &&
                             one.ranges[0].first == one.ranges[0].second;
      if (is_single && next_is("-") && !next_is("-]")) {
        ++at_;
        if (!more()) refuse("a missing ]");
        TextPattern::Set last;
        if (take("\\"))
          escaped(last);
        else
          last.ranges.emplace_back(0, next_point(text_, at_));
        if (last.ranges.empty() || last.ranges[0].second < one.ranges[0].first)
          refuse("a range that ends before it begins");
        one.ranges[0].second = last.ranges[0].second;
      }
      set.ranges.insert(set.ranges.end(), one.ranges.begin(), one.ranges.end());
      set.classes.insert(set.classes.end(), one.classes.begin(), one.classes.end());
    }
    return taken(std::move(set));
  }

  static void add_ranges(TextPattern::Set& set, std::string_view pairs, bool outside) {
    uint32_t next = 0;  // the first point that no range had so far
    for (size_t i = 0; i < pairs.size(); i += 2) {
      const auto first = static_cast<uint32_t>(pairs[i]),
                 last = static_cast<uint32_t>(pairs[i + 1]);
      if (!outside) set.ranges.emplace_back(first, last);
      if (outside && first > next) set.ranges.emplace_back(next, first - 1);
      next = last + 1;
    }
    if (outside) set.ranges.emplace_back(next, kLastPoint);
  }

  void named(TextPattern::Set& set) {
    const bool outside = take("^");
    const size_t end = text_.find(":]", at_);
    if (end == std::string_view::npos) refuse("a missing :]");
    const std::string_view name = text_.substr(at_, end - at_);
    at_ = end + 2;
    constexpr std::pair<std::string_view, std::string_view> kNamed[] = {
        {"alnum", "09AZaz"},
        {"alpha", "AZaz"},
        {"ascii", {"\0\x7f", 2}},
        {"blank", "\t\t  "},
        {"cntrl", {"\0\x1f\x7f\x7f", 4}},
        {"digit", "09"},
        {"graph", "!~"},
        {"lower", "az"},
        {"print", " ~"},
        {"punct", "!/:@[`{~"},
        {"space", "\t\r  "},
        {"upper", "AZ"},
        {"word", "09AZ__az"},
        {"xdigit", "09AFaf"}};
    for (const auto& [known, pairs] : kNamed)
      if (known == name) return add_ranges(set, pairs, outside);
    refuse(str("a class '", name, "'"));
  }

  // What follows a backslash.
  void escaped(TextPattern::Set& set) {
    if (!more()) refuse("a backslash at the end");
    const uint32_t c = next_point(text_, at_);
    switch (c) {
      case 'd':
      case 'D': return add_ranges(set, "09", c == 'D');
      case 'w':
      case 'W': return add_ranges(set, "09AZ__az", c == 'W');
      case 's':
      case 'S': return add_ranges(set, "\t\n\f\r  ", c == 'S');
      case 'p':
      case 'P': return property(set, c == 'P');
      case 'x':
        return set.ranges.emplace_back(hexadecimal(), 0),
               void(set.ranges.back().second = set.ranges.back().first);
      default: break;
    }
    constexpr std::string_view kNames = "atnfrv";
    constexpr std::string_view kPoints = "\a\t\n\f\r\v";
    uint32_t point = c;
    if (const size_t i = c < 0x80 ? kNames.find(static_cast<char>(c)) : std::string_view::npos;
        i != std::string_view::npos)
      point = static_cast<uint32_t>(kPoints[i]);
    else if (c < 0x80 && is_word_byte(text_, at_ - 1) && c != '_')
      refuse(str("an escape \\", static_cast<char>(c)));
    set.ranges.emplace_back(point, point);
  }

  uint32_t hexadecimal() {
    const bool braced = take("{");
    uint32_t value = 0;
    for (int digits = 0; more() && (braced ? text_[at_] != '}' : digits < 2); ++digits, ++at_) {
      const size_t digit =
          std::string_view("0123456789abcdef")
              .find(static_cast<char>(lower_point(static_cast<uint8_t>(text_[at_]))));
      if (digit == std::string_view::npos || value > kLastPoint) refuse("a number after \\x");
      value = value * 16 + static_cast<uint32_t>(digit);
    }
    if (braced && !take("}")) refuse("a missing }");
    return value;
  }

  void property(TextPattern::Set& set, bool outside) {
    std::string_view name = text_.substr(at_, 1);
    if (take("{")) {
      const size_t end = text_.find('}', at_);
      if (end == std::string_view::npos) refuse("a missing }");
      name = text_.substr(at_, end - at_);
      at_ = end + 1;
    } else {
      at_ += name.size();
    }
    if (name.starts_with("^")) {
      outside = !outside;
      name.remove_prefix(1);
    }
    if (name != "L" && name != "Ll" && name != "Lu")
      throw Error(
          str("[import] regular expressions have the properties L, Ll and Lu here, but "
              "found '",
              name, "' in '", text_, "'"));
    set.classes.emplace_back(name == "L"    ? PointClass::Letter
                             : name == "Ll" ? PointClass::Lower
                                            : PointClass::Upper,
                             outside);
  }

  // --- the steps
  size_t add(TextPattern::Step step, size_t a = 0, size_t b = 0) {
    if (pattern_.program_.size() > 20'000) refuse("more than 20,000 steps");
    pattern_.program_.push_back({step, a, b});
    return pattern_.program_.size() - 1;
  }
  size_t here() const { return pattern_.program_.size(); }

  void emit(const Node& node) {
    using Step = TextPattern::Step;
    switch (node.kind) {
      case Node::Kind::Set: add(Step::Take, node.set); return;
      case Node::Kind::Place: add(node.place); return;
      case Node::Kind::Sequence:
        for (const NodeRef& part : node.parts) emit(*part);
        return;
      case Node::Kind::Either: return emit_either(node);
      case Node::Kind::Repeat: return emit_repeat(node);
    }
  }

  void emit_either(const Node& node) {
    std::vector<size_t> ends;
    for (size_t i = 0; i + 1 < node.parts.size(); ++i) {
      const size_t fork = add(TextPattern::Step::Fork, here() + 1);
      emit(*node.parts[i]);
      ends.push_back(add(TextPattern::Step::Fork));
      pattern_.program_[fork].b = here();
    }
    emit(*node.parts.back());
    for (const size_t end : ends) pattern_.program_[end].a = pattern_.program_[end].b = here();
  }

  void emit_repeat(const Node& node) {
    const Node& part = *node.parts[0];
    for (int64_t i = 0; i < node.least; ++i) emit(part);
    if (node.most < 0) {
      const size_t fork = add(TextPattern::Step::Fork, here() + 1);
      emit(part);
      add(TextPattern::Step::Fork, fork, fork);
      pattern_.program_[fork].b = here();
    }
    for (int64_t i = node.least; i < node.most; ++i) {
      const size_t fork = add(TextPattern::Step::Fork, here() + 1);
      emit(part);
      pattern_.program_[fork].b = here();
    }
  }

  std::string_view text_;
  TextPattern& pattern_;
  size_t at_ = 0;
  Flags flags_;
  int depth_ = 0;
};

TextPattern::TextPattern(std::string_view text) {
  TextPatternParser(text, *this).run();
  seen_.resize(program_.size(), 0);
  for (const Instruction& instruction : program_)
    if (instruction.step != Step::Take && instruction.step != Step::Fork &&
        instruction.step != Step::Done)
      looks_at_places_ = true;
}

bool TextPattern::Set::has_exactly(uint32_t point) const {
  for (const auto& [first, last] : ranges)
    if (point >= first && point <= last) return true;
  return std::any_of(classes.begin(), classes.end(), [&](const auto& each) {
    return is_of_class(point, each.first) != each.second;
  });
}

bool TextPattern::Set::has(uint32_t point) const {
  bool found = has_exactly(point);
  if (!found && folds_case)
    found = has_exactly(lower_point(point)) || has_exactly(upper_point(point));
  return found != negated;
}

bool TextPattern::holds(Step step, std::string_view text, size_t place) {
  const bool edge = (place > 0 && is_word_byte(text, place - 1)) != is_word_byte(text, place);
  switch (step) {
    case Step::Begin: return place == 0;
    case Step::End: return place == text.size();
    case Step::LineBegin: return place == 0 || text[place - 1] == '\n';
    case Step::LineEnd: return place == text.size() || text[place] == '\n';
    case Step::WordEdge: return edge;
    default: return !edge;
  }
}

void TextPattern::add(size_t at, std::string_view text, size_t place, std::vector<size_t>& alive) {
  std::vector<size_t> open{at};
  while (!open.empty()) {
    const size_t next = open.back();
    open.pop_back();
    if (seen_[next] == turn_) continue;
    seen_[next] = turn_;
    const Instruction& instruction = program_[next];
    switch (instruction.step) {
      case Step::Take:
      case Step::Done: alive.push_back(next); break;
      case Step::Fork:
        open.push_back(instruction.a);
        open.push_back(instruction.b);
        break;
      default:
        if (holds(instruction.step, text, place)) open.push_back(next + 1);
    }
  }
}

void TextPattern::take(uint32_t point, std::string_view text, size_t place,
                       const std::vector<size_t>& alive, std::vector<size_t>& next) {
  next.clear();
  ++turn_;
  for (const size_t at : alive)
    if (program_[at].step == Step::Take && sets_[program_[at].a].has(point))
      add(at + 1, text, place, next);
}

std::optional<size_t> TextPattern::longest(std::string_view text, size_t begin) {
  if (!looks_at_places_) return longest_by_states(text, begin);
  std::vector<size_t> alive, next;
  std::optional<size_t> end;
  size_t place = begin;
  ++turn_;
  add(0, text, place, alive);
  while (!alive.empty()) {
    for (const size_t at : alive)
      if (program_[at].step == Step::Done) end = place;
    if (place == text.size()) break;
    const uint32_t point = next_point(text, place);
    take(point, text, place, alive, next);
    alive.swap(next);
  }
  return end;
}

int32_t TextPattern::state_of(std::vector<size_t> alive) {
  if (alive.empty()) return kDead;
  std::sort(alive.begin(), alive.end());
  const auto [known, added] =
      places_of_states_.emplace(alive, static_cast<int32_t>(states_.size()));
  if (added) {
    State& state = states_.emplace_back();
    state.next.fill(kUnknown);
    for (const size_t at : alive) state.done = state.done || program_[at].step == Step::Done;
    state.alive = std::move(alive);
  }
  return known->second;
}

int32_t TextPattern::next_state(int32_t state, uint32_t point) {
  std::vector<size_t> next;
  const auto from = static_cast<size_t>(state);
  take(point, {}, 0, states_[from].alive, next);
  const int32_t found = state_of(std::move(next));
  if (point < 128) states_[from].next[point] = found;
  return found;
}

std::optional<size_t> TextPattern::longest_by_states(std::string_view text, size_t begin) {
  constexpr size_t kMostStates = 1000;
  if (states_.empty() || states_.size() > kMostStates) {
    states_.clear();
    places_of_states_.clear();
    std::vector<size_t> alive;
    ++turn_;
    add(0, text, begin, alive);
    state_of(std::move(alive));
  }
  std::optional<size_t> end;
  for (int32_t state = 0; state != kDead;) {
    const State& at = states_[static_cast<size_t>(state)];
    if (at.done) end = begin;
    if (begin == text.size()) break;
    const uint32_t point = next_point(text, begin);
    const int32_t known = point < 128 ? at.next[point] : kUnknown;
    state = known != kUnknown ? known : next_state(state, point);
  }
  return end;
}

bool TextPattern::matches_whole(std::string_view text) {
  const std::optional<size_t> end = longest(text, 0);
  return end && *end == text.size();
}

std::optional<TextPattern::Match> TextPattern::find(std::string_view text, size_t from) {
  for (size_t begin = from;;) {
    if (const auto end = longest(text, begin)) return Match{begin, *end};
    if (begin >= text.size()) return std::nullopt;
    next_point(text, begin);
  }
}

}  // namespace ortmodule
