// SPDX-License-Identifier: Apache-2.0
// Start here: what a program that synchronises gradients needs.
//   Reducer        one step's synchronisation of one flat gradient (reduce/reducer.h)
//   BucketedReducer  the same for many tensors, during the backward pass
//   (reduce/bucketed_reducer.h) NodeReducer    the same with the ranks of a host summed first
//   (reduce/node_reducer.h) SparseSgd      Algorithm 2 of the paper, momentum before or after the
//   exchange (optim/sgd.h) SparseAdam     AdamW that knows how long a coordinate was silent
//   (optim/adam.h) presets        every algorithm by name (allreduce/presets.h) calibrate      what
//   the network costs, for preset auto (tune/profile.h) Communicator   P ranks as threads
//   (comm/threads.h) or over MPI (comm/mpi.h) Trace          what every rank did when, for a viewer
//   (trace/trace.h) StepMetrics    what a step did, in numbers (reduce/step_metrics.h) errors
//   UsageError, CommError, DeviceError (base/error.h)
#pragma once

#include "oktopk/allreduce/presets.h"
#include "oktopk/allreduce/sparse_allreduce.h"
#include "oktopk/base/error.h"
#include "oktopk/comm/mpi.h"
#include "oktopk/comm/threads.h"
#include "oktopk/optim/adam.h"
#include "oktopk/optim/sgd.h"
#include "oktopk/reduce/bucketed_reducer.h"
#include "oktopk/reduce/dense_mean.h"
#include "oktopk/reduce/node_reducer.h"
#include "oktopk/reduce/reducer.h"
#include "oktopk/trace/trace.h"
#include "oktopk/tune/profile.h"
