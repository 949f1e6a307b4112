# SPDX-License-Identifier: Apache-2.0
# Recipes for other package managers, with the version of this project: packaging/**/<file>.in becomes
# <build folder>/packaging/**/<file>. packaging/README.md says how each is used.
set(OKTOPK_SOURCE ${PROJECT_SOURCE_DIR})
file(GLOB_RECURSE templates CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/packaging/*.in)
foreach(template IN LISTS templates)
  string(REGEX REPLACE "\\.in$" "" recipe ${template})
  configure_file(${PROJECT_SOURCE_DIR}/${template} ${PROJECT_BINARY_DIR}/${recipe} @ONLY)
endforeach()
