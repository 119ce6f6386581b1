# Flags for our own code: C++20, warnings, hidden symbols, ccache and a fast linker where found.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG")

find_program(CCACHE ccache)
if(CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # ccache takes precompiled headers only with this sloppiness, and no file of ours reads the clock or
  # defines macros for them. With paths relative to the build folder, builds for other versions of
  # torch share the objects of the core and the CPU kernels.
  set(launcher ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros
    CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=1 ${CCACHE})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${launcher})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${launcher})
endif()
find_program(MOLD mold)
find_program(LLD ld.lld)
if(MOLD AND (CMAKE_CXX_COMPILER_ID STREQUAL "Clang" OR CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 12.1))
  add_link_options(-fuse-ld=mold)
elseif(LLD)
  add_link_options(-fuse-ld=lld)
endif()

# Contraction is off everywhere: recomputing a value must give the same bits as computing it, in
# whatever function the compiler inlined the formula.
add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off>)
if(ORTMODULE_SANITIZE)
  if(ORTMODULE_TORCH)
    message(FATAL_ERROR "ORTMODULE_SANITIZE is for the C++ tests: add -DORTMODULE_TORCH=OFF")
  endif()
  add_compile_options(-fsanitize=${ORTMODULE_SANITIZE} -fno-sanitize-recover=all
    -fno-omit-frame-pointer -g1)
  add_link_options(-fsanitize=${ORTMODULE_SANITIZE})
endif()

# Headers that most files of a target include, parsed once; with -fpch-preprocess ccache sees their
# content. Not in a build with sanitizers, which so shows what a file forgot to include.
function(ortm_precompile target)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND NOT ORTMODULE_SANITIZE)
    target_precompile_headers(${target} PRIVATE ${ARGN})
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-fpch-preprocess>)
  endif()
endfunction()

# Compiles up to `size` files of each folder as one unit, which takes half the time. What the files of
# such a folder define in unnamed namespaces has names of its own. Not in a build with sanitizers,
# where each file must compile by itself.
function(ortm_unite target size)
  if(ORTMODULE_SANITIZE)
    return()
  endif()
  foreach(source ${ARGN})
    file(RELATIVE_PATH folder ${PROJECT_SOURCE_DIR}/csrc ${source})
    get_filename_component(folder ${folder} DIRECTORY)
    string(MAKE_C_IDENTIFIER "${folder}" folder)
    if(NOT DEFINED united_${folder})
      set(united_${folder} 0)
    endif()
    math(EXPR unit "${united_${folder}} / ${size}")
    math(EXPR united_${folder} "${united_${folder}} + 1")
    set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${folder}_${unit})
  endforeach()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
endfunction()

# Other modules call the functions of `target`. They are not replaced at load time, so calls among
# them stay direct and may be inlined.
function(ortm_exported target)
  set_target_properties(${target} PROPERTIES CXX_VISIBILITY_PRESET default)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(${target} PRIVATE -fno-semantic-interposition)
  endif()
endfunction()

# Links a shared library or module of the package, which exports what `map` lists.
function(ortm_link target map)
  set(script ${PROJECT_SOURCE_DIR}/tools/cmake/${map})
  target_link_options(${target} PRIVATE
    -Wl,--version-script=${script} -Wl,--exclude-libs,ALL -Wl,--gc-sections
    -Wl,--as-needed -Wl,-z,text -Wl,-z,now)
  set_target_properties(${target} PROPERTIES
    LINKER_LANGUAGE CXX LINK_DEPENDS ${script}
    LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/package
    SKIP_BUILD_RPATH OFF BUILD_WITH_INSTALL_RPATH ON INSTALL_RPATH "$ORIGIN")
endfunction()

function(ortm_target target)
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/csrc)
  target_compile_options(${target} PRIVATE
    $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wpedantic>
    $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<BOOL:${ORTMODULE_WERROR}>>:-Werror>)
endfunction()
