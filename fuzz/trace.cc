// SPDX-License-Identifier: Apache-2.0
// Any bytes as the packed events of another rank, which gather_trace() merges. The seal is corrected, so that the
// fuzzer gets past the checksum. Bytes are refused with a UsageError, and then nothing has changed; events that are
// taken can be packed again, and give the same picture.
#include "oktopk/trace/trace.h"
#include "fuzz/seals.h"
#include "fuzz/target.h"
#include "oktopk/base/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace oktopk;
  fuzz::Input input(data, size);
  const std::chrono::nanoseconds shift(input.take<std::int64_t>());
  Trace trace;
  trace.record(1, 0, "mine", "own", Trace::Clock::time_point(), Trace::Clock::time_point());
  const Bytes before = trace.pack();
  try {
    trace.merge(fuzz::resealed(input.rest()), shift);
  } catch (const UsageError&) {
    fuzz::check(trace.pack() == before);
    return 0;
  }
  fuzz::check(!trace.to_json().empty());
  Trace copy;
  copy.merge(trace.pack());
  fuzz::check(copy.pack() == trace.pack() && copy.to_json() == trace.to_json());
  return 0;
}
