// SPDX-License-Identifier: Apache-2.0
// Every verb of a device must equal a naive loop, bit for bit: on every SIMD level and with several threads, and on a
// GPU, at all lengths and places where a vectorised loop has a head or a tail.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "oktopk/base/error.h"
#include "oktopk/base/simd.h"
#include "oktopk/device/device.h"
#include "tests/device/on_device.h"
#include "tests/support/sparse.h"

namespace oktopk {

// A device under test, made by name. Another device enters the suite by adding its rows to devices(). A row whose
// device is not here says so, and its tests are skipped.
struct DeviceCase {
  std::string name;
  std::function<std::unique_ptr<Device>()> make;
  SimdLevel level = SimdLevel::scalar;  // of the host while it is tested
};

inline std::vector<DeviceCase> devices() {
  std::vector<DeviceCase> all;
  for (const SimdLevel level : simd_levels())
    for (const int threads : {1, 3})
      all.push_back({"cpu_" + std::string(to_string(level)) + "_" + std::to_string(threads),
                     [threads] { return make_cpu_device({.threads = threads}); }, level});
  all.push_back({"cuda", [] { return make_cuda_device(); }, simd_level()});
  all.push_back({"cuda_stand_in", [] { return make_cuda_device({.library = FAKE_CUDA_PATH}); }, simd_level()});
  return all;
}

inline std::string device_name(const testing::TestParamInfo<DeviceCase>& info) { return info.param.name; }

class DeviceConformance : public testing::TestWithParam<DeviceCase> {
 protected:
  void SetUp() override {
    try {
      device_ = GetParam().make();
    } catch (const DeviceError& error) {
      GTEST_SKIP() << error.what();
    }
  }

  template <class T>
  OnDevice<T> put(const std::vector<T>& values, std::size_t offset = 0) const {
    return {*device_, values, offset};
  }

  SimdLimit limit_{GetParam().level};
  std::unique_ptr<Device> device_;
};

// All tails of a vector, borders of tiles, and from 2^17 on what several threads share.
inline std::vector<std::size_t> lengths(const Device& device) {
  if (device.name() == "cuda") return {0, 1, 2, 3, 4, 5, 17, 300, 1025, 4095, 4096, 4097, 12345, 50001, 131073, 200001};
  std::vector<std::size_t> all;
  for (std::size_t n = 0; n <= 300; ++n) all.push_back(n);
  all.insert(all.end(), {1023, 1024, 1025, 2047, 2048, 2049, 12345, 131073, 200001});
  return all;
}

// Beyond this one variation is enough: the others differ in tails and tiles.
inline constexpr std::size_t kManyElements = 100000;

// Normal values with a tenth of zeros of both signs and a few denormals.
inline std::vector<float> make_values(std::size_t n, std::uint64_t seed) {
  Random random(seed, n);
  std::vector<float> out(n);
  for (float& x : out) {
    const auto kind = random.below(20);
    x = kind == 0   ? 0.0F
        : kind == 1 ? -0.0F
        : kind == 2 ? std::numeric_limits<float>::denorm_min()
                    : static_cast<float>(random.normal());
  }
  return out;
}

// Any finite bits of T: denormals, zeros and the largest among them.
template <class T>
std::vector<T> make_gradient(std::size_t n, std::uint64_t seed) {
  Random random(seed, n);
  std::vector<T> out(n);
  for (T& x : out) {
    do {
      x.bits = static_cast<std::uint16_t>(random.next());
    } while (!std::isfinite(to_float(x)));
  }
  return out;
}
template <>
inline std::vector<float> make_gradient(std::size_t n, std::uint64_t seed) {
  return make_values(n, seed);
}

inline std::vector<std::uint32_t> bits_of(std::span<const float> x) {
  std::vector<std::uint32_t> out;
  for (const float v : x) out.push_back(std::bit_cast<std::uint32_t>(v));
  return out;
}

using BitsList = std::vector<std::pair<Index, std::uint32_t>>;

inline BitsList bits_list_of(CooView v) {
  BitsList out;
  for (std::size_t i = 0; i < v.size(); ++i) out.emplace_back(v.idx[i], std::bit_cast<std::uint32_t>(v.val[i]));
  return out;
}

inline BitsList select_naively(std::span<const float> x, Index base, float threshold) {
  BitsList out;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const bool reaches = std::isnan(x[i]) || std::fabs(x[i]) >= threshold;
    if (x[i] != 0 && reaches) out.emplace_back(base + static_cast<Index>(i), std::bit_cast<std::uint32_t>(x[i]));
  }
  return out;
}

// 0, tiny, in the middle, exactly a value that occurs, above all.
inline std::vector<float> thresholds(std::span<const float> x) {
  if (x.size() > kManyElements) return {1.0F};
  std::vector<float> all = {0.0F, std::numeric_limits<float>::denorm_min(), std::numeric_limits<float>::min(), 1.0F,
                            std::numeric_limits<float>::max()};
  if (!x.empty()) all.push_back(std::fabs(x[x.size() / 2]));
  return all;
}

// Lists of indices to clear: none, some, the borders of tiles, all.
inline std::vector<std::vector<Index>> cleared_lists(std::size_t n) {
  std::vector<std::vector<Index>> all(4);
  for (Index i = 0; i < n; ++i) {
    if (i % 7 == 3) all[1].push_back(i);
    if (i % 1024 == 0 || i % 1024 == 1023 || i + 1 == n) all[2].push_back(i);
    all[3].push_back(i);
  }
  if (n > kManyElements) return {all[1]};
  return all;
}

template <class T>
std::vector<float> accumulate_naively(std::vector<float> acc, const std::vector<T>& gradient, float scale,
                                      const std::vector<Index>& cleared) {
  for (const Index i : cleared) acc[i] = 0;
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    const float product = scale * to_float(gradient[i]);
    acc[i] = acc[i] + product;
  }
  return acc;
}

}  // namespace oktopk
