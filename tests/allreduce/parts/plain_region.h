// SPDX-License-Identifier: Apache-2.0
// The reference for an owner's memory: a plain array that is scanned in every step.
#pragma once

#include <cmath>
#include <random>
#include <span>
#include <vector>

#include "oktopk/device/device.h"
#include "oktopk/sparse/coo.h"

namespace oktopk {

class PlainRegion {
 public:
  explicit PlainRegion(Range region) : region_(region), values_(region.width(), 0.0F) {}

  void add(CooView v) {
    for (std::size_t j = 0; j < v.size(); ++j) values_[v.idx[j] - region_.begin] += v.val[j];
  }

  SparseVector take(float threshold) {
    SparseVector taken;
    for (std::size_t i = 0; i < values_.size(); ++i) {
      if (values_[i] == 0 || std::fabs(values_[i]) < threshold) continue;
      taken.push_back(static_cast<Index>(region_.begin + i), values_[i]);
      values_[i] = 0;
    }
    return taken;
  }

  std::vector<float> values() const { return values_; }
  void scale(float factor) {
    for (float& x : values_) x *= factor;
  }

 private:
  Range region_;
  std::vector<float> values_;
};

inline SparseVector random_part(std::mt19937& random, Range region, double density) {
  std::normal_distribution<float> normal;
  std::bernoulli_distribution chosen(density);
  SparseVector v;
  for (Index i = region.begin; i < region.end; ++i)
    if (chosen(random)) v.push_back(i, normal(random));
  return v;
}

inline std::vector<float> list(std::span<const float> x) { return {x.begin(), x.end()}; }

// One step's arrivals: two parts and a threshold that rises, falls slowly and falls at once; now
// and then the second part takes the first one back.
struct Arrivals {
  SparseVector a;
  SparseVector b;
  float threshold = 1;

  void draw(std::mt19937& random, Range region, double density, int step) {
    a = random_part(random, region, density);
    b = random_part(random, region, density / 2);
    if (step % 7 == 3) {
      b = a;
      for (float& x : b.val) x = -x;
    }
    threshold *= step % 20 == 11 ? 0.3F : step % 3 == 0 ? 1.04F : 0.97F;
    if (step == 40) threshold = 0;
    if (step == 41) threshold = 1;
  }
};

}  // namespace oktopk
