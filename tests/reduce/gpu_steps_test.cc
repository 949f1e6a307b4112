// SPDX-License-Identifier: Apache-2.0
// Steps that stay on the GPU against steps of the same Reducer on the host: updates, residuals, owner memory and saved
// states, bit by bit, with all ranks in this process and messages moved through it.
#include "oktopk/reduce/gpu_steps.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "oktopk/base/random.h"
#include "oktopk/reduce/reducer_options.h"
#include "oktopk/reduce/reducer_state.h"
#include "tests/support/message.h"
#include "tests/support/runs.h"

namespace oktopk::gpu_steps_test {
namespace {

// Moves GPU memory by way of the host, over a communicator.
class HostExchange final : public GpuExchange {
 public:
  HostExchange(Communicator& comm, const Device& device) : comm_(comm), device_(device) {}
  int rank() const override { return comm_.rank(); }
  int size() const override { return comm_.size(); }
  void all_to_all(const void* send, void* receive, std::size_t bytes_each, void*) override {
    const auto mine = read(send, bytes_each * static_cast<std::size_t>(size()));
    std::vector<float> all(mine.size());
    alltoall(comm_, std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all)), work_);
    write(receive, all);
  }
  void all_gather(const void* mine, void* all, std::size_t bytes, void*) override {
    const auto one = read(mine, bytes);
    std::vector<float> every(one.size() * static_cast<std::size_t>(size()));
    allgather(comm_, std::as_bytes(std::span(one)), std::as_writable_bytes(std::span(every)), work_);
    write(all, every);
  }
  void all_reduce(float*, std::size_t, void*) override { fail<UsageError>("not used"); }
  void check() override {}
  void wait(void*) override {}
  void kill() noexcept override { comm_.kill(); }

 private:
  std::vector<float> read(const void* from, std::size_t bytes) const {
    std::vector<float> host(bytes / sizeof(float));
    device_.read(std::span(static_cast<const float*>(from), host.size()), host.data());
    return host;
  }
  void write(void* to, const std::vector<float>& host) const {
    device_.write({static_cast<float*>(to), host.size()}, host);
  }

  Communicator& comm_;
  const Device& device_;
  Workspace work_;
};

std::vector<float> gradient_of(Index n, int rank, int step) {
  Random random(static_cast<std::uint64_t>(step) + 100, static_cast<std::uint64_t>(rank));
  std::vector<float> x(n);
  for (float& v : x) v = static_cast<float>(random.normal()) * (step > 8 ? 0.05F : 1.0F);
  return x;
}

ReducerOptions slots_options(std::size_t k, std::shared_ptr<const Device> device = nullptr) {
  ReducerOptions options = preset_options("slots", k);
  options.device = std::move(device);
  return options;
}

// A Reducer whose steps stay on the GPU, and memory for its gradient and result.
struct OnGpu {
  OnGpu(Communicator& comm, Index n, const ReducerOptions& options)
      : device(*options.device),
        reducer(comm, n, options),
        steps(reducer),
        exchange(comm, device),
        gradient(device.allocate(n)),
        out(device.allocate(n)) {}

  std::vector<float> step(const std::vector<float>& values, float scale = 1) {
    device.write({gradient.get(), values.size()}, values);
    steps.step(Gradient(gradient.get(), values.size(), FloatType::fp32), scale, out.get(), FloatType::fp32, exchange,
               nullptr);
    std::vector<float> mean(values.size());
    device.read(std::span<const float>(out.get(), mean.size()), mean.data());
    return mean;
  }

  const Device& device;
  Reducer reducer;
  GpuSteps steps;
  HostExchange exchange;
  DeviceFloats gradient, out;
};

std::vector<float> dense(const Update& update, Index n) {
  std::vector<float> x(n, 0.0F);
  update.for_each([&](Index i, float mean) { x[i] = mean; });
  return x;
}

class GpuStepsOnAGpu : public testing::Test {
 protected:
  void SetUp() override {
    try {
      make_cuda_device();
    } catch (const DeviceError& error) {
      GTEST_SKIP() << error.what();
    }
  }
};

TEST_F(GpuStepsOnAGpu, steps_have_the_bits_of_the_host) {
  struct Case {
    Index n;
    int P;
    std::size_t k;
    int steps;
  };
  for (const Case& c : {Case{1, 1, 1, 3},
                        {1, 3, 1, 3},
                        {5000, 3, 50, 20},
                        {100001, 1, 1000, 20},
                        {300007, 4, 3000, 20},
                        {70000, 2, 35000, 6},
                        {200000, 35, 4000, 6}})
    run_world("threads", c.P, [&](Communicator& comm) {
      const auto part = comm.split(0, comm.rank());
      Reducer host(*part, c.n, slots_options(c.k));
      OnGpu gpu(comm, c.n, slots_options(c.k, make_cuda_device()));
      for (int step = 0; step < c.steps; ++step) {
        const auto x = gradient_of(c.n, comm.rank(), step);
        const auto expected = dense(host.step(x, 0.5F), c.n);
        const auto mean = gpu.step(x, 0.5F);
        for (Index i = 0; i < c.n; ++i) ASSERT_EQ(mean[i], expected[i]) << "step " << step << " [" << i << "]";
      }
      EXPECT_EQ(gpu.reducer.save(), host.save()) << "n " << c.n << " P " << c.P;
      EXPECT_EQ(gpu.steps.report().void_steps, 0u);
      EXPECT_EQ(gpu.reducer.steps(), host.steps());
    });
}

TEST_F(GpuStepsOnAGpu, a_state_moves_to_the_host_and_back) {
  constexpr Index n = 30000;
  run_world("threads", 2, [&](Communicator& comm) {
    const auto part = comm.split(0, comm.rank());
    OnGpu one(comm, n, slots_options(300, make_cuda_device()));
    for (int step = 0; step < 5; ++step) one.step(gradient_of(n, comm.rank(), step));
    Reducer host(*part, n, slots_options(300));
    host.load(one.reducer.save());
    for (int step = 5; step < 8; ++step) {
      const auto x = gradient_of(n, comm.rank(), step);
      EXPECT_EQ(one.step(x), dense(host.step(x), n));
    }
    OnGpu other(comm, n, slots_options(300, make_cuda_device()));
    other.reducer.load(host.save());
    for (int step = 8; step < 12; ++step) {
      const auto x = gradient_of(n, comm.rank(), step);
      EXPECT_EQ(other.step(x), dense(host.step(x), n));
    }
    EXPECT_EQ(dense(other.reducer.flush(), n), dense(host.flush(), n));
    EXPECT_EQ(other.reducer.save(), host.save());
  });
}

TEST_F(GpuStepsOnAGpu, steps_on_the_host_may_come_between) {
  constexpr Index n = 30000;
  run_world("threads", 2, [&](Communicator& comm) {
    const auto part = comm.split(0, comm.rank());
    Reducer host(*part, n, slots_options(300));
    OnGpu gpu(comm, n, slots_options(300, make_cuda_device()));
    for (int step = 0; step < 9; ++step) {
      const auto x = gradient_of(n, comm.rank(), step);
      const auto expected = dense(host.step(x), n);
      EXPECT_EQ(step % 3 == 1 ? dense(gpu.reducer.step(x), n) : gpu.step(x), expected) << step;
    }
  });
}

TEST_F(GpuStepsOnAGpu, a_value_that_is_not_finite_gives_NaN_and_the_next_step_works) {
  constexpr Index n = 5000;
  run_world("threads", 3, [&](Communicator& comm) {
    OnGpu gpu(comm, n, slots_options(50, make_cuda_device()));
    gpu.step(gradient_of(n, comm.rank(), 0));
    auto x = gradient_of(n, comm.rank(), 1);
    if (comm.rank() == 1) x[77] = INFINITY;
    EXPECT_TRUE(std::isnan(gpu.step(x)[0]));
    EXPECT_EQ(gpu.steps.report().void_steps, 1u);
    EXPECT_TRUE(std::isfinite(gpu.step(gradient_of(n, comm.rank(), 2))[0]));
  });
}

TEST_F(GpuStepsOnAGpu, wrong_memory_and_wrong_order_are_refused_and_named) {
  run_world("threads", 1, [&](Communicator& comm) {
    OnGpu gpu(comm, 100, slots_options(5, make_cuda_device()));
    const std::vector<float> on_host(100, 1.0F);
    const auto text = message_of<UsageError>(
        [&] { gpu.steps.step(on_host, 1, gpu.out.get(), FloatType::fp32, gpu.exchange, nullptr); });
    EXPECT_NE(text.find("host memory"), std::string::npos) << text;
    EXPECT_THROW(gpu.steps.own(nullptr, nullptr, nullptr), UsageError);
    gpu.step(on_host);
  });
}

TEST_F(GpuStepsOnAGpu, refused_gradient_changes_nothing_where_the_residual_decays) {
  run_world("threads", 1, [&](Communicator& comm) {
    ReducerOptions options = slots_options(5, make_cuda_device());
    options.decay = 0.5F;
    OnGpu gpu(comm, 100, options);
    gpu.step(gradient_of(100, 0, 1));
    const Bytes before = gpu.reducer.save();
    const std::vector<float> on_host(100, 1.0F);
    EXPECT_THROW(gpu.steps.step(on_host, 1, gpu.out.get(), FloatType::fp32, gpu.exchange, nullptr), UsageError);
    EXPECT_EQ(gpu.reducer.save(), before);
  });
}

TEST(GpuSteps, exchange_excludes_an_adaptive_density_and_takes_nothing_with_it_where_it_is_ignored) {
  run_world("threads", 1, [](Communicator& comm) {
    const auto device = make_cpu_device();
    ReducerOptions options{.preset = "slots", .adaptive = {.target_share = 0.5}};
    options.exchange = std::make_shared<HostExchange>(comm, *device);
    EXPECT_EQ(only_used(options).adaptive.target_share, 0);
    expect_error("steps on the GPU do not know the share", [&] { check_used(options); });
    options.preset = "topka";
    EXPECT_EQ(only_used(options).adaptive.target_share, 0.5);
    EXPECT_EQ(only_used(options).exchange, nullptr);
    expect_error("exchange with preset topka, but only slots makes steps on the GPU", [&] { check_used(options); });
  });
}

TEST(GpuSteps, another_preset_and_another_device_are_refused_and_named) {
  run_world("threads", 1, [&](Communicator& comm) {
    Reducer circulant(comm, 100, preset_options("circulant", 5));
    EXPECT_NE(message_of([&] { GpuSteps steps(circulant); }).find("preset circulant"), std::string::npos);
    Reducer on_host(comm, 100, preset_options("slots", 5));
    EXPECT_NE(message_of([&] { GpuSteps steps(on_host); }).find("device is cpu"), std::string::npos);
  });
}

}  // namespace
}  // namespace oktopk::gpu_steps_test
