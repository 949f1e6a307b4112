# SPDX-License-Identifier: Apache-2.0
# Libraries that the library itself links: threads, and MPI when wanted and found. The imported targets are made
# global because a project that adds this one as a subdirectory links them through us.

if(NOT TARGET Threads::Threads)
  set(THREADS_PREFER_PTHREAD_FLAG ON)
  find_package(Threads REQUIRED)
  set_property(TARGET Threads::Threads PROPERTY IMPORTED_GLOBAL TRUE)
endif()

set(OKTOPK_HAVE_MPI OFF)
if(NOT OKTOPK_WITH_MPI STREQUAL "OFF")
  if(NOT TARGET MPI::MPI_CXX)
    set(MPI_CXX_SKIP_MPICXX ON)
    if(OKTOPK_WITH_MPI STREQUAL "AUTO")
      find_package(MPI QUIET COMPONENTS CXX)
    else()
      find_package(MPI REQUIRED COMPONENTS CXX)
    endif()
    if(TARGET MPI::MPI_CXX)
      set_property(TARGET MPI::MPI_CXX PROPERTY IMPORTED_GLOBAL TRUE)
    endif()
  endif()
  if(TARGET MPI::MPI_CXX)
    set(OKTOPK_HAVE_MPI ON)
  endif()
endif()
message(STATUS "oktopk: MPI transport: ${OKTOPK_HAVE_MPI}")

# Sockets are the system's; the proof of membership and the encryption are OpenSSL's.
set(OKTOPK_HAVE_TCP OFF)
if(NOT OKTOPK_WITH_TCP STREQUAL "OFF")
  if(OKTOPK_PORTABLE)
    set(OPENSSL_USE_STATIC_LIBS ON)
  endif()
  if(OKTOPK_WITH_TCP STREQUAL "AUTO")
    find_package(OpenSSL 3 QUIET COMPONENTS Crypto)
  else()
    find_package(OpenSSL 3 REQUIRED COMPONENTS Crypto)
  endif()
  if(TARGET OpenSSL::Crypto)
    set_property(TARGET OpenSSL::Crypto PROPERTY IMPORTED_GLOBAL TRUE)
    set(OKTOPK_HAVE_TCP ON)
  endif()
endif()
message(STATUS "oktopk: TCP transport: ${OKTOPK_HAVE_TCP}")

# Header-only, for profiles and override rules as JSON files; without it, reading one is a UsageError.
find_package(nlohmann_json QUIET)
