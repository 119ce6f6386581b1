#include "inference/shared_models.h"

#include <filesystem>
#include <map>
#include <mutex>
#include <system_error>
#include <utility>

#include "onnx/onnx_reader.h"

namespace ortmodule {
namespace {

struct Table {
  std::mutex mutex;
  std::map<std::pair<std::string, std::string>, std::weak_ptr<LoadedModel>> models;
};

// Never destroyed: sessions may be made while the process ends.
Table& table() {
  static Table& table = *new Table;
  return table;
}

// The file without links, and the folder as it was given: external data may lie in either.
std::pair<std::string, std::string> key_of(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::path real = fs::canonical(path, error);
  const fs::path folder = fs::absolute(path, error).parent_path();
  return {real.string(), folder.string()};
}

}  // namespace

std::shared_ptr<LoadedModel> load_model(const std::string& path, const OnnxSubstitutes& given) {
  MappedFiles files;
  OnnxFacts facts;
  OnnxModel model = read_onnx_model(path, given, &facts, &files);
  auto loaded = std::make_shared<LoadedModel>(std::move(model), std::move(facts), std::move(files));
  loaded->forget_pages();
  return loaded;
}

std::shared_ptr<LoadedModel> load_shared_model(const std::string& path) {
  const auto key = key_of(path);
  const std::lock_guard lock(table().mutex);
  auto& models = table().models;
  if (std::shared_ptr<LoadedModel> known = models[key].lock(); known && known->is_current())
    return known;
  std::erase_if(models, [](const auto& entry) { return entry.second.expired(); });
  std::shared_ptr<LoadedModel> loaded = load_model(path);
  models[key] = loaded;
  return loaded;
}

}  // namespace ortmodule
