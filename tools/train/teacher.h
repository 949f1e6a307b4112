// SPDX-License-Identifier: Apache-2.0
// A generated classification problem that needs no file: normal inputs whose variance decays from
// feature to feature, and labels drawn from the softmax of a random two-layer network, the teacher.
// Labels are noisy on purpose: the loss has a floor (LearningProblem::floor, about 0.3
// log(classes)), so that relative differences between losses mean something. The same for the same
// options, on every machine; a larger set begins with the smaller one.
#pragma once

#include <cstdint>

#include "tools/train/dataset.h"

namespace oktopk {

struct TeacherOptions {
  int features = 64;
  int classes = 10;
  int hidden = 32;  // of the teacher
  int train = 262144;
  int test = 8192;
  std::uint64_t seed = 1;
};

LearningProblem make_teacher(const TeacherOptions& options);

}  // namespace oktopk
