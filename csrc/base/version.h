#pragma once

#include <string_view>

namespace ortmodule {

/// The package version, from pyproject.toml.
std::string_view version();

}  // namespace ortmodule
