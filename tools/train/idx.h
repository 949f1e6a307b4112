// SPDX-License-Identifier: Apache-2.0
// MNIST, and what has its format, from the files it is published as:
//   train-images-idx3-ubyte  train-labels-idx1-ubyte  t10k-images-idx3-ubyte t10k-labels-idx1-ubyte
// each plain or with .gz. A file is a big-endian header (magic number, then one 32-bit length for
// each dimension) and one byte for each pixel or label.
// Invariant: memory is taken for bytes that were read, never for what a header promises.
#pragma once

#include <string>

#include "tools/train/dataset.h"

namespace oktopk {

// Pixels are scaled to [0, 1], then shifted and scaled by the usual mean (0.1307) and deviation
// (0.3081). UsageError names the file and what is wrong with it.
LearningProblem load_mnist(const std::string& dir);

}  // namespace oktopk
