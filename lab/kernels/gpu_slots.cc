// SPDX-License-Identifier: Apache-2.0
// The rows of `oktopk-lab kernels --device cuda` for preset slots: whole steps of P ranks, all in this process, with
// error feedback and thresholds that steer themselves. Each kernel's time is the mean over the ranks.
#include "lab/kernels/gpu_bench.h"
#include "oktopk/base/error.h"
#include "oktopk/sparse/slots_format.h"

namespace oktopk {
namespace {

constexpr int kSettle = 12;  // steps until the thresholds have found their places
constexpr std::uint32_t kTag = 1;

class SlotsWorld {
 public:
  SlotsWorld(const TimedGpu& gpu, const GpuData& data, std::size_t k, int P)
      : gpu_(gpu),
        api_(gpu.api()),
        data_(data),
        k_(k),
        deal_(slots::Deal::of(data.n(), static_cast<std::uint32_t>(P))) {
    words_ = slots::message_words(deal_, k);
    for (std::uint32_t r = 0; r < deal_.P; ++r) {
      OktopkCudaSlots* rank = nullptr;
      gpu_.check(api_.slots_open(gpu_.context(), deal_.n, deal_.P, kTag, &rank));
      ranks_.push_back(rank);
      acc_.push_back(gpu_.device().allocate(deal_.n));
      sent_.push_back(gpu_.device().allocate(words_ * deal_.P));
      memory_.push_back(gpu_.device().allocate(deal_.places()));
    }
    arrived_ = gpu_.device().allocate(words_ * deal_.P);
    shares_ = gpu_.device().allocate(words_ * deal_.P);
  }
  ~SlotsWorld() {
    for (OktopkCudaSlots* rank : ranks_) api_.slots_close(gpu_.context(), rank);
  }
  SlotsWorld(const SlotsWorld&) = delete;
  SlotsWorld& operator=(const SlotsWorld&) = delete;

  // The parts of a step, in this order; seconds of one rank.
  double send() {
    return mean_over_ranks([&](std::uint32_t r) {
      const OktopkCudaPass pass{acc_[r].get(), deal_.n, data_.gradient(FloatType::fp32, turn_++), 0, 1, nullptr, 0};
      return gpu_.time([&] { gpu_.check(api_.slots_send(gpu_.context(), ranks_[r], &pass, k_, words(sent_[r]))); });
    });
  }
  double own() {
    return mean_over_ranks([&](std::uint32_t q) {
      for (std::uint32_t r = 0; r < deal_.P; ++r)
        gpu_.check(api_.copy(gpu_.context(), words(arrived_) + words_ * r, words(sent_[r]) + words_ * q, 4 * words_));
      std::uint32_t* share = words(shares_) + words_ * q;
      return gpu_.time(
          [&] { gpu_.check(api_.slots_own(gpu_.context(), ranks_[q], memory_[q].get(), words(arrived_), k_, share)); });
    });
  }
  double apply(float* out) {
    return mean_over_ranks([&](std::uint32_t r) {
      return gpu_.time([&] {
        gpu_.check(api_.slots_apply(gpu_.context(), ranks_[r], words(shares_), words(sent_[r]), acc_[r].get(), k_,
                                    static_cast<float>(deal_.P), out, 0));
      });
    });
  }

  // DeviceError if a step went wrong.
  void check_steps() const {
    for (OktopkCudaSlots* rank : ranks_) {
      OktopkCudaSlotsState state{};
      gpu_.check(api_.slots_state(gpu_.context(), rank, &state));
      if (state.fault != 0 || state.void_steps != 0)
        fail<DeviceError>("slots: fault ", state.fault, " and ", state.void_steps, " void steps in ", state.step,
                          " steps");
    }
  }

 private:
  static std::uint32_t* words(const DeviceFloats& memory) { return reinterpret_cast<std::uint32_t*>(memory.get()); }

  template <class Time>
  double mean_over_ranks(const Time& time) const {
    double sum = 0;
    for (std::uint32_t r = 0; r < deal_.P; ++r) sum += time(r);
    return sum / deal_.P;
  }

  const TimedGpu& gpu_;
  const OktopkCudaApi& api_;
  const GpuData& data_;
  std::uint64_t k_;
  slots::Deal deal_;
  std::uint64_t words_ = 0;  // of a message
  std::size_t turn_ = 0;
  std::vector<OktopkCudaSlots*> ranks_;
  std::vector<DeviceFloats> memory_, acc_, sent_;
  DeviceFloats arrived_, shares_;
};

}  // namespace

void GpuBench::add_slots(int P) {
  const std::string suffix = " P=" + std::to_string(P);
  const double n = data_.n(), places = n / P;
  const KernelRow rows[] = {{.kernel = "slots send" + suffix, .bytes = 12 * n, .limit = "axpy"},
                            {.kernel = "slots own" + suffix, .bytes = 8 * places, .limit = "copy"},
                            {.kernel = "slots apply" + suffix, .bytes = 4 * n, .limit = "set"},
                            {.kernel = "slots step" + suffix, .bytes = 16 * n + 8 * places, .limit = "sum"}};
  bool is_wanted = false;
  for (const KernelRow& row : rows) is_wanted = is_wanted || wants(row.kernel);
  if (!is_wanted) return;
  SlotsWorld world(gpu_, data_, k_, P);
  const Sample axpy = axpy_limit(FloatType::fp32), copy = copy_limit(static_cast<std::size_t>(4 * places));
  const OktopkCudaPass all{other_.get(), data_.n(), nullptr, 0, 0, nullptr, 0};
  std::vector<double> kernels[4], limits[4];
  for (int i = -kSettle; i < options_.repetitions; ++i) {
    double times[] = {world.send(), 0, 0, 0}, least[] = {axpy(), 0, 0, 0};
    times[1] = world.own(), least[1] = copy();
    times[2] = world.apply(other_.get()), least[2] = gpu_.limit_time(oktopk_cuda_set, all);
    times[3] = times[0] + times[1] + times[2], least[3] = least[0] + least[1] + least[2];
    for (int part = 0; part < 4 && i >= 0; ++part) {
      kernels[part].push_back(times[part]);
      limits[part].push_back(least[part]);
    }
  }
  world.check_steps();
  for (int part = 0; part < 4; ++part) report(rows[part], {summarise(kernels[part]), summarise(limits[part])});
}

}  // namespace oktopk
