#include "onnx/onnx_external.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <optional>
#include <utility>

namespace ortmodule {
namespace {

namespace fs = std::filesystem;

std::optional<uint64_t> parse_bytes(const std::string& text) {
  uint64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end) return std::nullopt;
  return value;
}

bool is_inside(const fs::path& path, const fs::path& folder) {
  return std::mismatch(folder.begin(), folder.end(), path.begin(), path.end()).first ==
         folder.end();
}

bool leads_up(const fs::path& path) {
  return path.is_absolute() ||
         std::any_of(path.begin(), path.end(), [](const fs::path& part) { return part == ".."; });
}

}  // namespace

OnnxExternalData::OnnxExternalData(const std::string& folder) {
  if (!folder.empty()) add_folder(folder);
}

OnnxExternalData OnnxExternalData::beside(const std::string& model_path) {
  const fs::path path(model_path);
  OnnxExternalData data(path.has_parent_path() ? path.parent_path().string() : ".");
  std::error_code error;
  const fs::path real = fs::canonical(path, error);
  if (!error) data.add_folder(real.parent_path());
  return data;
}

void OnnxExternalData::add_folder(const fs::path& folder) {
  std::error_code error;
  const fs::path real = fs::canonical(folder, error);
  if (!error && std::find(folders_.begin(), folders_.end(), real) == folders_.end())
    folders_.push_back(real);
}

void OnnxExternalData::add_file(const std::string& location, SharedBytes content) {
  given_[location] = std::move(content);
}

Reason OnnxExternalData::find(const OnnxExternalPlace& place, size_t expected_bytes,
                              SharedBytes& found) {
  const auto given = given_.find(place.location);
  if (folders_.empty() && given == given_.end()) add_folder(".");
  const auto offset = parse_bytes(place.offset.empty() ? "0" : place.offset);
  if (!offset)
    return str("offset of external data must be a number of bytes, but found '", place.offset, "'");
  if (!place.size_bytes.empty() && parse_bytes(place.size_bytes) != expected_bytes)
    return str("external data must have ", expected_bytes, " bytes, but found length '",
               place.size_bytes, "'");
  MappedPtr file;
  if (given == given_.end())
    if (Reason reason = map(place.location, file)) return reason;
  const std::string_view bytes = file ? file->bytes() : given->second.view();
  if (*offset > bytes.size() || expected_bytes > bytes.size() - *offset)
    return str("external data must have ", expected_bytes, " bytes at ", *offset, ", but found ",
               bytes.size(), " bytes in '", place.location, "'");
  const std::shared_ptr<const void> owner = file ? file : given->second.owner();
  found = {owner, bytes.substr(*offset, expected_bytes), file != nullptr};
  return std::nullopt;
}

MappedFiles OnnxExternalData::files() const {
  MappedFiles files;
  for (const auto& [path, file] : by_path_)
    if (file) files.push_back(file);
  return files;
}

Reason OnnxExternalData::resolve(const std::string& location, std::string& path) const {
  const fs::path relative(location);
  if (location.empty() || location.find('\0') != std::string::npos || leads_up(relative))
    return str("external data must be a path inside the model's folder, but found '", location,
               "'");
  std::error_code error;
  for (const fs::path& folder : folders_) {
    const fs::path real = fs::canonical(folder / relative, error);
    if (error) continue;
    if (std::none_of(folders_.begin(), folders_.end(),
                     [&](const fs::path& inside) { return is_inside(real, inside); }))
      return str("external data must lie in the model's folder, but found that '", location,
                 "' leads to '", real.string(), "'");
    path = real.string();
    return std::nullopt;
  }
  return str("external data '", location, "' cannot be read: ", error.message(), " (in ",
             folders_.empty() ? std::string() : folders_.front().string(), ")");
}

Reason OnnxExternalData::map(const std::string& location, MappedPtr& file) {
  MappedPtr& known = by_location_[location];
  if (!known) {
    std::string path;
    if (Reason reason = resolve(location, path)) return reason;
    MappedPtr& mapped = by_path_[path];
    if (!mapped) {
      Reason why_not;
      mapped = MappedFile::open(path, why_not);
      if (!mapped) return str("external data '", location, "' ", *why_not);
    }
    known = mapped;
  }
  file = known;
  return std::nullopt;
}

}  // namespace ortmodule
