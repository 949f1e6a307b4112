/* SPDX-License-Identifier: Apache-2.0 */
/* The C interface of liboktopk_cuda.so: all that the library asks of an NVIDIA GPU. The library loads the shared object
 * at run time (gpu/cuda.cc), so that one build of oktopk also starts on machines without a GPU or a driver. The
 * shared object holds the CUDA runtime itself and links nothing else.
 *
 * A context is one GPU, one stream and the scratch memory of the kernels; one thread at a time may use it. Every
 * function returns 0, or an error number whose text error_text() gives. Results that are numbers of the host are there
 * when the function returns. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define OKTOPK_CUDA_API_VERSION 3

typedef struct OktopkCudaContext OktopkCudaContext;
typedef struct OktopkCudaSlots OktopkCudaSlots; /* one rank's part in preset slots */

/* Device::Accumulation: acc = (acc with the entries at `cleared` zeroed) + scale * gradient. */
typedef struct OktopkCudaPass {
  float* acc; /* GPU memory */
  uint64_t n;
  const void* gradient;   /* GPU memory; null: nothing is added */
  uint32_t gradient_type; /* 0: fp32, 1: bf16, 2: fp16 */
  float scale;
  const uint32_t* cleared; /* host memory, increasing */
  uint64_t cleared_count;
} OktopkCudaPass;

enum OktopkCudaLimit {
  oktopk_cuda_read, /* of acc */
  oktopk_cuda_copy, /* acc = gradient, both fp32 */
  oktopk_cuda_set,  /* acc = 0 */
  oktopk_cuda_axpy  /* acc += scale * gradient */
};

/* Entries in pinned host memory of the context, valid until its next call. */
typedef struct OktopkCudaEntries {
  uint64_t reached; /* entries that reached the threshold */
  uint64_t count;   /* entries that are here: the `most` largest of these */
  const uint32_t* idx;
  const float* val;
} OktopkCudaEntries;

typedef struct OktopkCudaDescription {
  char name[256];
  int compute_major;
  int compute_minor;
  uint64_t memory_bytes;
  uint64_t free_bytes;
} OktopkCudaDescription;

/* What a rank of preset slots keeps between steps, besides its accumulator and its memory. */
typedef struct OktopkCudaSlotsState {
  uint64_t step;
  uint64_t local_k; /* the k that the thresholds are for; 0: none yet */
  uint64_t global_k;
  uint32_t local_bound;
  uint32_t global_bound;
  uint32_t void_steps; /* steps that a value that is not finite made void */
  uint32_t fault;      /* 0: none; 1: a message of another step; 2: wrong counts; 3: damaged; 4: a sum overflowed */
  uint32_t sent;       /* entries of the last step */
  uint32_t applied;
} OktopkCudaSlotsState;

/* Where the mean of a tensor arrived. */
#define OKTOPK_CUDA_DENSE 0   /* everywhere, now and in all steps before: no clock is needed */
#define OKTOPK_CUDA_ALL 1     /* everywhere, now */
#define OKTOPK_CUDA_LISTED 2  /* at `indices` */
#define OKTOPK_CUDA_NONZERO 3 /* where the mean is not zero */

/* A tensor of an optimiser's step: TensorState of optim/tensor_step.h with all pointers into GPU memory. Fields are
 * words of 64 bits, so that a caller can fill a table of numbers. Pointers that a step does not need are null. */
typedef struct OktopkCudaTensor {
  uint64_t size;
  void* weights;
  const void* mean; /* of the weights' type */
  void* first;      /* fp32; fp64 where the weights are */
  void* second;
  uint32_t* last;
  uint32_t* arrivals;
  const int64_t* indices; /* increasing; those that are not less than size are a fault, and nothing is done there */
  uint64_t count;         /* of them */
  float* steps;           /* made by this tensor; a step adds one */
  uint64_t caught_up;
  uint64_t type;  /* 0: fp32, 1: bf16, 2: fp16, 3: fp64 */
  uint64_t where; /* OKTOPK_CUDA_DENSE, ... */
} OktopkCudaTensor;

/* The clock of a group, in GPU memory: a step that is skipped on the GPU must not count, and the host cannot know. */
typedef struct OktopkCudaClock {
  uint32_t now;  /* steps made */
  uint32_t skip; /* not zero: this step does nothing */
  uint32_t
      fault; /* 0: none; 1: a learning rate that is unfit; 2: no room for the step; 3: an index that is too large */
  uint32_t unused;
  double rate; /* of this step, as the others */
  double kept;
  double scale; /* the mean is to be divided by it */
} OktopkCudaClock;

/* One step of all tensors of a group. All pointers but the stream are GPU memory. */
typedef struct OktopkCudaOptim {
  void* stream; /* a cudaStream_t, which a CUDA graph may capture; null: the legacy default stream */
  uint32_t is_sgd;
  uint32_t nesterov;
  const OktopkCudaTensor* tensors;
  uint64_t tensor_count;
  const uint64_t* blocks;   /* tensor << 32 | block, for each 16384 coordinates or 4096 indices; by weight type */
  uint64_t block_counts[4]; /* by weight type */
  OktopkCudaClock* clock;
  double* totals; /* two for each step: StepTotals of optim/interval_clock.h. Null: the group has no silent tensors */
  double* log;    /* two for each step: its rate and its decoupled weight decay */
  uint64_t room;  /* steps that fit into both */
  double rate;
  const float* rate_on_gpu; /* null: `rate` */
  double decoupled_decay;
  const float* found_inf;  /* null, or not zero: the step is skipped */
  const float* grad_scale; /* null, or the mean is divided by it */
  double first_beta;       /* Adam's beta1, SGD's momentum */
  double second_beta;
  double epsilon;
  double coupled_decay;
  const double* first_powers; /* PowerView of optim/interval_clock.h */
  uint64_t first_size;
  const double* second_powers;
  uint64_t second_size;
} OktopkCudaOptim;

typedef struct OktopkCudaApi {
  uint32_t version; /* OKTOPK_CUDA_API_VERSION of the shared object */

  /* How many GPUs there are; an error without a driver. Text of errors of this function and of open(): `text`. */
  int (*device_count)(int* count, char* text, size_t room);
  /* A context on GPU `ordinal`. `stream` is a cudaStream_t; null: the legacy default stream. */
  int (*open)(int ordinal, void* stream, OktopkCudaContext** out, char* text, size_t room);
  void (*close)(OktopkCudaContext* context);
  const char* (*error_text)(const OktopkCudaContext* context);
  int (*describe)(OktopkCudaContext* context, OktopkCudaDescription* out);
  int (*set_stream)(OktopkCudaContext* context, void* stream); /* its work follows what was queued before */

  /* Milliseconds that the kernels of the last pass took on the GPU; measured only after set_timing(1). */
  int (*set_timing)(OktopkCudaContext* context, int on);
  int (*kernel_milliseconds)(OktopkCudaContext* context, float* out);

  /* Passes that only memory limits, to compare kernels with: one of OktopkCudaLimit. */
  int (*limit_pass)(OktopkCudaContext* context, uint32_t limit, const OktopkCudaPass* pass);

  int (*allocate)(OktopkCudaContext* context, uint64_t bytes, void** out); /* all zero */
  int (*release)(OktopkCudaContext* context, void* memory);
  /* The GPU on which `memory` lies; -1: host memory. */
  int (*locate)(OktopkCudaContext* context, const void* memory, int* ordinal);
  int (*copy)(OktopkCudaContext* context, void* to, const void* from, uint64_t bytes); /* in any direction */
  int (*zero)(OktopkCudaContext* context, void* memory, uint64_t bytes);
  /* A copy of host memory on the GPU, valid until the next call of stage(). */
  int (*stage)(OktopkCudaContext* context, const void* host, uint64_t bytes, const void** out);

  /* The verbs of Device; `bound` is the bits of the least magnitude, at least 1. */
  int (*accumulate)(OktopkCudaContext* context, const OktopkCudaPass* pass);
  int (*accumulate_select)(OktopkCudaContext* context, const OktopkCudaPass* pass, uint32_t bound, uint64_t most,
                           OktopkCudaEntries* out);
  int (*multiply)(OktopkCudaContext* context, float* x, uint64_t n, float factor);
  int (*first_nonfinite)(OktopkCudaContext* context, const void* x, uint32_t type, uint64_t n, uint64_t* out);
  int (*magnitude_histogram)(OktopkCudaContext* context, const float* x, uint64_t n, uint64_t* bins /* 8192, added */);
  int (*sample_magnitudes)(OktopkCudaContext* context, const OktopkCudaPass* pass, uint64_t offset, uint64_t stride,
                           uint64_t clusters, uint32_t* out /* 4 for each; beyond n: 0xffffffff */);
  /* Sums and sums of squares: 16 lanes for each block of 65536 elements, in the order of the CPU device. */
  int (*moments)(OktopkCudaContext* context, const float* x, uint64_t n, double* sums, double* squares);
  int (*add_at)(OktopkCudaContext* context, float* x, uint32_t base, const uint32_t* idx, const float* val,
                uint64_t count);
  int (*clear_at)(OktopkCudaContext* context, float* x, uint32_t base, const uint32_t* idx, uint64_t count);
  /* Adds val (null: nothing) at idx; sums of a magnitude of at least `take` are set to zero. `sums` and
   * `before` (host memory; before may be null) get every sum, and every value of before. */
  int (*add_take)(OktopkCudaContext* context, float* x, uint32_t base, const uint32_t* idx, const float* val,
                  uint64_t count, uint32_t take, float* sums, float* before);

  /* Preset slots (sparse/slots_format.h). One step: send, all P messages to their owners, own, all shares to everybody,
   * apply. Nothing here waits for the GPU, except open, state and set_state. Messages and shares are GPU memory: P
   * messages one behind the other; one share; P shares. */
  int (*slots_open)(OktopkCudaContext* context, uint64_t n, uint32_t P, uint32_t tag, OktopkCudaSlots** out);
  void (*slots_close)(OktopkCudaContext* context, OktopkCudaSlots* slots);
  /* pass->cleared is not used: what leaves, leaves at once. */
  int (*slots_send)(OktopkCudaContext* context, OktopkCudaSlots* slots, const OktopkCudaPass* pass, uint64_t k,
                    uint32_t* messages);
  /* memory: the owner's, GPU memory, a float for each of its places. */
  int (*slots_own)(OktopkCudaContext* context, OktopkCudaSlots* slots, float* memory, const uint32_t* arrived,
                   uint64_t k, uint32_t* share);
  /* out[i] = the sum / divisor, zeros included; NaN everywhere after a void step, which gives `sent` back to acc. */
  int (*slots_apply)(OktopkCudaContext* context, OktopkCudaSlots* slots, const uint32_t* shares, const uint32_t* sent,
                     float* acc, uint64_t k, float divisor, void* out, uint32_t type);
  int (*slots_state)(OktopkCudaContext* context, OktopkCudaSlots* slots, OktopkCudaSlotsState* out);
  int (*slots_set_state)(OktopkCudaContext* context, OktopkCudaSlots* slots, const OktopkCudaSlotsState* state);

  /* For work that others queue (NCCL), on any stream of this GPU. None of these waits. */
  /* act(argument) with this GPU as the thread's current one. `act` throws nothing. */
  int (*call_on_gpu)(OktopkCudaContext* context, void (*act)(void*), void* argument);
  /* Whether all work that was queued on the stream is done. */
  int (*stream_done)(OktopkCudaContext* context, void* stream, int* done);
  /* The context's mark stands behind what is queued on the stream now; not moved while a graph captures the stream. */
  int (*set_mark)(OktopkCudaContext* context, void* stream);
  /* Whether the GPU has passed the mark; so it has before the first set_mark(). */
  int (*mark_done)(OktopkCudaContext* context, int* done);
  /* A step of an optimiser over all tensors of a group, on a stream of its own. Does not wait for the GPU. */
  int (*optim_step)(OktopkCudaContext* context, const OktopkCudaOptim* step);
} OktopkCudaApi;

/* The only symbol of the shared object. */
__attribute__((visibility("default"))) const OktopkCudaApi* oktopk_cuda_api(void);

#ifdef __cplusplus
}
#endif
