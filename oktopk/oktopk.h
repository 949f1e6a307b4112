// SPDX-License-Identifier: Apache-2.0
// Start here: every installed header, with one line each. All other headers are private: cmake/install.cmake installs
// this list, and scripts/check_layers.py checks that its headers include each other only. One more header is installed
// where MPI is: oktopk/comm/mpi_comm.h takes an MPI_Comm and includes <mpi.h>, so a program includes it itself.
#pragma once

// Errors, memory, values
#include "oktopk/base/bytes.h"       // Bytes: memory that growing does not initialise
#include "oktopk/base/error.h"       // UsageError, CommError, DeviceError
#include "oktopk/codec/codec.h"      // Codec: how entries are coded on the wire
#include "oktopk/device/device.h"    // Device: all passes over n values
#include "oktopk/device/gradient.h"  // Gradient: a view of floats, bfloat16 or half
#include "oktopk/sparse/coo.h"       // CooView, SparseVector: indices and values
#include "oktopk/trace/trace.h"      // Trace: what every rank did when, for a viewer

// Ranks
#include "oktopk/comm/collectives.h"   // broadcast, barrier, allgather and others
#include "oktopk/comm/communicator.h"  // Communicator: P ranks that exchange bytes
#include "oktopk/comm/mpi.h"           // ranks over MPI
#include "oktopk/comm/threads.h"       // ranks as threads of this process

// One sparse allreduce
#include "oktopk/allreduce/presets.h"           // presets: every algorithm by name, and its options
#include "oktopk/allreduce/sparse_allreduce.h"  // sparse_allreduce: just the collective, without state

// The choice of preset auto
#include "oktopk/tune/choose.h"     // ChoiceOptions: what auto may choose
#include "oktopk/tune/profile.h"    // Profile: the prices of network and processor

// Synchronising gradients
#include "oktopk/reduce/bucketed_reducer.h"  // BucketedReducer: many tensors, during the backward pass
#include "oktopk/reduce/node_reducer.h"      // NodeReducer: the ranks of a host sum first
#include "oktopk/reduce/reducer.h"           // Reducer: one flat gradient, and all options
#include "oktopk/reduce/synchroniser.h"      // Synchroniser, Update, StepMetrics: what all three share

// Changing the weights
#include "oktopk/optim/adam.h"           // SparseAdam: AdamW that knows how long a coordinate waited
#include "oktopk/optim/gradient_clip.h"  // clip_factor: clipping by the norm over all ranks
#include "oktopk/optim/optimiser.h"      // Optimiser: the interface of both
#include "oktopk/optim/sgd.h"            // SparseSgd: momentum before or after the exchange

// Headers that those above include, although no program needs them
#include "oktopk/allreduce/allreduce.h"
#include "oktopk/base/half.h"
#include "oktopk/base/state.h"
#include "oktopk/base/varint.h"
#include "oktopk/comm/skips.h"
#include "oktopk/optim/adam_rule.h"
#include "oktopk/optim/interval_clock.h"
#include "oktopk/optim/power_table.h"
#include "oktopk/optim/rule_tables.h"
#include "oktopk/optim/sgd_rule.h"
#include "oktopk/optim/tensor_step.h"
#include "oktopk/select/selector.h"
#include "oktopk/sparse/sum.h"
#include "oktopk/tune/cost.h"
