// The registry of all ops: filled at static initialization, read-only afterwards.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <unordered_map>

#include "base/error.h"
#include "ops/op_def.h"

namespace ortmodule {
namespace {

struct Entry {
  OpDef def;
  std::string_view file;
};

struct Registry {
  std::deque<Entry> entries;          // a deque, so that pointers into it stay valid
  std::deque<TorchRow> compositions;  // rows of TorchRegistrar
  std::map<std::string_view, const Entry*> by_name;
  std::unordered_map<std::string_view, const TorchRow*> by_target;
};

// Registrars run before main in unspecified order, so the table must exist on first use.
Registry& registry() {
  static Registry instance;
  return instance;
}

// An exception before main would have no handler, so print the message and abort.
[[noreturn]] void duplicate(const char* what, std::string_view name, std::string_view file) {
  std::fprintf(
      stderr, "[op registry] %s must be registered once, but found a second '%.*s' (%.*s)\n", what,
      static_cast<int>(name.size()), name.data(), static_cast<int>(file.size()), file.data());
  std::abort();
}

void add_row(const TorchRow& row, std::string_view file) {
  if (!registry().by_target.emplace(row.target, &row).second)
    duplicate("a torch overload", row.target, file);
}

void add_op(OpDef def, std::string_view file) {
  Registry& all = registry();
  const Entry& entry = all.entries.emplace_back(Entry{std::move(def), file});
  if (!all.by_name.emplace(entry.def.name, &entry).second) duplicate("an op", entry.def.name, file);
  for (const TorchRow& row : entry.def.from_torch) add_row(row, file);
}

}  // namespace

const OpDef* find_op(std::string_view name) {
  const auto& ops = registry().by_name;
  auto found = ops.find(name);
  return found == ops.end() ? nullptr : &found->second->def;
}

const OpDef& op_def(std::string_view name) {
  const OpDef* def = find_op(name);
  ORTM_ASSERT(def, "there is no op '", name, "'");
  return *def;
}

const TorchRow* find_torch_row(std::string_view target) {
  const auto& rows = registry().by_target;
  auto found = rows.find(target);
  return found == rows.end() ? nullptr : found->second;
}

std::vector<std::string_view> all_torch_targets() {
  std::vector<std::string_view> targets;
  for (const auto& [target, row] : registry().by_target) targets.push_back(target);
  std::sort(targets.begin(), targets.end());
  return targets;
}

bool is_impure(const Node& node) { return op_def(node.op).effect || node.attrs.flag("random"); }

std::vector<const OpDef*> all_ops() {
  std::vector<const OpDef*> ops;
  for (const auto& [name, entry] : registry().by_name) ops.push_back(&entry->def);
  return ops;
}

bool is_always_kept(const Value& value) {
  if (!value.producer()) return false;
  const std::vector<size_t>& kept = op_def(value.producer()->op).always_kept;
  return is_impure(*value.producer()) || std::ranges::count(kept, value.output_index()) > 0;
}

std::string_view file_of(const OpDef& def) {
  std::string_view file = registry().by_name.at(def.name)->file;
  const size_t root = file.rfind("csrc/");  // __FILE__ may start at the root of the file system
  return root == std::string_view::npos ? file : file.substr(root);
}

OpRegistrar::OpRegistrar(std::string_view name, OpDef def, std::string_view file) {
  def.name = name;
  add_op(std::move(def), file);
}

OpRegistrar::OpRegistrar(std::vector<OpDef> defs, std::string_view file) {
  for (OpDef& def : defs) add_op(std::move(def), file);
}

TorchRegistrar::TorchRegistrar(std::vector<TorchRow> rows) {
  for (const TorchRow& row : rows)
    add_row(registry().compositions.emplace_back(row), "composition");
}

}  // namespace ortmodule
