// SPDX-License-Identifier: Apache-2.0
// The selectors by kind: a public name without the classes behind it (selector.h).
#pragma once

namespace oktopk {

enum class SelectorKind { exact, quota, reused, gaussian, controlled };

}  // namespace oktopk
