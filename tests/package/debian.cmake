# SPDX-License-Identifier: Apache-2.0
# cmake -P debian.cmake: makes the Debian package of the build folder BUILD, and unpacks it into ROOT.
file(REMOVE_RECURSE ${ROOT} ${ROOT}-package)
execute_process(COMMAND ${CPACK} -G DEB -B ${ROOT}-package WORKING_DIRECTORY ${BUILD} COMMAND_ERROR_IS_FATAL ANY)
file(GLOB packages ${ROOT}-package/*.deb)
list(LENGTH packages count)
if(NOT count EQUAL 1)
  message(FATAL_ERROR "cpack made ${count} packages, not one: ${packages}")
endif()
execute_process(COMMAND ${DPKG_DEB} --field ${packages} Version
  OUTPUT_VARIABLE version OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
if(NOT version STREQUAL VERSION)
  message(FATAL_ERROR "the package has version ${version}, not ${VERSION}")
endif()
execute_process(COMMAND ${DPKG_DEB} -x ${packages} ${ROOT} COMMAND_ERROR_IS_FATAL ANY)
