// SPDX-License-Identifier: Apache-2.0
// Memory of a context, which only grows, and its questions to streams: whether a stream or a mark is done. A mark is an
// event: it tells when the GPU has passed a place in a stream, however much is queued behind it.
#include "oktopk/gpu/kernels/context.cuh"

namespace oktopk::cuda {
namespace {

bool is_ready(cudaError_t status, const char* what) {
  if (status == cudaErrorNotReady) {
    cudaGetLastError();  // it is no error, and must not show up in the next call
    return false;
  }
  check(status, what);
  return true;
}

}  // namespace

void Scratch::free() {
  if (memory_ != nullptr) is_pinned_ ? cudaFreeHost(memory_) : cudaFree(memory_);
  memory_ = nullptr;
  bytes_ = 0;
}

void Scratch::grow(std::size_t bytes) {
  free();
  const std::size_t generous = bytes + bytes / 8;
  if (is_pinned_)
    OKTOPK_CUDA(cudaMallocHost(&memory_, generous));
  else
    OKTOPK_CUDA(cudaMalloc(&memory_, generous));
  bytes_ = generous;
}

bool stream_done(void* stream) {
  return is_ready(cudaStreamQuery(static_cast<cudaStream_t>(stream)), "cudaStreamQuery");
}

void set_mark(OktopkCudaContext& context, void* stream) {
  const auto queue = static_cast<cudaStream_t>(stream);
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  OKTOPK_CUDA(cudaStreamIsCapturing(queue, &capture));
  if (capture == cudaStreamCaptureStatusNone) OKTOPK_CUDA(cudaEventRecord(context.mark.get(), queue));
}

bool mark_done(OktopkCudaContext& context) { return is_ready(cudaEventQuery(context.mark.get()), "cudaEventQuery"); }

}  // namespace oktopk::cuda
