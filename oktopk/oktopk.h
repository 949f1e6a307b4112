// SPDX-License-Identifier: Apache-2.0
// Start here: what a program that synchronises gradients needs.
//   Reducer        one step's synchronisation of one flat gradient (optim/reducer.h)
//   presets        every algorithm by name (allreduce/presets.h)
//   Communicator   P ranks as threads (comm/threads.h) or over MPI (comm/mpi.h)
//   errors         UsageError, CommError, DeviceError (base/error.h)
#pragma once

#include "oktopk/allreduce/presets.h"
#include "oktopk/base/error.h"
#include "oktopk/comm/mpi.h"
#include "oktopk/comm/threads.h"
#include "oktopk/optim/reducer.h"
