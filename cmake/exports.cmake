# SPDX-License-Identifier: Apache-2.0
# The binary interface of the shared library: its number, and the names that it exports.
# OKTOPK_ABI: programs run with another version of the library, without a new link, where this part of it is equal. A
# minor version may add fields to structs of options, which changes their size: docs/stability.md.
set(OKTOPK_ABI ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
# Sources compile with every later version of the same major version; before 1.0, of the same minor version.
set(OKTOPK_COMPATIBILITY SameMajorVersion)
if(PROJECT_VERSION_MAJOR EQUAL 0)
  set(OKTOPK_COMPATIBILITY SameMinorVersion)
endif()

configure_file(${CMAKE_CURRENT_LIST_DIR}/oktopk.map.in ${PROJECT_BINARY_DIR}/oktopk.map @ONLY)

# oktopk_export_own_names(target): a shared library exports the names of namespace oktopk and no others, each with
# the version OKTOPK_<ABI>. Apple's linker has no such files.
function(oktopk_export_own_names target)
  get_target_property(type ${target} TYPE)
  if(type STREQUAL "SHARED_LIBRARY" AND NOT APPLE)
    target_link_options(${target} PRIVATE LINKER:--version-script=${PROJECT_BINARY_DIR}/oktopk.map)
    set_target_properties(${target} PROPERTIES LINK_DEPENDS ${PROJECT_BINARY_DIR}/oktopk.map)
  endif()
endfunction()
