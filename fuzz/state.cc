// SPDX-License-Identifier: Apache-2.0
// Any bytes as the saved state of a Reducer, BucketedReducer, NodeReducer or optimiser. Seals of the state and of the
// states inside it are corrected, so that the fuzzer gets past the checksums. A state is refused with a UsageError, and
// then nothing has changed: the object saves the same bytes as before. A state that is taken lets the object go on.
#include <cmath>
#include <memory>
#include <vector>

#include "fuzz/seals.h"
#include "fuzz/subjects.h"
#include "fuzz/target.h"
#include "oktopk/base/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace oktopk;
  if (size > (std::size_t{1} << 16)) return 0;
  fuzz::Input input(data, size);
  const unsigned kind = input.take();
  const unsigned preset = input.take();
  fuzz::Subject subject(kind % fuzz::kSubjectKinds, preset);
  const Bytes before = subject.save();
  const Bytes state = fuzz::resealed(input.rest());
  try {
    if (kind / fuzz::kSubjectKinds % 2 == 0)
      subject.load(state);
    else
      subject.load_all({state, state});
  } catch (const UsageError&) {
    fuzz::check(subject.save() == before);
    return 0;
  }
  try {
    subject.step();
    fuzz::check(!subject.save().empty());
  } catch (const UsageError&) {
    // Finite values of the state may overflow when a gradient is added.
  } catch (const CommError&) {
    // A step after such a failure.
  }
  return 0;
}
