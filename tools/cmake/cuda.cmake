# Decides about CUDA by torch's own CUDA version and nvcc, never by looking for a GPU:
#   torch CPU,  no nvcc   CPU only
#   torch CPU,  nvcc      CPU only; target `cuda_kernels_check` compiles the .cu files (in ALL if ON)
#   torch CUDA, no nvcc   CPU only with a warning (an error if ON)
#   torch CUDA, nvcc      CPU and CUDA; the toolkit's major version must be torch's
set(ORTM_HAS_CUDA OFF)
if(ORTMODULE_CUDA STREQUAL "OFF")
  return()
endif()

if(DEFINED ENV{CUDA_HOME} AND NOT CMAKE_CUDA_COMPILER AND EXISTS $ENV{CUDA_HOME}/bin/nvcc)
  set(CMAKE_CUDA_COMPILER $ENV{CUDA_HOME}/bin/nvcc)
endif()
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  include(cuda_architectures)
endif()
include(CheckLanguage)
check_language(CUDA)
if(NOT CMAKE_CUDA_COMPILER)
  if(TORCH_CUDA_VERSION)
    set(level WARNING)
    if(ORTMODULE_CUDA STREQUAL "ON")
      set(level FATAL_ERROR)
    endif()
    message(${level} "torch ${TORCH_VERSION} is a CUDA build, but no nvcc was found: set CUDA_HOME "
      "to a CUDA ${TORCH_CUDA_VERSION} toolkit. The CPU part is built without it.")
  elseif(ORTMODULE_CUDA STREQUAL "ON")
    message(FATAL_ERROR "ORTMODULE_CUDA=ON, but no nvcc was found: set CUDA_HOME")
  endif()
  return()
endif()

set(CMAKE_CUDA_RUNTIME_LIBRARY Shared) # torch loads the same one; two would hold two states
set(CMAKE_CUDA_VISIBILITY_PRESET hidden)
enable_language(CUDA)
set(CMAKE_CUDA_STANDARD 20)
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION) # CMake 3.25.1 does not know that nvcc takes C++20
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
endif()
set(CMAKE_CUDA_FLAGS_RELEASE "-O3 -DNDEBUG")
find_package(CUDAToolkit REQUIRED)

if(TORCH_CUDA_VERSION)
  string(REGEX MATCH "^[0-9]+" torch_major "${TORCH_CUDA_VERSION}")
  if(NOT torch_major EQUAL CUDAToolkit_VERSION_MAJOR)
    message(FATAL_ERROR "torch ${TORCH_VERSION} was built with CUDA ${TORCH_CUDA_VERSION}, nvcc is "
      "${CUDAToolkit_VERSION}: set CUDA_HOME to a CUDA ${torch_major} toolkit, or ORTMODULE_CUDA=OFF")
  elseif(NOT "${CUDAToolkit_VERSION_MAJOR}.${CUDAToolkit_VERSION_MINOR}" STREQUAL TORCH_CUDA_VERSION)
    message(WARNING "torch was built with CUDA ${TORCH_CUDA_VERSION}, nvcc is ${CUDAToolkit_VERSION}")
  endif()
endif()

# Headers and libraries that come with torch's own dependency wheels (cuBLAS, cuBLASLt, cuDNN). Their
# sonames are loaded by `import torch`, so nothing is searched for at run time.
get_filename_component(site_packages ${TORCH_ROOT} DIRECTORY)
set(ORTM_CUDA_INCLUDE_DIRS ${CUDAToolkit_INCLUDE_DIRS})
set(ORTM_CUDA_LIBRARIES CUDA::cudart)
set(ORTM_CUDA_FOUND_LIBRARIES)
foreach(wheel cu${CUDAToolkit_VERSION_MAJOR} cublas cudnn)
  if(EXISTS ${site_packages}/nvidia/${wheel}/include)
    list(APPEND ORTM_CUDA_INCLUDE_DIRS ${site_packages}/nvidia/${wheel}/include)
  endif()
endforeach()
foreach(name cublas cublasLt cudnn)
  file(GLOB found ${site_packages}/nvidia/*/lib/lib${name}.so.[0-9]*)
  if(found)
    list(GET found 0 library)
    add_library(nvidia::${name} SHARED IMPORTED)
    set_target_properties(nvidia::${name} PROPERTIES IMPORTED_LOCATION ${library})
    list(APPEND ORTM_CUDA_LIBRARIES nvidia::${name})
    list(APPEND ORTM_CUDA_FOUND_LIBRARIES ${name})
  endif()
endforeach()

# Host code of kernels in .cpp files is left to the C++ compiler.
file(GLOB_RECURSE cuda_sources CONFIGURE_DEPENDS
  ${PROJECT_SOURCE_DIR}/csrc/kernels/cuda/*.cu ${PROJECT_SOURCE_DIR}/csrc/kernels/cuda/*.cpp)
include(rtc_headers)
list(APPEND cuda_sources ${ORTM_RTC_SOURCE})
if(TORCH_CUDA_VERSION OR ORTMODULE_CUDA STREQUAL "ON")
  add_library(ortm_kernels_cuda OBJECT ${cuda_sources})
else()
  add_library(ortm_kernels_cuda OBJECT EXCLUDE_FROM_ALL ${cuda_sources})
endif()
add_custom_target(cuda_kernels_check DEPENDS ortm_kernels_cuda)
ortm_target(ortm_kernels_cuda)
# After the toolkit's own headers: the wheels bring a second copy of them.
foreach(dir ${ORTM_CUDA_INCLUDE_DIRS})
  target_compile_options(ortm_kernels_cuda PRIVATE
    $<$<COMPILE_LANGUAGE:CUDA>:SHELL:-Xcompiler -idirafter,${dir}>)
endforeach()
target_compile_options(ortm_kernels_cuda PRIVATE
  $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr --extended-lambda --fmad=false --threads=2>
  "$<$<COMPILE_LANGUAGE:CUDA>:SHELL:-Xcompiler -Wall,-Wextra,-ffp-contract=off>"
  $<$<AND:$<COMPILE_LANGUAGE:CUDA>,$<BOOL:${ORTMODULE_WERROR}>>:-Werror=all-warnings>)

# A tenth of the size: the code for one architecture differs little from that for the next.
if(CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL 12.9)
  target_compile_options(ortm_kernels_cuda PRIVATE
    $<$<COMPILE_LANGUAGE:CUDA>:--compress-mode=size>)
endif()

if(TORCH_CUDA_VERSION)
  set(ORTM_HAS_CUDA ON)
  foreach(name torch_cuda c10_cuda)
    torch_library(${name})
  endforeach()
endif()
message(STATUS "CUDA ${CUDAToolkit_VERSION}, architectures ${CMAKE_CUDA_ARCHITECTURES}, "
  "from torch's wheels: ${ORTM_CUDA_FOUND_LIBRARIES}")
