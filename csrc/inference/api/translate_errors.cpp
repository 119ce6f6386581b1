#include "inference/api/translate_errors.h"

#include <array>
#include <string_view>
#include <utility>

#include "base/version.h"

namespace ortmodule::inference {

ErrorCode code_of(const std::string& message) {
  constexpr std::array<std::pair<std::string_view, ErrorCode>, 7> kPlaces = {{
      {"[onnx]", ErrorCode::InvalidModel},
      {"[import]", ErrorCode::NotImplemented},
      {"[model]", ErrorCode::InvalidModel},
      {"[name]", ErrorCode::InvalidModel},
      {"[run]", ErrorCode::InvalidArgument},
      {"[forward]", ErrorCode::InvalidArgument},
      {"[memory]", ErrorCode::OutOfMemory},
  }};
  for (const auto& [place, code] : kPlaces)
    if (message.compare(0, place.size(), place) == 0) return code;
  return ErrorCode::Fail;
}

inline namespace v1 {

Error::Error(ErrorCode code, const std::string& message)
    : std::runtime_error(message), code_(code) {}

Error::~Error() = default;

std::string version() { return std::string(ortmodule::version()); }

}  // namespace v1
}  // namespace ortmodule::inference
