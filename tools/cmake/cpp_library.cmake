# ${ORTM_CPP_LIBRARY} as a C++ library of its own: what `cmake --install` of a build installs.
# Users link ortmodule::core; ortmodule::onnxruntime adds the folders in which programs written for
# onnxruntime find their headers.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/ortmodule)
# What only this library links (a copy of protobuf) is beside it in a folder of its own, where no other program
# finds it.
set(private_dir ${CMAKE_INSTALL_LIBDIR}/ortmodule)

set_target_properties(${ORTM_CPP_LIBRARY} PROPERTIES
  EXPORT_NAME core VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}
  INSTALL_RPATH "$ORIGIN/ortmodule")
target_compile_features(${ORTM_CPP_LIBRARY} INTERFACE cxx_std_17)
target_include_directories(${ORTM_CPP_LIBRARY} INTERFACE
  $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
add_library(ortmodule::core ALIAS ${ORTM_CPP_LIBRARY})

add_library(ortmodule_onnxruntime INTERFACE)
set_target_properties(ortmodule_onnxruntime PROPERTIES EXPORT_NAME onnxruntime)
target_link_libraries(ortmodule_onnxruntime INTERFACE ${ORTM_CPP_LIBRARY})
foreach(folder ortmodule ortmodule/onnxruntime)
  target_include_directories(ortmodule_onnxruntime INTERFACE
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include/${folder}>
    $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/${folder}>)
endforeach()
add_library(ortmodule::onnxruntime ALIAS ortmodule_onnxruntime)

install(TARGETS ${ORTM_CPP_LIBRARY} ortmodule_onnxruntime EXPORT ortmoduleTargets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT ortmoduleTargets NAMESPACE ortmodule:: DESTINATION ${package_dir})
if(ORTM_PROTOBUF_SONAME)
  install(FILES ${ORTM_PROTOBUF_FILE} DESTINATION ${private_dir} RENAME ${ORTM_PROTOBUF_SONAME})
endif()
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/ortmodule)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/LICENSES DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/ortmodule)

configure_package_config_file(${PROJECT_SOURCE_DIR}/tools/cmake/ortmoduleConfig.cmake.in
  ${PROJECT_BINARY_DIR}/install/ortmoduleConfig.cmake INSTALL_DESTINATION ${package_dir}
  NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/install/ortmoduleConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/install/ortmoduleConfig.cmake
  ${PROJECT_BINARY_DIR}/install/ortmoduleConfigVersion.cmake DESTINATION ${package_dir})

# pkg-config files find the tree by their own place, so that it can be moved.
set(pkgconfig_dir ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
file(RELATIVE_PATH ORTM_PREFIX_FROM_PKGCONFIG ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
foreach(name ortmodule ortmodule-onnxruntime)
  configure_file(${PROJECT_SOURCE_DIR}/tools/cmake/${name}.pc.in
    ${PROJECT_BINARY_DIR}/install/${name}.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/install/${name}.pc DESTINATION ${pkgconfig_dir})
endforeach()
