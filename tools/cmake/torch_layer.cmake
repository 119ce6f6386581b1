# Finds torch by asking Python (no find_package(Torch): with a CUDA torch that demands a whole
# toolkit), adds CUDA where torch and nvcc allow it, and builds the extension module _C.
find_package(Python REQUIRED COMPONENTS Interpreter Development.Module)
execute_process(
  COMMAND ${Python_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tools/torch_facts.py
  OUTPUT_VARIABLE torch_facts RESULT_VARIABLE status ERROR_VARIABLE torch_message)
if(NOT status EQUAL 0)
  message(FATAL_ERROR "${torch_message}")
endif()
cmake_language(EVAL CODE "${torch_facts}")
message(STATUS "torch ${TORCH_VERSION} (cuda: ${TORCH_CUDA_VERSION}) in ${TORCH_ROOT}")

function(torch_library name)
  add_library(torch::${name} SHARED IMPORTED)
  set_target_properties(torch::${name} PROPERTIES
    IMPORTED_LOCATION ${TORCH_ROOT}/lib/lib${name}.so IMPORTED_NO_SONAME OFF)
endfunction()
foreach(name c10 torch_cpu torch torch_python)
  torch_library(${name})
endforeach()

include(cuda) # ORTM_HAS_CUDA, ortm_kernels_cuda

file(GLOB torch_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/csrc/bindings/*.cpp)
file(GLOB_RECURSE aten_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/csrc/kernels/aten/*.cpp)
list(APPEND torch_sources ${aten_sources})
if(ORTM_HAS_CUDA)
  file(GLOB_RECURSE cuda_glue CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/csrc/bindings/cuda/*.cpp)
  list(APPEND torch_sources ${cuda_glue})
endif()

# The folder of csrc/kernels that calls one of NVIDIA's libraries, as part of the extension.
function(ortm_library_kernels folder)
  file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/csrc/kernels/${folder}/*.cpp)
  add_library(ortm_kernels_${folder} OBJECT ${sources})
  ortm_target(ortm_kernels_${folder})
  foreach(dir ${ORTM_CUDA_INCLUDE_DIRS})
    target_compile_options(ortm_kernels_${folder} PRIVATE "SHELL:-idirafter ${dir}")
  endforeach()
  target_sources(_C PRIVATE $<TARGET_OBJECTS:ortm_kernels_${folder}>)
endfunction()

Python_add_library(_C MODULE WITH_SOABI ${torch_sources})
ortm_target(_C)
target_include_directories(_C SYSTEM PRIVATE
  ${TORCH_ROOT}/include ${TORCH_ROOT}/include/torch/csrc/api/include)
# Parsing torch's headers takes most of the time of these files: two units for many of them.
set(whole_units ${torch_sources})
list(FILTER whole_units INCLUDE REGEX "/bindings/bind_|/kernels/aten/")
foreach(source ${whole_units})
  get_filename_component(folder ${source} DIRECTORY)
  get_filename_component(folder ${folder} NAME)
  set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${folder})
endforeach()
set_target_properties(_C PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
# at::parallel_for is inline in torch's header: without this flag it runs on one thread. Not linked:
# the runtime must be the one that libtorch_cpu brings, whose threads torch counts.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  set_source_files_properties(${PROJECT_SOURCE_DIR}/csrc/bindings/device_runtime.cpp PROPERTIES
    COMPILE_OPTIONS -fopenmp)
else()
  message(WARNING "only g++ calls the OpenMP runtime that torch brings: our CPU kernels will run on "
    "one thread")
endif()
string(JOIN " " isas ${ORTM_ISAS})
target_compile_definitions(_C PRIVATE
  AT_PER_OPERATOR_HEADERS TORCH_EXTENSION_NAME=_C
  ORTM_TORCH_VERSION="${TORCH_VERSION}" ORTM_TORCH_CUDA_VERSION="${TORCH_CUDA_VERSION}"
  ORTM_CPU_ISAS="${isas}")
# Before torch, and though only ortmodule_core calls it: libtorch_cpu exports protobuf-typed symbols of
# another version.
target_link_libraries(_C PRIVATE ortmodule_core
  -Wl,--push-state,--no-as-needed protobuf::libprotobuf-lite -Wl,--pop-state
  torch::torch_python torch::torch torch::torch_cpu torch::c10 ${CMAKE_DL_LIBS})
if(ORTM_HAS_CUDA)
  target_sources(_C PRIVATE $<TARGET_OBJECTS:ortm_kernels_cuda>)
  string(JOIN " " targets ${CMAKE_CUDA_ARCHITECTURES})
  target_compile_definitions(_C PRIVATE ORTM_WITH_CUDA ORTM_CUDA_TARGETS="${targets}")
  target_include_directories(_C SYSTEM PRIVATE ${ORTM_CUDA_INCLUDE_DIRS})
  target_link_libraries(_C PRIVATE torch::torch_cuda torch::c10_cuda ${ORTM_CUDA_LIBRARIES})
  # Kernels that are calls of NVIDIA's libraries; the headers come with torch or a whole toolkit.
  if("cublasLt" IN_LIST ORTM_CUDA_FOUND_LIBRARIES OR TARGET CUDA::cublasLt)
    ortm_library_kernels(cublas)
    if(NOT "cublasLt" IN_LIST ORTM_CUDA_FOUND_LIBRARIES)
      target_link_libraries(_C PRIVATE CUDA::cublasLt)
    endif()
  endif()
  # No toolkit has cuDNN: without torch's wheel of it convolutions are ATen's.
  if("cudnn" IN_LIST ORTM_CUDA_FOUND_LIBRARIES)
    ortm_library_kernels(cudnn)
    target_compile_definitions(_C PRIVATE ORTM_WITH_CUDNN)
  endif()
endif()
if(ORTMODULE_TESTS AND NOT ORTM_HAS_CUDA)
  target_sources(_C PRIVATE $<TARGET_OBJECTS:ortm_cuda_emulation>)
endif()
ortm_link(_C exports.map)
set_target_properties(_C PROPERTIES INSTALL_RPATH "$ORIGIN:$ORIGIN/../torch/lib")

# Environments with other Pythons may share the folder of the package.
set_target_properties(ortmodule_core PROPERTIES OUTPUT_NAME ortmodule_core.${Python_SOABI})

# Inference sessions: the same engine without torch. pybind11 is header-only and comes with torch.
file(GLOB inference_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/csrc/bindings/inference/*.cpp)
Python_add_library(_inference MODULE WITH_SOABI ${inference_sources})
ortm_target(_inference)
target_include_directories(_inference SYSTEM PRIVATE ${TORCH_ROOT}/include)
target_link_libraries(_inference PRIVATE ortmodule_core)
ortm_link(_inference exports_inference.map)
add_dependencies(_C _inference)

# What setup.py copies: the modules, ortmodule_core, libprotobuf-lite under its soname, and a note saying which torch
# this build is for, to be read before the module is loaded.
file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/package)
if(ORTM_PROTOBUF_SONAME)
  file(COPY_FILE ${ORTM_PROTOBUF_FILE} ${PROJECT_BINARY_DIR}/package/${ORTM_PROTOBUF_SONAME}
    ONLY_IF_DIFFERENT)
endif()
set(cuda_kernels "$<$<BOOL:${ORTM_HAS_CUDA}>:ON>")
string(CONCAT facts "{\"torch\": \"${TORCH_VERSION}\", \"cuda\": \"${TORCH_CUDA_VERSION}\", "
  "\"cuda_kernels\": \"${cuda_kernels}\"}\n")
file(GENERATE OUTPUT ${PROJECT_BINARY_DIR}/package/_C.${Python_SOABI}.json CONTENT "${facts}")
