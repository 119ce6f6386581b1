#include "ir/attr.h"

#include <algorithm>

#include "base/error.h"

namespace ortmodule {

Attrs::Attrs(std::initializer_list<std::pair<std::string, Attr>> entries) {
  for (const auto& [name, value] : entries) set(name, value);
}

const Attr* Attrs::find(std::string_view name) const {
  for (const auto& [key, value] : entries_)
    if (key == name) return &value;
  return nullptr;
}

void Attrs::set(std::string_view name, Attr value) {
  for (auto& [key, old] : entries_) {
    if (key != name) continue;
    old = std::move(value);
    return;
  }
  entries_.emplace_back(std::string(name), std::move(value));
}

void Attrs::erase(std::string_view name) {
  std::erase_if(entries_, [&](const auto& entry) { return entry.first == name; });
}

template <class T>
const T& Attrs::get(std::string_view name) const {
  const Attr* attr = find(name);
  ORTM_ASSERT(attr, "attribute '", name, "' is missing");
  const T* typed = std::get_if<T>(attr);
  ORTM_ASSERT(typed, "attribute '", name, "' has another type (variant ", attr->index(), ")");
  return *typed;
}

int64_t Attrs::integer(std::string_view name) const { return get<DimExpr>(name).value(); }

int64_t Attrs::integer(std::string_view name, int64_t fallback) const {
  return has(name) ? integer(name) : fallback;
}

const DimExpr& Attrs::dim(std::string_view name) const { return get<DimExpr>(name); }
const Dims& Attrs::dims(std::string_view name) const { return get<Dims>(name); }

std::vector<int64_t> Attrs::integers(std::string_view name) const {
  std::vector<int64_t> values;
  for (const DimExpr& dim : dims(name)) values.push_back(dim.value());
  return values;
}

double Attrs::number(std::string_view name) const {
  const Attr* attr = find(name);
  if (attr && std::holds_alternative<DimExpr>(*attr))
    return static_cast<double>(std::get<DimExpr>(*attr).value());
  return get<double>(name);
}

double Attrs::number(std::string_view name, double fallback) const {
  return has(name) ? number(name) : fallback;
}

const std::vector<double>& Attrs::numbers(std::string_view name) const {
  return get<std::vector<double>>(name);
}

const std::string& Attrs::string(std::string_view name) const { return get<std::string>(name); }

std::string Attrs::string(std::string_view name, std::string_view fallback) const {
  return has(name) ? string(name) : std::string(fallback);
}

DType Attrs::dtype(std::string_view name) const { return get<DType>(name); }

std::shared_ptr<const Graph> Attrs::graph(std::string_view name) const {
  return get<std::shared_ptr<const Graph>>(name);
}

Attrs Attrs::resolve(const SymbolValues& values) const {
  Attrs resolved = *this;
  for (auto& [name, value] : resolved.entries_) {
    if (auto* dim = std::get_if<DimExpr>(&value)) *dim = DimExpr(dim->evaluate(values));
    if (auto* dims = std::get_if<Dims>(&value))
      for (DimExpr& dim : *dims) dim = DimExpr(dim.evaluate(values));
  }
  return resolved;
}

bool operator==(const Attrs& a, const Attrs& b) {
  if (a.entries_.size() != b.entries_.size()) return false;
  return std::all_of(a.entries_.begin(), a.entries_.end(), [&](const auto& entry) {
    const Attr* other = b.find(entry.first);
    return other && *other == entry.second;
  });
}

}  // namespace ortmodule
