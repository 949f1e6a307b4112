# SPDX-License-Identifier: Apache-2.0
# oktopk_compile_like_us(target...): the language level and warnings of this repository's own code.
function(oktopk_compile_like_us)
  foreach(target IN LISTS ARGN)
    target_compile_features(${target} PUBLIC cxx_std_20)
    set_target_properties(${target} PROPERTIES CXX_EXTENSIONS OFF)
    # A multiplication and an addition round twice, on every machine and in every variant.
    target_compile_options(${target} PRIVATE -ffp-contract=off)
    # Designated initialisers leave out what has a default: -Wno-missing-field-initializers.
    target_compile_options(${target} PRIVATE
      -Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion -Wpedantic
      -Wno-missing-field-initializers
      $<$<BOOL:${OKTOPK_WERROR}>:-Werror>)
  endforeach()
endfunction()
