# SPDX-License-Identifier: Apache-2.0
# Public headers that have moved since 1.0. Under its old name each stands for one more version in the folder
# OKTOPK_RENAMED_HEADERS: it says the new name and includes it.
set(renamed_headers
  reduce/elastic_reducer.h elastic/elastic_reducer.h)

set(OKTOPK_RENAMED_HEADERS ${PROJECT_BINARY_DIR}/renamed)
while(renamed_headers)
  list(POP_FRONT renamed_headers old_name new_name)
  file(CONFIGURE OUTPUT ${OKTOPK_RENAMED_HEADERS}/oktopk/${old_name} @ONLY CONTENT
[=[// SPDX-License-Identifier: Apache-2.0
#pragma once
#pragma message("oktopk/@old_name@ is deprecated: include oktopk/@new_name@, or oktopk/oktopk.h")
#include "oktopk/@new_name@"  // IWYU pragma: export
]=])
endwhile()
