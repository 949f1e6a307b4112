# SPDX-License-Identifier: Apache-2.0
# The kernels for NVIDIA GPUs: one shared object that the library loads at run time (oktopk/gpu/cuda.cc), built where
# nvcc is found. It holds the CUDA runtime, so it needs no more than a driver.
set(OKTOPK_HAVE_CUDA OFF)
if(NOT OKTOPK_WITH_CUDA STREQUAL "OFF")
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    enable_language(CUDA)
    if(CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL 12.0)
      set(OKTOPK_HAVE_CUDA ON)
    endif()
  endif()
  if(OKTOPK_WITH_CUDA STREQUAL "ON" AND NOT OKTOPK_HAVE_CUDA)
    message(FATAL_ERROR "OKTOPK_WITH_CUDA is ON, but no nvcc of CUDA 12 or newer was found")
  endif()
endif()
message(STATUS "oktopk: CUDA kernels: ${OKTOPK_HAVE_CUDA}")

if(OKTOPK_HAVE_CUDA)
  # Machine code for GPUs from Ampere on, and PTX of the newest for those to come.
  set(default_architectures 80-real 86-real 89-real 90)
  if(CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL 12.8)
    set(default_architectures 80-real 86-real 89-real 90-real 100-real 120)
  endif()
  set(OKTOPK_CUDA_ARCHITECTURES "${default_architectures}" CACHE STRING
    "GPUs to compile the kernels for, as CMake names them")
  if(OKTOPK_CCACHE AND NOT DEFINED CMAKE_CUDA_COMPILER_LAUNCHER)
    set(CMAKE_CUDA_COMPILER_LAUNCHER ${OKTOPK_CCACHE})
  endif()
  add_library(oktopk_cuda MODULE
    oktopk/gpu/kernels/api.cu
    oktopk/gpu/kernels/context.cu
    oktopk/gpu/kernels/limits.cu
    oktopk/gpu/kernels/optim.cu
    oktopk/gpu/kernels/select.cu
    oktopk/gpu/kernels/slots.cu
    oktopk/gpu/kernels/slots_messages.cu
    oktopk/gpu/kernels/slots_passes.cu
    oktopk/gpu/kernels/verbs.cu)
  target_include_directories(oktopk_cuda PRIVATE ${PROJECT_SOURCE_DIR})
  # Sums must have the bits of the CPU: no product is fused with an addition.
  target_compile_options(oktopk_cuda PRIVATE --fmad=false -Xcompiler=-ffp-contract=off)
  if(OKTOPK_WERROR)
    target_compile_options(oktopk_cuda PRIVATE --Werror=all-warnings -Xcompiler=-Wall,-Wextra)
  endif()
  # CMake before 3.26 does not know that nvcc has C++20.
  if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
  endif()
  set_target_properties(oktopk_cuda PROPERTIES
    CUDA_STANDARD 20
    CUDA_ARCHITECTURES "${OKTOPK_CUDA_ARCHITECTURES}"
    CUDA_RUNTIME_LIBRARY Static
    CUDA_VISIBILITY_PRESET hidden
    UNITY_BUILD OFF
    LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib)
  target_link_options(oktopk_cuda PRIVATE -Wl,--exclude-libs,ALL)
  oktopk_link_portably(oktopk_cuda)

  # Selection by CUB, for comparison; built when asked for. The source distribution is without lab/.
  if(EXISTS ${PROJECT_SOURCE_DIR}/lab/gpu/rivals.cu)
    add_executable(gpu_rivals EXCLUDE_FROM_ALL lab/gpu/rivals.cu)
    set_target_properties(gpu_rivals PROPERTIES
      CUDA_STANDARD 20
      CUDA_ARCHITECTURES "${OKTOPK_CUDA_ARCHITECTURES}"
      CUDA_RUNTIME_LIBRARY Static
      UNITY_BUILD OFF
      RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR})
  endif()
endif()
