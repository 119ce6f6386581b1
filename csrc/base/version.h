#pragma once

#include <string_view>

namespace ortmodule {

// The package's version, as in pyproject.toml.
std::string_view version();

}  // namespace ortmodule
