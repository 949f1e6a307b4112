// SPDX-License-Identifier: Apache-2.0
#include "oktopk/base/version.h"

namespace oktopk {

std::string_view library_version() { return OKTOPK_VERSION; }

}  // namespace oktopk
