# SPDX-License-Identifier: Apache-2.0
# OKTOPK_PORTABLE: programs and modules that run on other machines than the one that built them. They need the C library
# and libgcc_s, which every Linux with glibc has. Names of the libraries inside are hidden, so that they do not meet
# those of another module. Functions that nothing calls are left out: some of the C++ runtime's would ask for glibc 2.36
# (arc4random). A static libgcc would ask for glibc 2.35.

# oktopk_link_portably(target): of a program or a module.
function(oktopk_link_portably target)
  if(OKTOPK_PORTABLE AND NOT APPLE)
    target_link_options(${target} PRIVATE -static-libstdc++ LINKER:--exclude-libs,ALL LINKER:--gc-sections)
  endif()
endfunction()

# fmt inside the program, not as a library beside it.
macro(oktopk_find_fmt)
  find_package(fmt REQUIRED)
  set(OKTOPK_FMT fmt::fmt)
  if(OKTOPK_PORTABLE)
    set(OKTOPK_FMT fmt::fmt-header-only)
  endif()
endmacro()
