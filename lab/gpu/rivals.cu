// SPDX-License-Identifier: Apache-2.0
// Selection by CUB, the library of CUDA's toolkit, for comparison with `oktopk-lab kernels --device cuda`: Gaussian
// values, medians of the GPU's clock, cold caches, another input in each repetition.
//     cmake --build build --target gpu_rivals && build/gpu_rivals [n [density [repetitions]]]
// DeviceSelect gives all indices above a known threshold, in order: the question of "threshold scan". DeviceTopK (from
// CCCL 3.1 on; unordered) and DeviceRadixSort give the k largest: the question of "exact top-k".
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_select.cuh>
#include <cub/version.cuh>
#include <functional>
#include <vector>

#if __has_include(<cub/device/device_topk.cuh>)
#include <cuda/__execution/determinism.h>
#include <cuda/__execution/output_ordering.h>
#include <cuda/__execution/require.h>
#include <cub/device/device_topk.cuh>
#define HAVE_TOPK 1
#else
#define HAVE_TOPK 0
#endif

#include <thrust/iterator/counting_iterator.h>

namespace {

constexpr std::size_t kWindows = 8;          // different inputs
constexpr std::size_t kWindowStep = 100004;  // floats
constexpr std::size_t kOthers = std::size_t{1} << 26;

void check(cudaError_t status) {
  if (status == cudaSuccess) return;
  std::fprintf(stderr, "gpu_rivals: %s\n", cudaGetErrorString(status));
  std::exit(1);
}

template <class T>
T* allocate(std::size_t count) {
  T* memory = nullptr;
  check(cudaMalloc(&memory, count * sizeof(T)));
  check(cudaMemset(memory, 0, count * sizeof(T)));
  return memory;
}

__device__ std::uint32_t hash_of(std::uint64_t i) {
  std::uint64_t x = (i + 1) * 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return static_cast<std::uint32_t>((x ^ (x >> 31)) >> 32);
}

__global__ void draw(float* x, std::uint64_t n) {
  const std::uint64_t i = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= n) return;
  const float u = (static_cast<float>(hash_of(2 * i)) + 1) * 0x1p-32F, v = static_cast<float>(hash_of(2 * i + 1));
  x[i] = sqrtf(-2 * logf(fminf(u, 1))) * cosf(6.2831853F * v * 0x1p-32F);
}

__global__ void read(const float4* x, std::size_t count, float* sink) {
  float sum = 0;
  for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
    const float4 v = x[i];
    sum += v.x + v.y + v.z + v.w;
  }
  if (sum != sum) *sink = sum;
}

__global__ void take_magnitudes(const float* x, std::uint32_t n, float* magnitudes, std::uint32_t* indices) {
  const std::uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) magnitudes[i] = fabsf(x[i]), indices[i] = i;
}

struct AtLeast {
  const float* x;
  float threshold;
  __device__ bool operator()(std::uint32_t i) const { return fabsf(x[i]) >= threshold; }
};

class Rivals {
 public:
  Rivals(std::uint32_t n, double density, int repetitions)
      : n_(n), k_(std::max<std::uint32_t>(1, static_cast<std::uint32_t>(n * density))), repetitions_(repetitions) {
    const std::size_t size = n_ + kWindows * kWindowStep;
    pool_ = allocate<float>(size);
    draw<<<static_cast<unsigned>((size + 255) / 256), 256>>>(pool_, size);
    others_ = allocate<float>(kOthers);
    sink_ = allocate<float>(1);
    for (float*& m : magnitudes_) m = allocate<float>(n_);
    for (std::uint32_t*& i : indices_) i = allocate<std::uint32_t>(n_);
    check(cudaEventCreate(&begin_));
    check(cudaEventCreate(&end_));
    std::printf("# CUB %d, %d repetitions, Gaussian values\n", CUB_VERSION, repetitions_);
    std::printf("# %-29s %10s %8s %9s %9s\n", "kernel", "n", "k", "time(ms)", "x read");
  }

  void run() {
    sort(pool_);
    float threshold = 0;
    check(cudaMemcpy(&threshold, magnitudes_[1] + k_ - 1, sizeof(float), cudaMemcpyDeviceToHost));
    row("read", [&](const float* x) { read<<<2048, 256>>>(reinterpret_cast<const float4*>(x), n_ / 4, sink_); });
    row("cub::DeviceSelect::If", [&](const float* x) {
      call([&](void* memory, std::size_t& bytes) {
        return cub::DeviceSelect::If(memory, bytes, thrust::counting_iterator<std::uint32_t>(0), indices_[1],
                                     indices_[0], static_cast<int>(n_), AtLeast{x, threshold});
      });
    });
    row("cub::DeviceRadixSort", [&](const float* x) { sort(x); });
#if HAVE_TOPK
    row("cub::DeviceTopK", [&](const float* x) {
      take(x);
      call([&](void* memory, std::size_t& bytes) {
        const auto demands = cuda::execution::require(cuda::execution::determinism::not_guaranteed,
                                                      cuda::execution::output_ordering::unsorted);
        return cub::DeviceTopK::MaxPairs(memory, bytes, magnitudes_[0], magnitudes_[1], indices_[0], indices_[1], n_,
                                         k_, demands);
      });
    });
#else
    std::printf("# NOT RUN: cub::DeviceTopK: this CUB does not have it (CCCL 3.1 does)\n");
#endif
  }

 private:
  void take(const float* x) { take_magnitudes<<<(n_ + 255) / 256, 256>>>(x, n_, magnitudes_[0], indices_[0]); }

  // Magnitudes in descending order, with their indices.
  void sort(const float* x) {
    take(x);
    call([&](void* memory, std::size_t& bytes) {
      return cub::DeviceRadixSort::SortPairsDescending(memory, bytes, magnitudes_[0], magnitudes_[1], indices_[0],
                                                       indices_[1], static_cast<int>(n_));
    });
  }

  // CUB's two calls: for the size of its memory, and for the work.
  template <class Call>
  void call(const Call& cub_call) {
    std::size_t bytes = 0;
    check(cub_call(nullptr, bytes));
    if (bytes > bytes_) {
      check(cudaFree(memory_));
      check(cudaMalloc(&memory_, bytes_ = bytes));
    }
    check(cub_call(memory_, bytes));
  }

  void row(const char* name, const std::function<void(const float*)>& body) {
    std::vector<float> times;
    for (int i = -3; i < repetitions_; ++i) {
      read<<<2048, 256>>>(reinterpret_cast<const float4*>(others_), kOthers / 4, sink_);
      check(cudaEventRecord(begin_));
      body(pool_ + static_cast<std::size_t>(i + 3) % kWindows * kWindowStep);
      check(cudaEventRecord(end_));
      check(cudaGetLastError());
      check(cudaEventSynchronize(end_));
      float time = 0;
      check(cudaEventElapsedTime(&time, begin_, end_));
      if (i >= 0) times.push_back(time);
    }
    std::nth_element(times.begin(), times.begin() + repetitions_ / 2, times.end());
    const float median = times[static_cast<std::size_t>(repetitions_ / 2)];
    if (read_ == 0) read_ = median;
    std::printf("  %-29s %10u %8u %9.4f %9.3f\n", name, n_, k_, median, median / read_);
  }

  std::uint32_t n_, k_;
  int repetitions_;
  float *pool_, *others_, *sink_, *magnitudes_[2];
  std::uint32_t* indices_[2];
  void* memory_ = nullptr;
  std::size_t bytes_ = 0;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
  float read_ = 0;  // milliseconds
};

}  // namespace

int main(int argc, char** argv) {
  const double n = argc > 1 ? std::atof(argv[1]) : 1 << 24, density = argc > 2 ? std::atof(argv[2]) : 0.01;
  const int repetitions = argc > 3 ? std::atoi(argv[3]) : 21;
  if (n < 4 || n > 2e9 || density <= 0 || density > 1 || repetitions < 1) {
    std::fprintf(stderr, "gpu_rivals: n in 4..2e9, density in (0, 1], at least one repetition, please\n");
    return 2;
  }
  Rivals(static_cast<std::uint32_t>(n), density, repetitions).run();
}
