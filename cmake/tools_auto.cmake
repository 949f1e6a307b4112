# SPDX-License-Identifier: Apache-2.0
# OKTOPK_BUILD_TOOLS=AUTO: ON where all that the command needs is found, OFF otherwise, said aloud.
if(OKTOPK_BUILD_TOOLS STREQUAL "AUTO")
  set(missing "")
  foreach(package IN ITEMS CLI11 fmt Eigen3 ZLIB nlohmann_json)
    find_package(${package} QUIET)
    if(NOT ${package}_FOUND)
      list(APPEND missing ${package})
    endif()
  endforeach()
  if(missing)
    message(WARNING "oktopk: the command is not built: not found: ${missing}. On Debian and Ubuntu: "
      "apt install libcli11-dev libfmt-dev libeigen3-dev zlib1g-dev nlohmann-json3-dev")
    set(OKTOPK_BUILD_TOOLS OFF)
  else()
    set(OKTOPK_BUILD_TOOLS ON)
  endif()
endif()
