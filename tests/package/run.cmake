# SPDX-License-Identifier: Apache-2.0
# cmake -P run.cmake: configures, builds and runs the consumer in SOURCE from scratch in BUILD.
function(step)
  execute_process(COMMAND ${ARGN} COMMAND_ECHO STDOUT RESULT_VARIABLE result)
  if(NOT result EQUAL 0)
    list(JOIN ARGN " " command)
    message(FATAL_ERROR "failed (${result}): ${command}")
  endif()
endfunction()

file(REMOVE_RECURSE ${BUILD})
set(ENV{PKG_CONFIG_PATH} ${PREFIX}/${LIBDIR}/pkgconfig)
set(ENV{LD_LIBRARY_PATH} ${PREFIX}/${LIBDIR})

step(${CMAKE_COMMAND} -S ${SOURCE} -B ${BUILD} -G ${GENERATOR}
  -D CMAKE_BUILD_TYPE=Debug
  -D CMAKE_CXX_FLAGS_DEBUG=-O0
  -D CMAKE_UNITY_BUILD=ON
  -D CMAKE_CXX_COMPILER=${COMPILER}
  -D CMAKE_CXX_COMPILER_LAUNCHER=${LAUNCHER}
  -D CMAKE_PREFIX_PATH=${PREFIX}
  -D VERSION=${VERSION}
  -D OKTOPK_WITH_MPI=${WITH_MPI}
  -D HAVE_MPI=${HAVE_MPI})
step(${CMAKE_COMMAND} --build ${BUILD} --parallel 2)
step(${BUILD}/consumer)
