# The headers that generated code includes (csrc/kernels/cuda/pointwise_source.h), as text within the
# program: NVRTC reads no files. Gives ORTM_RTC_SOURCE, to be compiled with the CUDA kernels.
set(rtc_headers base/dtype.h kernels/cuda/fast_divisor.h kernels/cuda/half_conversion.cuh
  kernels/cuda/pointwise_launch.h kernels/cuda/pointwise_thread.cuh
  kernels/cuda/vector_access.cuh kernels/integer_division.h
  kernels/micro_params.h kernels/philox.h kernels/pointwise_activation.h
  kernels/pointwise_arithmetic.h kernels/pointwise_comparison.h kernels/pointwise_convert.h
  kernels/pointwise_elementary.h kernels/pointwise_gradient.h kernels/pointwise_random.h
  kernels/pointwise_row.h kernels/run_seed.h kernels/scalar_elementary.h kernels/scalar_math.h
  kernels/stored_element.h)
set(rtc_rows)
foreach(name ${rtc_headers})
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/csrc/${name})
  file(READ ${PROJECT_SOURCE_DIR}/csrc/${name} text)
  string(APPEND rtc_rows "    {\"${name}\", R\"header(${text})header\"},\n")
endforeach()
# One text stands in for all standard headers; the first of them holds it.
set(standard ${PROJECT_SOURCE_DIR}/csrc/kernels/cuda/rtc_standard.h)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${standard})
file(READ ${standard} text)
string(APPEND rtc_rows "    {\"rtc_standard.h\", R\"header(${text})header\"},\n")
foreach(name cmath cstddef cstdint cstring cuda_runtime.h functional limits string string_view type_traits)
  string(APPEND rtc_rows "    {\"${name}\", \"#include \\\"rtc_standard.h\\\"\\n\"},\n")
endforeach()
set(ORTM_RTC_SOURCE ${PROJECT_BINARY_DIR}/rtc_headers.cpp)
file(CONFIGURE OUTPUT ${ORTM_RTC_SOURCE} @ONLY CONTENT "#include \"kernels/cuda/rtc_headers.h\"

namespace ortmodule::cuda {

std::span<const RtcHeader> rtc_headers() {
  static constexpr RtcHeader kHeaders[] = {
@rtc_rows@  };
  return kHeaders;
}

}  // namespace ortmodule::cuda
")
