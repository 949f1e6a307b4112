# SPDX-License-Identifier: Apache-2.0
# Where the command is to be built: looks for all that it needs, and names all that is missing at once.
if(OKTOPK_BUILD_TOOLS)
  set(missing "")
  foreach(package IN ITEMS CLI11 fmt Eigen3 nlohmann_json)
    find_package(${package} QUIET)
    if(NOT ${package}_FOUND)
      list(APPEND missing ${package})
    endif()
  endforeach()
  if(missing)
    list(JOIN missing ", " missing)
    message(FATAL_ERROR "oktopk: the command cannot be built, because these libraries were not found: ${missing}. "
      "On Debian and Ubuntu: apt install libcli11-dev libfmt-dev libeigen3-dev nlohmann-json3-dev. "
      "Without the command: -D OKTOPK_BUILD_TOOLS=OFF")
  endif()
endif()
