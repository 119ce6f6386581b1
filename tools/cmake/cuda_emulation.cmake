# The CUDA kernels compiled by the C++ compiler to run on the CPU (tests/cuda_emulation), for the
# tests: every .cu file through a wrapper that includes it, so that the language is C++. Never part
# of a release.
file(GLOB cu_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/csrc/kernels/cuda/*.cu)
list(FILTER cu_sources EXCLUDE REGEX "/(device_info|nvrtc_code)\\.cu$") # call the driver
set(wrappers)
foreach(source ${cu_sources})
  get_filename_component(stem ${source} NAME_WE)
  set(wrapper ${PROJECT_BINARY_DIR}/cuda_emulation/${stem}.cpp)
  file(CONFIGURE OUTPUT ${wrapper} CONTENT "#include \"kernels/cuda/@stem@.cu\"\n" @ONLY)
  list(APPEND wrappers ${wrapper})
endforeach()
file(GLOB host_sources CONFIGURE_DEPENDS
  ${PROJECT_SOURCE_DIR}/csrc/kernels/cuda/*.cpp ${PROJECT_SOURCE_DIR}/tests/cuda_emulation/*.cpp)
include(rtc_headers) # ORTM_RTC_SOURCE
add_library(ortm_cuda_emulation OBJECT ${wrappers} ${host_sources} ${ORTM_RTC_SOURCE})
ortm_target(ortm_cuda_emulation)
ortm_precompile(ortm_cuda_emulation <algorithm> <cmath> <functional> <memory> <string> <vector>)
target_include_directories(ortm_cuda_emulation PRIVATE ${PROJECT_SOURCE_DIR}/tests/cuda_emulation)
target_compile_definitions(ortm_cuda_emulation PRIVATE ORTM_CUDA_EMULATION ORTM_ISA=cuda_emulation)
target_compile_options(ortm_cuda_emulation PRIVATE -Wno-unknown-pragmas)
set_source_files_properties(${PROJECT_SOURCE_DIR}/tests/cuda_emulation/host_library.cpp PROPERTIES
  COMPILE_DEFINITIONS "ORTM_CXX=\"${CMAKE_CXX_COMPILER}\";ORTM_SOURCE_DIR=\"${PROJECT_SOURCE_DIR}\"")

# The calls of cuBLASLt, with products computed on the host (tests/cublas_emulation). Only for the C++
# tests: whole modules multiply faster by ATen, which has the place of cuBLASLt's fallback anyway.
file(GLOB cublas_sources CONFIGURE_DEPENDS
  ${PROJECT_SOURCE_DIR}/csrc/kernels/cublas/*.cpp ${PROJECT_SOURCE_DIR}/tests/cublas_emulation/*.cpp)
add_library(ortm_cublas_emulation OBJECT EXCLUDE_FROM_ALL ${cublas_sources})
ortm_target(ortm_cublas_emulation)
target_include_directories(ortm_cublas_emulation PRIVATE ${PROJECT_SOURCE_DIR}/tests/cublas_emulation)
