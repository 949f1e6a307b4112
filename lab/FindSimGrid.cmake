# SPDX-License-Identifier: Apache-2.0
# Finds SimGrid with its MPI, SMPI (Debian: libsimgrid-dev): SimGrid_FOUND, the program
# SimGrid_SMPIRUN, and the target SimGrid::smpi. Debian's package has no CMake files of its own.
find_path(SimGrid_INCLUDE_DIR simgrid/config.h)
find_path(SimGrid_MPI_H_DIR smpi.h PATH_SUFFIXES smpi)  # mpi.h is beside it
find_library(SimGrid_LIBRARY simgrid)
find_program(SimGrid_SMPIRUN smpirun)
mark_as_advanced(SimGrid_INCLUDE_DIR SimGrid_MPI_H_DIR SimGrid_LIBRARY SimGrid_SMPIRUN)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(SimGrid
  REQUIRED_VARS SimGrid_LIBRARY SimGrid_INCLUDE_DIR SimGrid_MPI_H_DIR SimGrid_SMPIRUN)

if(SimGrid_FOUND AND NOT TARGET SimGrid::smpi)
  add_library(SimGrid::smpi UNKNOWN IMPORTED)
  set_target_properties(SimGrid::smpi PROPERTIES
    IMPORTED_LOCATION ${SimGrid_LIBRARY}
    INTERFACE_INCLUDE_DIRECTORIES "${SimGrid_MPI_H_DIR};${SimGrid_INCLUDE_DIR}"
    INTERFACE_COMPILE_DEFINITIONS SMPI_NO_OVERRIDE_MALLOC)
endif()
