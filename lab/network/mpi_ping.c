// SPDX-License-Identifier: Apache-2.0
// The measurement of `oktopk tune --links` with plain MPI calls, for transports.py:
//   mpi_ping BUDGET BYTES...
// Rank 0 prints one line per size: the bytes, the seconds of a message one way, and of two that cross.
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kBatches = 9 };

static int rank;
static char *out, *in;

static void once(int bytes, int both_ways) {
  const int peer = 1 - rank;
  if (both_ways) {
    MPI_Sendrecv(out, bytes, MPI_BYTE, peer, 0, in, bytes, MPI_BYTE, peer, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  } else if (rank == 0) {
    MPI_Send(out, bytes, MPI_BYTE, peer, 0, MPI_COMM_WORLD);
    MPI_Recv(in, bytes, MPI_BYTE, peer, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  } else {
    MPI_Recv(in, bytes, MPI_BYTE, peer, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Send(out, bytes, MPI_BYTE, peer, 0, MPI_COMM_WORLD);
  }
}

static double mean_of(int count, int bytes, int both_ways) {
  const double begin = MPI_Wtime();
  for (int i = 0; i < count; ++i) once(bytes, both_ways);
  return (MPI_Wtime() - begin) / count / (both_ways ? 1 : 2);
}

static int compare(const void* a, const void* b) {
  const double x = *(const double*)a, y = *(const double*)b;
  return (x > y) - (x < y);
}

static double measure(int bytes, int both_ways, double budget) {
  MPI_Barrier(MPI_COMM_WORLD);
  once(bytes, both_ways);
  const double fits = budget / mean_of(1, bytes, both_ways) / (both_ways ? 1 : 2);
  int count = fits < 1 ? 1 : fits > 1e6 ? 1000000 : (int)fits;
  MPI_Bcast(&count, 1, MPI_INT, 0, MPI_COMM_WORLD);
  const int batches = count < kBatches ? count : kBatches, per_batch = count < kBatches ? 1 : count / kBatches;
  double means[kBatches];
  for (int i = 0; i < batches; ++i) means[i] = mean_of(per_batch, bytes, both_ways);
  qsort(means, (size_t)batches, sizeof *means, compare);
  return (means[(batches - 1) / 2] + means[batches / 2]) / 2;
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  const double budget = atof(argv[1]);
  for (int i = 2; i < argc; ++i) {
    const int bytes = atoi(argv[i]);
    out = calloc(1, (size_t)bytes);
    in = calloc(1, (size_t)bytes);
    const double one = measure(bytes, 0, budget), both = measure(bytes, 1, budget);
    if (rank == 0) printf("%d %.9f %.9f\n", bytes, one, both);
    free(out);
    free(in);
  }
  MPI_Finalize();
  return 0;
}
