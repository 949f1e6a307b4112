// SPDX-License-Identifier: Apache-2.0
#include "tools/kernels/limits.h"

#include <algorithm>
#include <barrier>
#include <cstring>
#include <functional>
#include <limits>
#include <thread>
#include <vector>

#include "oktopk/base/error.h"
#include "oktopk/base/timer.h"

namespace oktopk {
namespace {

template <class T>
void plain_axpy(float* y, const T* x, float a, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) y[i] += a * to_float(x[i]);
}

// Sixteen sums, so that one addition need not wait for the last.
float plain_read(const float* x, std::size_t n) {
  float sums[16] = {};
  std::size_t i = 0;
  for (const std::size_t whole = n - n % 16; i < whole; i += 16)
    for (std::size_t j = 0; j < 16; ++j) sums[j] += x[i + j];
  float sum = 0;
  for (; i < n; ++i) sum += x[i];
  for (const float s : sums) sum += s;
  return sum;
}

}  // namespace

const LimitPasses& plain_limit_passes() {
  static constexpr LimitPasses passes = {plain_axpy<float>, plain_axpy<Bf16>, plain_axpy<Fp16>, plain_read};
  return passes;
}

// Threads that wait between passes: to start them costs more than a pass over a small vector.
class Limits::Crew {
 public:
  using Work = std::function<void(std::size_t piece)>;

  explicit Crew(std::size_t size) : start_(static_cast<std::ptrdiff_t>(size)), end_(static_cast<std::ptrdiff_t>(size)) {
    for (std::size_t piece = 1; piece < size; ++piece)
      threads_.emplace_back([this, piece] {
        for (;;) {
          start_.arrive_and_wait();
          if (work_ == nullptr) return;
          (*work_)(piece);
          end_.arrive_and_wait();
        }
      });
  }
  ~Crew() {
    work_ = nullptr;  // go home
    start_.arrive_and_wait();
    for (std::thread& thread : threads_) thread.join();
  }

  std::size_t size() const { return threads_.size() + 1; }

  void run(const Work& work) {
    work_ = &work;
    start_.arrive_and_wait();
    work(0);
    end_.arrive_and_wait();
  }

 private:
  std::barrier<> start_, end_;
  const Work* work_ = nullptr;
  std::vector<std::thread> threads_;
};

Limits::Limits(int threads) {
  require(threads >= 1, "threads = ", threads, ", but at least one is needed");
  crew_ = std::make_unique<Crew>(static_cast<std::size_t>(threads));
}

Limits::~Limits() = default;

template <class Body>
void Limits::share(std::size_t size, const Body& body) {
  if (crew_->size() == 1) return body(0, 0, size);
  const std::size_t width = (size / crew_->size() + 63) / 64 * 64;
  crew_->run([&](std::size_t piece) {
    const std::size_t begin = std::min(size, piece * width);
    const std::size_t end = piece + 1 == crew_->size() ? size : std::min(size, begin + width);
    body(piece, begin, end - begin);
  });
}

// pass(variant) with the variant that was fastest at first.
template <class Pass>
void Limits::run_fastest(const LimitPasses*& chosen, const Pass& pass) {
  constexpr int kTrials = 5;
  if (chosen == nullptr) {
    double least = std::numeric_limits<double>::infinity();
    for (int trial = 0; trial < kTrials; ++trial)
      for (const LimitPasses& variant : limit_variants()) {
        Timer timer;
        pass(variant);
        const double seconds = timer.lap();
        if (seconds >= least) continue;
        least = seconds;
        chosen = &variant;
      }
  }
  pass(*chosen);
}

float Limits::read(std::span<const float> x) {
  std::vector<float> sums(crew_->size());
  run_fastest(read_, [&](const LimitPasses& passes) {
    share(x.size(), [&](std::size_t piece, std::size_t begin, std::size_t count) {
      sums[piece] = passes.read(x.data() + begin, count);
    });
  });
  float sum = 0;
  for (const float s : sums) sum += s;
  return sum;
}

void Limits::copy(std::span<std::byte> to, std::span<const std::byte> from) {
  share(from.size(), [&](std::size_t, std::size_t begin, std::size_t count) {
    if (count > 0) std::memcpy(to.data() + begin, from.data() + begin, count);
  });
}

void Limits::axpy(std::span<float> y, Gradient x, float a) {
  run_fastest(axpy_[static_cast<std::size_t>(x.type())], [&](const LimitPasses& passes) {
    share(y.size(), [&](std::size_t, std::size_t begin, std::size_t count) {
      float* const out = y.data() + begin;
      switch (x.type()) {
        case FloatType::fp32:
          return passes.axpy_fp32(out, x.as<float>() + begin, a, count);
        case FloatType::bf16:
          return passes.axpy_bf16(out, x.as<Bf16>() + begin, a, count);
        case FloatType::fp16:
          return passes.axpy_fp16(out, x.as<Fp16>() + begin, a, count);
      }
    });
  });
}

}  // namespace oktopk
