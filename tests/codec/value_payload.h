// SPDX-License-Identifier: Apache-2.0
// A value coding on its own, and the tails of distributions that selections look like.
#pragma once

#include <cmath>
#include <functional>
#include <vector>

#include "oktopk/base/bytes.h"
#include "oktopk/codec/coding.h"
#include "tests/codec/samples.h"

namespace oktopk::testing {

inline std::vector<float> recoded(const ValueCodec& codec, const std::vector<float>& val) {
  Bytes bytes(codec.bytes(val.size()));
  codec.encode(val, bytes);
  std::vector<float> out(val.size());
  codec.decode(bytes, out);
  return out;
}

inline std::vector<float> decoded_values(const ValueCodec& codec, std::size_t count,
                                         const std::vector<unsigned>& payload) {
  Bytes bytes;
  for (const unsigned n : payload) bytes.push_back(static_cast<std::byte>(n));
  std::vector<float> out(count);
  codec.decode(bytes, out);
  return out;
}

inline double relative_error(const ValueCodec& codec, const std::vector<float>& val) {
  const std::vector<float> out = recoded(codec, val);
  double squares = 0;
  double errors = 0;
  for (std::size_t i = 0; i < val.size(); ++i) {
    squares += double{val[i]} * val[i];
    errors += (double{val[i]} - out[i]) * (double{val[i]} - out[i]);
  }
  return std::sqrt(errors / squares);
}

// The largest 1% of 2^20 draws, in the order they came.
template <class Distribution>
std::vector<float> top_percent(Distribution draw) {
  Random random(31);
  std::vector<float> all(1 << 20);
  for (float& v : all) {
    v = static_cast<float>(draw(random));
    if (random() % 2 == 0) v = -v;
  }
  std::vector<float> sorted = all;
  const auto nth = sorted.begin() + (1 << 20) / 100;
  const auto larger = [](float a, float b) { return std::fabs(a) > std::fabs(b); };
  std::nth_element(sorted.begin(), nth, sorted.end(), larger);
  std::vector<float> top;
  for (const float v : all) {
    if (larger(v, *nth)) top.push_back(v);
  }
  return top;
}

inline std::vector<float> gaussian_tail() { return top_percent(std::normal_distribution<>()); }
inline std::vector<float> laplace_tail() { return top_percent(std::exponential_distribution<>()); }
inline std::vector<float> student_tail() { return top_percent(std::student_t_distribution<>(3)); }

}  // namespace oktopk::testing
