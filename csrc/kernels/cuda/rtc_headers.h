// The headers that NVRTC may include, as texts (tools/cmake/rtc_headers.cmake).
#pragma once

#include <span>

namespace ortmodule::cuda {

struct RtcHeader {
  const char* name;
  const char* text;
};

std::span<const RtcHeader> rtc_headers();

}  // namespace ortmodule::cuda
