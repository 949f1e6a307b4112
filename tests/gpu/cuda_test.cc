// SPDX-License-Identifier: Apache-2.0
// The CUDA device against the CPU device, bit by bit. Without a GPU only its errors are tested, and the other tests say
// that they were skipped; `make test-gpu` runs them where there is one.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>

#include "oktopk/base/error.h"
#include "tests/device/conformance.h"
#include "tests/device/same_steps.h"
#include "tests/support/message.h"

namespace oktopk {
namespace {

// Why there is no CUDA device here; empty: there is one.
std::string missing() {
  try {
    make_cuda_device();
    return "";
  } catch (const DeviceError& error) {
    return error.what();
  }
}

class Cuda : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = missing(); !why.empty()) GTEST_SKIP() << why;
    cuda_ = make_cuda_device();
  }

  // Any values on the GPU, from the given offset on.
  template <class T>
  class OnGpu {
   public:
    OnGpu(const Device& device, const std::vector<T>& values, std::size_t offset = 0)
        : device_(device), floats_(device.allocate((values.size() + offset) * sizeof(T) / 4 + 1)), n_(values.size()) {
      begin_ = reinterpret_cast<T*>(floats_.get()) + offset;
      std::vector<float> whole((values.size() + offset) * sizeof(T) / 4 + 1);
      std::memcpy(reinterpret_cast<std::byte*>(whole.data()) + offset * sizeof(T), values.data(),
                  values.size() * sizeof(T));
      device.write({floats_.get(), whole.size()}, whole);
    }
    std::span<T> span() { return {begin_, n_}; }
    std::vector<float> host() const {
      std::vector<float> values(n_);
      device_.read(std::span<const float>(begin_, n_), values.data());
      return values;
    }

   private:
    const Device& device_;
    DeviceFloats floats_;
    T* begin_;
    std::size_t n_;
  };

  template <class T>
  void expect_selects(std::size_t n, std::size_t offset) {
    std::vector<float> acc = make_values(n, 3);
    const std::vector<T> gradient = make_gradient<T>(n, 4);
    std::vector<Index> cleared;
    for (Index i = 0; i < n; i += 7) cleared.push_back(i);
    OnGpu<float> gpu_acc(*cuda_, acc, offset);
    OnGpu<T> gpu_gradient(*cuda_, gradient, offset);
    for (const float threshold : {0.0F, 1.5F, 2.6F})
      for (const std::size_t most : {Device::kNoLimit, std::size_t{100}, std::size_t{1}}) {
        SparseVector ours, theirs;
        const std::size_t reached = cpu_->accumulate_select({acc, gradient, 1e-3F, cleared}, threshold, ours, most);
        const std::size_t gpu_reached = cuda_->accumulate_select(
            {gpu_acc.span(), std::span<const T>(gpu_gradient.span()), 1e-3F, cleared}, threshold, theirs, most);
        ASSERT_EQ(reached, gpu_reached) << n << " " << offset << " " << threshold;
        ASSERT_EQ(bits_list_of(ours), bits_list_of(theirs)) << n << " " << offset << " " << threshold << " " << most;
        ASSERT_EQ(bits_of(acc), bits_of(gpu_acc.host())) << n << " " << offset;
      }
  }

  std::shared_ptr<const Device> cpu_ = make_cpu_device();
  std::shared_ptr<const Device> cuda_;
};

TEST_F(Cuda, selection_has_the_bits_of_the_cpu_device) {
  for (const std::size_t n : {1, 5, 300, 4095, 4096, 4097, 50001, 300000})
    for (const std::size_t offset : {0, 1, 2}) {
      expect_selects<float>(n, offset);
      expect_selects<Bf16>(n, 2 * offset);
      expect_selects<Fp16>(n, 2 * offset);
    }
}

TEST_F(Cuda, other_verbs_have_the_bits_of_the_cpu_device) {
  for (const std::size_t n : {1, 17, 4097, 200001}) {
    std::vector<float> x = make_values(n, 5);
    OnGpu<float> gpu(*cuda_, x);
    const Moments a = cpu_->moments(x), b = cuda_->moments(gpu.span());
    EXPECT_EQ(a.mean, b.mean);
    EXPECT_EQ(a.standard_deviation, b.standard_deviation);
    MagnitudeHistogram ours{}, theirs{};
    cpu_->magnitude_histogram(x, ours);
    cuda_->magnitude_histogram(gpu.span(), theirs);
    EXPECT_EQ(ours, theirs);
    Uninitialised<std::uint32_t> sample, gpu_sample;
    const std::vector<Index> cleared = {0};
    cpu_->sample_magnitudes({.acc = x, .cleared = cleared}, 0, 5, sample);
    cuda_->sample_magnitudes({.acc = gpu.span(), .cleared = cleared}, 0, 5, gpu_sample);
    EXPECT_EQ(sample, gpu_sample);
    cpu_->multiply(x, 0.3F);
    cuda_->multiply(gpu.span(), 0.3F);
    SparseVector entries;
    for (Index i = 0; i < n; i += 3) entries.push_back(i, 0.25F);
    cpu_->add_at(x, 0, entries);
    cuda_->add_at(gpu.span(), 0, entries);
    SparseVector taken, reported, gpu_taken, gpu_reported;
    const TakeBounds bounds{magnitude_bits(0.5F), magnitude_bits(0.2F)};
    std::vector<float> before(entries.size()), gpu_before(entries.size(), -1.0F);
    cpu_->add_take(x, 0, entries, bounds, taken, reported, before.data());
    cuda_->add_take(gpu.span(), 0, entries, bounds, gpu_taken, gpu_reported, gpu_before.data());
    EXPECT_EQ(bits_of(before), bits_of(gpu_before));
    EXPECT_EQ(bits_list_of(taken), bits_list_of(gpu_taken));
    EXPECT_EQ(bits_list_of(reported), bits_list_of(gpu_reported));
    EXPECT_EQ(bits_of(x), bits_of(gpu.host()));
    EXPECT_EQ(cuda_->first_nonfinite(gpu.span()), n);
    x[n / 2] = std::numeric_limits<float>::infinity();
    cuda_->write(gpu.span(), x);
    EXPECT_EQ(cuda_->first_nonfinite(gpu.span()), n / 2);
  }
}

// The two streams are those that every CUDA program has: cudaStreamPerThread and cudaStreamLegacy.
TEST_F(Cuda, use_stream_queues_behind_the_stream_before) {
  std::vector<float> x = make_values(1U << 22U, 9);
  OnGpu<float> gpu(*cuda_, x);
  for (std::uintptr_t turn = 0; turn < 20; ++turn) {
    cuda_->use_stream(reinterpret_cast<void*>(turn % 2 == 0 ? std::uintptr_t{2} : std::uintptr_t{1}));
    const float factor = turn % 2 == 0 ? 0.3F : 2.9F;
    cpu_->multiply(x, factor);
    cuda_->multiply(gpu.span(), factor);
    cpu_->accumulate({x, x, 0.25F});
    cuda_->accumulate({gpu.span(), gpu.span(), 0.25F});
  }
  EXPECT_EQ(bits_of(x), bits_of(gpu.host()));
}

TEST_F(Cuda, presets_and_rules_give_the_bits_of_the_cpu_device) {
  for (const int P : {1, 2, 3, 4}) expect_same_presets(P, [] { return make_cuda_device(); });
}

TEST_F(Cuda, memory_that_does_not_suffice_is_named) {
  const std::string message = message_of<DeviceError>([&] { cuda_->allocate(std::size_t{1} << 40); });
  EXPECT_NE(message.find("for n = 1099511627776 floats: GPU 0"), std::string::npos) << message;
  EXPECT_NO_THROW(cuda_->allocate(1000));
}

TEST_F(Cuda, an_ordinal_that_does_not_exist_is_refused) {
  EXPECT_NE(message_of<UsageError>([] { make_cuda_device({.ordinal = 1000}); }).find("ordinal = 1000"),
            std::string::npos);
}

// With or without the library, a driver or a GPU: a DeviceError says what is missing.
TEST(CudaDevice, the_lack_of_a_gpu_is_a_device_error) {
  const std::string why = missing();
  EXPECT_TRUE(why.empty() || why.starts_with("cuda device: ")) << why;
}

}  // namespace
}  // namespace oktopk
