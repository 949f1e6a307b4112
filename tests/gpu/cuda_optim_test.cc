// SPDX-License-Identifier: Apache-2.0
// Steps of optimisers on a GPU (gpu/kernels/optim.cu) against those on the host (optim/tensor_step.h), bit by bit: all
// types of weights, all ways in which a mean arrives, blocks that are not whole, addresses that are not aligned; steps
// that are left out, and faults. Skipped where there is no GPU.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "oktopk/base/error.h"
#include "oktopk/base/random.h"
#include "oktopk/gpu/kernels/cuda_api.h"
#include "oktopk/optim/cuda_step.h"
#include "oktopk/optim/tensor_kernels.h"
#include "oktopk/optim/tensor_step.h"
#include "tests/device/on_device.h"

namespace oktopk::cuda_optim_test {
namespace {

constexpr std::uint64_t kBlock = 16384;     // coordinates, of gpu/kernels/optim.cu
constexpr std::uint64_t kListBlock = 4096;  // indices

constexpr std::size_t kRoom = 512;  // steps of a clock

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

// A tensor on the host and on the GPU.
template <class W>
struct Twin {
  using Real = RealOf<W>;
  static constexpr WeightType kType = std::is_same_v<W, float>  ? WeightType::fp32
                                      : std::is_same_v<W, Bf16> ? WeightType::bf16
                                      : std::is_same_v<W, Fp16> ? WeightType::fp16
                                                                : WeightType::fp64;

  Twin(const Device& device, std::size_t n, std::size_t offset)
      : w(n),
        g(n),
        m(n),
        v(n),
        last(n),
        arrivals(n),
        gpu_w(device, start(w), offset),
        gpu_g(device, g, offset),
        gpu_m(device, m, offset),
        gpu_v(device, v, offset),
        gpu_last(device, last),
        gpu_arrivals(device, arrivals),
        gpu_indices(device, std::vector<std::int64_t>(n)),
        gpu_steps(device, {0.0F}) {}

  static const std::vector<W>& start(std::vector<W>& w) {
    Random random(3);
    for (W& x : w) narrow(static_cast<Real>(random.uniform() - 0.5), x);
    return w;
  }

  // A mean that is zero but for a tenth, or nowhere.
  void draw(int step, bool everywhere, double factor) {
    Random random(static_cast<std::uint64_t>(step) * 1000 + w.size());
    indices.clear();
    for (std::size_t i = 0; i < g.size(); ++i) {
      const double drawn = random.uniform();
      const bool arrives = everywhere || random.uniform() < 0.1;
      narrow(arrives ? static_cast<Real>(drawn - 0.5) : Real(0), g[i]);
      if (arrives && widen(g[i]) != 0) indices.push_back(static_cast<std::int64_t>(i));
    }
    std::vector<W> scaled = g;
    for (W& x : scaled) narrow(widen(x) * static_cast<Real>(factor), x);
    gpu_g.write(scaled);
    std::vector<std::int64_t> padded = indices;
    padded.resize(w.size());
    gpu_indices.write(padded);
  }

  TensorState host(std::uint64_t where, std::uint32_t steps, bool has_first) {
    const bool is_list = where == OKTOPK_CUDA_LISTED || where == OKTOPK_CUDA_NONZERO;
    return {.type = kType,
            .size = w.size(),
            .weights = w.data(),
            .mean = g.data(),
            .first = has_first ? m.data() : nullptr,
            .second = v.data(),
            .last = where == OKTOPK_CUDA_DENSE ? nullptr : last.data(),
            .arrivals = arrivals.data(),
            .indices = is_list ? indices.data() : nullptr,
            .count = is_list ? indices.size() : 0,
            .steps = steps};
  }

  OktopkCudaTensor gpu(std::uint64_t where, bool has_first, bool is_sgd) {
    return {.size = w.size(),
            .weights = gpu_w.data(),
            .mean = gpu_g.data(),
            .first = has_first ? gpu_m.data() : nullptr,
            .second = is_sgd ? nullptr : gpu_v.data(),
            .last = gpu_last.data(),
            .arrivals = is_sgd ? nullptr : gpu_arrivals.data(),
            .indices = gpu_indices.data(),
            .count = indices.size(),
            .steps = gpu_steps.data(),
            .caught_up = 0,
            .type = static_cast<std::uint64_t>(kType),
            .where = where};
  }

  void expect_same(const std::string& what, bool is_sgd) {
    EXPECT_TRUE(same_bits(w, gpu_w.read())) << what;
    EXPECT_TRUE(same_bits(m, gpu_m.read())) << what;
    EXPECT_TRUE(same_bits(last, gpu_last.read())) << what;
    if (is_sgd) return;
    EXPECT_TRUE(same_bits(v, gpu_v.read())) << what;
    EXPECT_TRUE(same_bits(arrivals, gpu_arrivals.read())) << what;
  }

  std::vector<W> w, g;
  std::vector<Real> m, v;
  std::vector<std::uint32_t> last, arrivals;
  std::vector<std::int64_t> indices;
  OnDevice<W> gpu_w, gpu_g;
  OnDevice<Real> gpu_m, gpu_v;
  OnDevice<std::uint32_t> gpu_last, gpu_arrivals;
  OnDevice<std::int64_t> gpu_indices;
  OnDevice<float> gpu_steps;
};

struct Rule {
  bool is_sgd = false;
  double momentum = 0.9;  // or beta1
};

// The clocks of both, and the tables.
class Clocks {
 public:
  explicit Clocks(const Device& device)
      : head(device, {OktopkCudaClock{}}),
        totals(device, start()),
        log(device, std::vector<double>(2 * kRoom)),
        first(device, std::vector<double>(kRoom)),
        second(device, std::vector<double>(kRoom)) {}

  static std::vector<double> start() {
    std::vector<double> totals(2 * kRoom);
    totals[1] = StepTotals().kept;
    return totals;
  }

  OktopkCudaOptim step(const Rule& rule, double rate, double decay) {
    const PowerView of_first = host_first.up_to(rule.momentum, kRoom - 1);
    const PowerView of_second = host_second.up_to(0.99, kRoom - 1);
    first.write(padded(of_first));
    second.write(padded(of_second));
    return {.is_sgd = rule.is_sgd,
            .nesterov = rule.is_sgd && rule.momentum > 0,
            .clock = head.data(),
            .totals = totals.data(),
            .log = log.data(),
            .room = kRoom,
            .rate = rate,
            .decoupled_decay = rule.is_sgd ? 0 : decay,
            .first_beta = rule.momentum,
            .second_beta = 0.99,
            .epsilon = 1e-8,
            .coupled_decay = rule.is_sgd ? decay : 0,
            .first_powers = first.data(),
            .first_size = of_first.size,
            .second_powers = second.data(),
            .second_size = of_second.size};
  }

  static std::vector<double> padded(const PowerView& powers) {
    std::vector<double> values(powers.one_minus, powers.one_minus + powers.size);
    values.resize(kRoom);
    return values;
  }

  IntervalClock host;
  PowerTable host_first, host_second;
  OnDevice<OktopkCudaClock> head;
  OnDevice<double> totals, log, first, second;
};

class CudaOptim : public testing::Test {
 protected:
  void SetUp() override {
    try {
      device_ = make_cuda_device();
      steps_ = std::make_unique<CudaSteps>(0);
    } catch (const DeviceError& error) {
      GTEST_SKIP() << error.what();
    }
  }

  // Queues the step over these tensors.
  void run(OktopkCudaOptim step, const std::vector<OktopkCudaTensor>& tensors) {
    std::vector<std::uint64_t> blocks;
    for (std::uint64_t type = 0; type < kWeightTypes; ++type)
      for (std::uint64_t i = 0; i < tensors.size(); ++i) {
        const OktopkCudaTensor& t = tensors[i];
        const bool is_list = t.where == OKTOPK_CUDA_LISTED;
        const std::uint64_t size = is_list ? t.count : t.size;
        for (std::uint64_t b = 0; t.type == type && b * (is_list ? kListBlock : kBlock) < size; ++b) {
          blocks.push_back(i << 32U | b);
          ++step.block_counts[type];
        }
      }
    const OnDevice<OktopkCudaTensor> table(*device_, tensors);
    const OnDevice<std::uint64_t> list(*device_, blocks);
    step.tensors = table.data();
    step.tensor_count = tensors.size();
    step.blocks = list.data();
    steps_->run(step);
    list.read();  // waits
  }

  template <class W>
  void expect_steps(const Rule& rule, const std::vector<std::uint64_t>& wheres, double scale = 1) {
    std::vector<std::unique_ptr<Twin<W>>> twins;
    for (const std::size_t n : {std::size_t{1}, std::size_t{4096}, std::size_t{300}, std::size_t{60'011}})
      twins.push_back(std::make_unique<Twin<W>>(*device_, n, n == 300 ? 1 : 0));
    Clocks clocks(*device_);
    const OnDevice<float> scale_on_gpu(*device_, {static_cast<float>(scale)});
    const bool has_first = rule.momentum > 0;
    for (std::uint32_t step = 1; step <= wheres.size(); ++step) {
      const std::uint64_t where = wheres[step - 1];
      const double rate = 0.01 / step;
      const bool is_dense = where == OKTOPK_CUDA_DENSE;
      clocks.host.tick(rate, rule.is_sgd ? 0 : 0.1);
      OktopkCudaOptim group = clocks.step(rule, rate, 0.1);
      if (is_dense) group.totals = nullptr;
      if (scale != 1) group.grad_scale = scale_on_gpu.data();
      std::vector<TensorState> on_host;
      std::vector<OktopkCudaTensor> on_gpu;
      for (const auto& twin : twins) {
        twin->draw(static_cast<int>(step), is_dense || where == OKTOPK_CUDA_ALL, scale);
        if (where == OKTOPK_CUDA_ALL || is_dense || !twin->indices.empty())
          on_host.push_back(twin->host(where, step, has_first));
        on_gpu.push_back(twin->gpu(where, has_first, rule.is_sgd));
      }
      step_on_host(clocks, rule, on_host);
      run(group, on_gpu);
      for (const auto& twin : twins)
        twin->expect_same(std::to_string(twin->w.size()) + " elements, step " + std::to_string(step), rule.is_sgd);
      if (testing::Test::HasFailure()) return;
    }
  }

  static void step_on_host(Clocks& clocks, const Rule& rule, const std::vector<TensorState>& tensors) {
    const ClockView view = clocks.host.view();
    const PowerView first = clocks.host_first.up_to(rule.momentum, kRoom - 1);
    const PowerView second = clocks.host_second.up_to(0.99, kRoom - 1);
    if (rule.is_sgd)
      sgd_step(tensors, {rule.momentum, 0.1, rule.momentum > 0, view, first}, 1);
    else
      adam_step(tensors, {rule.momentum, 0.99, 1e-8, view, first, second}, 1);
  }

  std::unique_ptr<Device> device_;
  std::unique_ptr<CudaSteps> steps_;
};

constexpr std::uint64_t D = OKTOPK_CUDA_DENSE, A = OKTOPK_CUDA_ALL, L = OKTOPK_CUDA_LISTED, N = OKTOPK_CUDA_NONZERO;
const std::vector<std::uint64_t> kLazy = {N, L, N, A, A, L, N, N};

TEST_F(CudaOptim, adam_is_that_of_the_host) {
  for (const auto& wheres : {std::vector<std::uint64_t>{D, D, D}, kLazy}) {
    expect_steps<float>({}, wheres);
    expect_steps<Bf16>({}, wheres);
    expect_steps<Fp16>({}, wheres);
    expect_steps<double>({}, wheres);
  }
}

TEST_F(CudaOptim, sgd_is_that_of_the_host) {
  for (const auto& wheres : {std::vector<std::uint64_t>{D, D, D}, kLazy})
    for (const double momentum : {0.9, 0.0}) {
      expect_steps<float>({true, momentum}, wheres);
      expect_steps<Bf16>({true, momentum}, wheres);
      expect_steps<Fp16>({true, momentum}, wheres);
      expect_steps<double>({true, momentum}, wheres);
    }
}

TEST_F(CudaOptim, a_scale_divides_the_mean) {
  expect_steps<float>({}, kLazy, 1024);
  expect_steps<float>({true}, {D, D}, 1024);
}

TEST_F(CudaOptim, a_step_that_is_left_out_changes_nothing) {
  Twin<float> twin(*device_, 5000, 0);
  Clocks clocks(*device_);
  twin.draw(1, false, 1);
  const OnDevice<float> found_inf(*device_, {1.0F});
  OktopkCudaOptim group = clocks.step({}, 0.1, 0.1);
  group.found_inf = found_inf.data();
  run(group, {twin.gpu(N, true, false)});
  twin.expect_same("left out", false);
  EXPECT_EQ(twin.gpu_steps.read()[0], 0);
  EXPECT_EQ(clocks.head.read()[0].now, 0U);
  EXPECT_EQ(clocks.head.read()[0].skip, 1U);
  EXPECT_EQ(clocks.head.read()[0].fault, 0U);
}

TEST_F(CudaOptim, clock_is_that_of_the_host_also_when_little_is_kept) {
  Clocks clocks(*device_);
  std::uint32_t steps = 0;
  for (; steps < 300; ++steps) {
    const double rate = steps % 50 == 0 ? 0.5 : 1;
    clocks.host.tick(rate, 0.9375);
    run(clocks.step({}, rate, 0.9375), {});
  }
  EXPECT_GT(clocks.host.rescalings(), 0U);
  EXPECT_EQ(clocks.head.read()[0].now, steps);
  const std::vector<double> totals = clocks.totals.read();
  EXPECT_EQ(std::memcmp(totals.data(), clocks.host.totals().data(), clocks.host.totals().size_bytes()), 0);
  const std::vector<double> log = clocks.log.read();
  EXPECT_EQ(log[2 * 51], 0.5);
  EXPECT_EQ(log[2 * 300 + 1], 0.9375);
}

TEST_F(CudaOptim, rate_may_lie_on_the_gpu_and_must_be_fit) {
  Clocks clocks(*device_);
  for (const auto& [rate, fault] : {std::pair{0.5F, 0U}, {-1.0F, 1U}, {NAN, 1U}, {INFINITY, 1U}, {10.0F, 1U}}) {
    const OnDevice<float> on_gpu(*device_, {rate});
    OktopkCudaOptim group = clocks.step({}, 0, 0.1);
    group.rate_on_gpu = on_gpu.data();
    run(group, {});
    EXPECT_EQ(clocks.head.read()[0].fault, fault) << rate;
    EXPECT_EQ(clocks.head.read()[0].skip, fault) << rate;
    EXPECT_EQ(clocks.head.read()[0].now, 1U) << rate;
    EXPECT_EQ(clocks.head.read()[0].rate, 0.5) << rate;
  }
}

TEST_F(CudaOptim, a_full_clock_and_a_bad_index_are_faults) {
  Twin<float> twin(*device_, 10, 0);
  Clocks clocks(*device_);
  OktopkCudaOptim group = clocks.step({}, 0.1, 0.1);
  twin.indices = {3, 10, -1};
  twin.gpu_indices.write({3, 10, -1, 0, 0, 0, 0, 0, 0, 0});
  run(group, {twin.gpu(L, true, false)});
  EXPECT_EQ(clocks.head.read()[0].fault, 3U);
  EXPECT_EQ(twin.gpu_last.read(), (std::vector<std::uint32_t>{0, 0, 0, 1, 0, 0, 0, 0, 0, 0}));
  group.room = 2;
  run(group, {twin.gpu(N, true, false)});
  EXPECT_EQ(clocks.head.read()[0].fault, 2U);
  EXPECT_EQ(clocks.head.read()[0].now, 1U);
  EXPECT_EQ(twin.gpu_steps.read()[0], 1);
}

}  // namespace
}  // namespace oktopk::cuda_optim_test
