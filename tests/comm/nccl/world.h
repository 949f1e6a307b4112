// SPDX-License-Identifier: Apache-2.0
// A world of threads with the fake NCCL and no GPU: host memory counts as that of GPU 0.
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "oktopk/base/error.h"
#include "oktopk/comm/nccl/calls.h"
#include "tests/comm/nccl/fake_nccl.h"
#include "tests/support/message.h"
#include "tests/support/world.h"

namespace oktopk {

// The fake that was built as FAKE_NCCL_PATH, or a copy of it.
inline FakeNccl& load_fake_nccl(const std::string& path) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) fail<DeviceError>(dlerror());
  return *reinterpret_cast<FakeNccl* (*)()>(dlsym(library, "fake_nccl"))();
}

// Answers after the fake's counters.
class FakeGpu final : public GpuCalls {
 public:
  explicit FakeGpu(FakeNccl& nccl) : nccl_(nccl) {}

  // Nobody has used it before.
  static void* make_stream() {
    static std::atomic<std::uintptr_t> count{1024};
    return reinterpret_cast<void*>(count += 16);
  }

  // Memory at these addresses is not GPU 0's.
  static inline std::atomic<const void*> on_host{nullptr};
  static inline std::atomic<const void*> on_gpu_3{nullptr};
  static inline std::atomic<bool> is_broken{false};

  int locate(const void* memory) override {
    if (memory == on_gpu_3) return 3;
    return memory == on_host ? -1 : 0;
  }
  void on_gpu(const std::function<void()>& act) override { act(); }
  bool is_done(void* stream) override {
    if (is_broken) throw DeviceError("an illegal memory access was encountered");
    return nccl_.done(stream) == nccl_.queued(stream);
  }
  void set_mark(void* stream) override {
    marked_ = stream;
    mark_ = nccl_.queued(stream);
  }
  bool passed_mark() override { return marked_ == nullptr || nccl_.done(marked_) >= mark_; }

 private:
  FakeNccl& nccl_;
  void* marked_ = nullptr;
  std::uint64_t mark_ = 0;
};

// Far longer than a test may take, and short enough to wait for.
inline constexpr Communicator::Duration kLong = std::chrono::seconds(30);
inline constexpr Communicator::Duration kShort = std::chrono::milliseconds(200);

inline NcclOptions options_with(Communicator::Duration timeout, const std::string& library = FAKE_NCCL_PATH) {
  return {.library = library, .timeout = timeout};
}

// A test with the fake in order. Suites derive from it.
class NcclWorld : public testing::Test {
 protected:
  void SetUp() override {
    nccl_.version = 22703;
    nccl_.failing_rank = -1;
    nccl_.absent_rank = -1;
    nccl_.ops_hang = false;
    nccl_.has_error = false;
    nccl_.refuses = false;
    nccl_.open_groups = 0;
    nccl_.abort_hangs = false;
    nccl_.finalised = 0;
    nccl_.destroyed = 0;
    nccl_.aborted = 0;
    nccl_.misused = 0;
    FakeGpu::on_host = nullptr;
    FakeGpu::on_gpu_3 = nullptr;
    FakeGpu::is_broken = false;
  }

  std::unique_ptr<GpuExchange> make(Communicator& comm, const NcclOptions& options) {
    return make_nccl_exchange(comm, options, [&] { return std::make_unique<FakeGpu>(nccl_); });
  }

  // body(comm, exchange, a stream of its own) on each of P ranks.
  template <class Body>
  void with_exchange(int P, Communicator::Duration timeout, Body body) {
    run_threads(P, [&](Communicator& comm) {
      const auto exchange = make(comm, options_with(timeout));
      body(comm, *exchange, FakeGpu::make_stream());
    });
  }

  // The messages that P ranks get when they make an exchange.
  template <class Error, class OptionsOf>
  std::vector<std::string> refusals(int P, OptionsOf options_of) {
    return gather_world("threads", P, [&](Communicator& comm) {
      return message_of<Error>([&] { make(comm, options_of(comm.rank())); });
    });
  }

  FakeNccl& nccl_ = load_fake_nccl(FAKE_NCCL_PATH);
};

}  // namespace oktopk
