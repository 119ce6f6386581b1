# CPU kernels and the registry. ORTM_KERNEL_TARGETS lists the OBJECT libraries in link order.
file(GLOB registry_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/csrc/kernels/*.cpp)
file(GLOB_RECURSE cpu_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/csrc/kernels/cpu/*.cpp)
set(ORTM_KERNEL_TARGETS)

if(registry_sources)
  add_library(ortm_kernels OBJECT ${registry_sources})
  ortm_target(ortm_kernels)
  ortm_exported(ortm_kernels)
  list(APPEND ORTM_KERNEL_TARGETS ortm_kernels)
endif()

# Flags that let loops over math functions vectorize and change no result. Not -ffast-math.
set(kernel_options -O3 -fno-math-errno -fno-trapping-math)
option(ORTMODULE_SANITIZE_KERNELS "Build the CPU kernels with the sanitizers, too: minutes for each file")
if(ORTMODULE_SANITIZE AND NOT ORTMODULE_SANITIZE_KERNELS)
  set(kernel_options -O1 -fno-math-errno -fno-trapping-math -fno-sanitize=all)
endif()

set(ORTMODULE_ISAS baseline avx2 avx512 avx512_vnni avx512_bf16 CACHE STRING
    "Instruction sets of the CPU kernels; fewer compile faster, but run only where they are known")

# ortm_cpu_kernels(<instruction set> <flags>), of `cpu_sources`.
function(ortm_cpu_kernels isa)
  if(NOT isa IN_LIST ORTMODULE_ISAS)
    return()
  endif()
  set(ORTM_ISAS ${ORTM_ISAS} ${isa} PARENT_SCOPE)
  add_library(ortm_kernels_${isa} OBJECT ${cpu_sources})
  ortm_target(ortm_kernels_${isa})
  ortm_precompile(ortm_kernels_${isa} <algorithm> <cmath> <functional> <memory> <string> <vector>)
  target_compile_definitions(ortm_kernels_${isa} PRIVATE ORTM_ISA=${isa})
  target_compile_options(ortm_kernels_${isa} PRIVATE ${kernel_options} ${ARGN})
endfunction()

# Sets `cpu_sources` to those of `all_sources` that include this header.
macro(ortm_sources_with header)
  set(cpu_sources)
  foreach(source ${all_sources})
    file(STRINGS ${source} found REGEX "kernels/cpu/${header}\\.h" LIMIT_COUNT 1)
    if(found)
      list(APPEND cpu_sources ${source})
    endif()
  endforeach()
endmacro()

set(ORTM_ISAS)
if(cpu_sources)
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
    # Of processors that are over ten years old: small and quickly compiled before fast.
    ortm_cpu_kernels(baseline -march=x86-64-v2 -O2)
    ortm_cpu_kernels(avx2 -march=x86-64-v3)
    ortm_cpu_kernels(avx512 -march=x86-64-v4 -mprefer-vector-width=512)
    # Products of integers and of bfloat16 have instructions of their own; the other kernels would
    # not gain.
    set(all_sources ${cpu_sources})
    ortm_sources_with(integer_copies)
    ortm_cpu_kernels(avx512_vnni -march=x86-64-v4 -mavx512vnni -mprefer-vector-width=512)
    ortm_sources_with(pair_copies)
    ortm_cpu_kernels(avx512_bf16 -march=x86-64-v4 -mavx512bf16 -mprefer-vector-width=512)
  else()
    ortm_cpu_kernels(baseline)
  endif()
  foreach(isa ${ORTM_ISAS})
    list(APPEND ORTM_KERNEL_TARGETS ortm_kernels_${isa})
  endforeach()
endif()
