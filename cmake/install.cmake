# SPDX-License-Identifier: Apache-2.0
# What `cmake --install` puts where: library, headers, find_package(oktopk) and pkg-config files.
include(CMakePackageConfigHelpers)

set(config_dir ${CMAKE_INSTALL_LIBDIR}/cmake/oktopk)

set(targets oktopk)
if(TARGET oktopk_mpi)
  list(APPEND targets oktopk_mpi)
endif()
install(TARGETS ${targets} EXPORT oktopk-targets
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/oktopk/oktopk.h)
# The headers that oktopk.h lists; all others are private.
file(STRINGS ${PROJECT_SOURCE_DIR}/oktopk/oktopk.h public_headers REGEX "^#include \"oktopk/")
list(TRANSFORM public_headers REPLACE "^#include \"(oktopk/[^\"]+)\".*" "\\1")
list(APPEND public_headers oktopk/oktopk.h)
if(OKTOPK_HAVE_MPI)
  list(APPEND public_headers oktopk/comm/mpi_comm.h)
endif()
foreach(header IN LISTS public_headers)
  get_filename_component(folder ${header} DIRECTORY)
  install(FILES ${PROJECT_SOURCE_DIR}/${header} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/${folder})
endforeach()
install(DIRECTORY ${OKTOPK_RENAMED_HEADERS}/oktopk DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
if(TARGET oktopk_cuda)  # loaded at run time
  install(TARGETS oktopk_cuda LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
endif()
if(TARGET oktopk_tool)
  install(TARGETS oktopk_tool RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  if(NOT CMAKE_CROSSCOMPILING)  # written by the command itself: tools/CMakeLists.txt
    set(words ${PROJECT_BINARY_DIR}/words)
    install(FILES ${words}/oktopk.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
    install(FILES ${words}/oktopk DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
    install(FILES ${words}/_oktopk DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions)
    install(FILES ${words}/oktopk.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d)
  endif()
endif()

install(EXPORT oktopk-targets
  NAMESPACE oktopk::
  FILE oktopkTargets.cmake
  DESTINATION ${config_dir})

get_target_property(library_type oktopk TYPE)
if(library_type STREQUAL "STATIC_LIBRARY")
  set(OKTOPK_IS_STATIC ON)
else()
  set(OKTOPK_IS_STATIC OFF)
endif()

configure_package_config_file(
  ${CMAKE_CURRENT_LIST_DIR}/oktopkConfig.cmake.in ${PROJECT_BINARY_DIR}/oktopkConfig.cmake
  INSTALL_DESTINATION ${config_dir}
  NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/oktopkConfigVersion.cmake
  COMPATIBILITY ${OKTOPK_COMPATIBILITY})
install(FILES
  ${PROJECT_BINARY_DIR}/oktopkConfig.cmake
  ${PROJECT_BINARY_DIR}/oktopkConfigVersion.cmake
  DESTINATION ${config_dir})

# MPI's flags are for a static library, and for programs that include comm/mpi_comm.h. Where pkg-config knows the MPI of
# this build it is named, so that no path of this machine is written down.
set(pc_cflags "")
set(pc_requires "")
set(pc_libs "${CMAKE_THREAD_LIBS_INIT}")
if(OKTOPK_HAVE_MPI)
  find_package(PkgConfig QUIET)
  foreach(name IN ITEMS ompi mpich impi)
    if(PKG_CONFIG_FOUND AND pc_requires STREQUAL "")
      pkg_check_modules(OKTOPK_PC_${name} QUIET ${name})
      list(GET MPI_CXX_INCLUDE_DIRS 0 mpi_include)
      if(OKTOPK_PC_${name}_FOUND AND mpi_include IN_LIST OKTOPK_PC_${name}_INCLUDE_DIRS)
        set(pc_requires ${name})
      endif()
    endif()
  endforeach()
  if(pc_requires STREQUAL "")
    list(TRANSFORM MPI_CXX_INCLUDE_DIRS PREPEND "-I" OUTPUT_VARIABLE pc_cflags)
    list(JOIN pc_cflags " " pc_cflags)
    list(JOIN MPI_CXX_LIBRARIES " " mpi_libs)
    string(APPEND pc_libs " ${mpi_libs}")
  endif()
endif()
if(OKTOPK_HAVE_TCP)
  string(APPEND pc_libs " -lcrypto")
endif()
file(RELATIVE_PATH pc_prefix_from_here
  /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
string(REGEX REPLACE "/$" "" pc_prefix_from_here "${pc_prefix_from_here}")
configure_file(${CMAKE_CURRENT_LIST_DIR}/oktopk.pc.in ${PROJECT_BINARY_DIR}/oktopk.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/oktopk.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
