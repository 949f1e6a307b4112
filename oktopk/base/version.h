// SPDX-License-Identifier: Apache-2.0
// The versions that all ranks of a job must share: they are compared before the first step, and stand in every dump.
#pragma once

#include <string_view>

namespace oktopk {

std::string_view library_version();

inline constexpr int kWireVersion = 4;  // of frames and the messages around them (docs/wire_format.md)

}  // namespace oktopk
