// SPDX-License-Identifier: Apache-2.0
// Any texts, with zero bytes between them, as dumps of flight recorders: the input of `oktopk doctor`. Only UsageError
// may come of it. Dumps that are read get a diagnosis, which can be written as JSON.
#include <string>
#include <utility>
#include <vector>

#include "fuzz/target.h"
#include "oktopk/base/error.h"
#include "tools/diagnosis.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace oktopk;
  const std::string all(reinterpret_cast<const char*>(data), size);
  std::vector<Dump> dumps;
  try {
    for (std::size_t at = 0; at <= all.size() && dumps.size() < 4;) {
      const std::size_t end = std::min(all.find('\0', at), all.size());
      dumps.push_back(parse_dump(all.substr(at, end - at), text_of("dump ", dumps.size())));
      at = end + 1;
    }
    const Diagnosis diagnosis = diagnose(of_one_run(std::move(dumps)), 1);
    fuzz::check(diagnosis.is_fine || !diagnosis.findings.empty());
    fuzz::check(!diagnosis.json().dump().empty());
  } catch (const UsageError&) {
  }
  return 0;
}
