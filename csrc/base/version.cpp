#include "base/version.h"

namespace ortmodule {

std::string_view version() { return ORTM_VERSION; }

}  // namespace ortmodule
