// SPDX-License-Identifier: Apache-2.0
// Start here: every installed header, with one line each. All other headers are private: cmake/install.cmake installs
// this list, and scripts/check_layers.py checks that its headers include each other only. One more header is installed
// where MPI is: oktopk/comm/mpi_comm.h takes an MPI_Comm and includes <mpi.h>, so a program includes it itself.
#pragma once

#if (defined(_MSVC_LANG) ? _MSVC_LANG : __cplusplus) < 202002L
#error "oktopk needs C++20: compile with -std=c++20 or later (CMake: target_compile_features(... cxx_std_20))"
#endif

// Errors, memory, values
#include "oktopk/base/bytes.h"     // Bytes: memory that growing does not initialise
#include "oktopk/base/error.h"     // UsageError, CommError, DeviceError
#include "oktopk/base/gradient.h"  // Gradient: a view of floats, bfloat16 or half
#include "oktopk/codec/codec.h"    // Codec: how entries are coded on the wire
#include "oktopk/device/device.h"  // Device: all passes over n values
#include "oktopk/sparse/coo.h"     // CooView, SparseVector: indices and values
#include "oktopk/trace/trace.h"    // Trace: what every rank did when, for a viewer

// Ranks
#include "oktopk/comm/collectives.h"    // broadcast, barrier, allgather and others
#include "oktopk/comm/communicator.h"   // Communicator: P ranks that exchange bytes
#include "oktopk/comm/elastic_world.h"  // ElasticWorld: ranks that fail and join, over TCP
#include "oktopk/comm/flight.h"         // FlightRecorder: the last operations of a rank, for dumps
#include "oktopk/comm/gpu_exchange.h"   // GpuExchange: P ranks that exchange the memory of their GPUs, over NCCL
#include "oktopk/comm/transports.h"     // ranks as threads of this process, over MPI or over TCP

// The algorithms
#include "oktopk/allreduce/presets.h"  // presets by name, their options, sparse_allreduce: one sum without state
#include "oktopk/tune/profile.h"       // Profile, calibrate, ChoiceOptions: how preset auto chooses

// Synchronising gradients
#include "oktopk/elastic/elastic_reducer.h"  // ElasticReducer: ranks that fail and join, and its reports
#include "oktopk/reduce/bucketed_reducer.h"  // BucketedReducer: many tensors, during the backward pass
#include "oktopk/reduce/gpu_steps.h"         // GpuSteps: steps that stay on the GPU
#include "oktopk/reduce/node_reducer.h"      // NodeReducer: the ranks of a host sum first
#include "oktopk/reduce/reducer.h"           // Reducer: one flat gradient, and all options
#include "oktopk/reduce/synchroniser.h"      // Synchroniser, Update, StepMetrics: what all of them share

// Changing the weights
#include "oktopk/optim/optimiser.h"  // SparseSGD, SparseAdamW, clip_factor
