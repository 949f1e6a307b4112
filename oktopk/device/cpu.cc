// SPDX-License-Identifier: Apache-2.0
// Device "cpu": walks the elements tile by tile with the kernels of the level in use (cpu/kernels.h). Several threads
// take contiguous ranges of whole tiles; their selections are joined in order, so the result is that of one thread.
//
// COST: each pass reads every element once, and writes it once if it changes anything.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <optional>
#include <vector>

#include "oktopk/base/bytes.h"
#include "oktopk/base/error.h"
#include "oktopk/cpu/kernels.h"
#include "oktopk/device/cpu_parts.h"
#include "oktopk/device/device.h"
#include "oktopk/device/thread_pool.h"
#include "oktopk/sparse/top.h"

namespace oktopk {
namespace {

constexpr std::size_t kMaxThreads = 256;
// Elements below which waking another thread takes longer than it saves.
constexpr std::size_t kGrain = std::size_t{1} << 16;
static_assert(kGrain % kTile == 0 && kGrain % kMomentBlock == 0);

const ElementKernels& element_kernels() { return kernels().elements; }

// A scan of more than caches hold uses AVX2: vectors of 512 bits come in bursts that memory's prefetching follows less
// well than those of 256.
auto scan_kernel(std::size_t n) {
  constexpr std::size_t kBeyondCaches = std::size_t{1} << 22;
  const bool narrow = n >= kBeyondCaches && simd_level() == SimdLevel::avx512;
  return kernels(narrow ? SimdLevel::avx2 : simd_level()).elements.mark;
}

class CpuDevice final : public Device {
 public:
  explicit CpuDevice(std::size_t threads) : parts_(threads) {
    if (threads > 1) pool_.emplace(threads);
  }
  std::string_view name() const override { return "cpu"; }

  DeviceFloats allocate(std::size_t n) const override {
    DeviceFloats memory(static_cast<float*>(allocate_pages(n * sizeof(float))),
                        [n](float* x) { free_pages(x, n * sizeof(float)); });
    std::fill_n(memory.get(), n, 0.0F);
    return memory;
  }

  void read(Gradient x, void* host) const override {
    if (!x.empty()) std::memcpy(host, x.as<void>(), x.size() * size_of(x.type()));
  }

  void write(std::span<float> x, std::span<const float> host) const override {
    OKTOPK_DCHECK(host.empty() || host.size() == x.size());
    std::fill(x.begin() + static_cast<std::ptrdiff_t>(host.size()), x.end(), 0.0F);
    std::copy(host.begin(), host.end(), x.begin());
  }

  std::size_t first_nonfinite(Gradient x) const override {
    const auto find = element_kernels().first_nonfinite[static_cast<std::size_t>(x.type())];
    std::array<std::size_t, kMaxThreads> found;
    found.fill(x.size());
    for_sections(x.size(), [&](std::size_t part, Section section) {
      const Gradient piece = x.subspan(section.begin, section.size());
      const std::size_t at = find(piece.as<void>(), piece.size());
      if (at < piece.size()) found[part] = section.begin + at;
    });
    return *std::min_element(found.begin(), found.end());
  }

  void accumulate(const Accumulation& in) const override {
    if (in.gradient.empty()) return clear_at(in.acc, 0, in.cleared);
    OKTOPK_DCHECK(in.acc.size() == in.gradient.size());
    const auto add = element_kernels().accumulate[static_cast<std::size_t>(in.gradient.type())];
    for_sections(in.acc.size(), [&](std::size_t, Section section) {
      Cleared cleared(in, section);
      for_tiles(section, [&](Section tile) {
        add(in.acc.subspan(tile.begin, tile.size()), addend(in, tile));
        cleared.before(tile.end, [](std::size_t, float) {});
      });
    });
  }

  void multiply(std::span<float> x, float factor) const override {
    const auto by = element_kernels().multiply;
    for_sections(x.size(), [&](std::size_t, Section section) { by(x.subspan(section.begin, section.size()), factor); });
  }

  std::size_t accumulate_select(const Accumulation& in, float threshold, SparseVector& out,
                                std::size_t most) const override {
    out.clear();
    append_selected(in, 0, threshold, out);
    const std::size_t reached = out.size();
    if (reached > most) keep_largest(out, most);
    return reached;
  }

  void select_at_least(std::span<const float> x, Index base, float threshold, SparseVector& out) const override {
    // Nothing is added or cleared, so nothing is written.
    append_selected({.acc = {const_cast<float*>(x.data()), x.size()}}, base, threshold, out);
  }

  void magnitude_histogram(std::span<const float> x, MagnitudeHistogram& bins) const override {
    count_magnitudes(x, bins);
  }

  void sample_magnitudes(const Accumulation& in, std::size_t offset, std::size_t stride,
                         Uninitialised<std::uint32_t>& out) const override {
    sample_clusters(in, offset, stride, out);
  }

  Moments moments(std::span<const float> x) const override {
    if (x.empty()) return {};
    const auto add = element_kernels().add_moments;
    blocks_.assign((x.size() + kMomentBlock - 1) / kMomentBlock, {});
    for_sections(x.size(), [&](std::size_t, Section section) {
      for (std::size_t begin = section.begin; begin < section.end; begin += kMomentBlock)
        add(x.subspan(begin, std::min(kMomentBlock, section.end - begin)), blocks_[begin / kMomentBlock]);
    });
    double sum = 0;
    double squares = 0;
    for (const MomentLanes& block : blocks_)
      for (std::size_t lane = 0; lane < MomentLanes::kLanes; ++lane) {
        sum += block.sum[lane];
        squares += block.squares[lane];
      }
    return moments_of(sum, squares, x.size());
  }

  void add_at(std::span<float> x, Index base, CooView v) const override {
    for_entries(x, base, v.idx, [&](float& place, std::size_t i) { place += v.val[i]; });
  }

  void clear_at(std::span<float> x, Index base, std::span<const Index> idx) const override {
    for_entries(x, base, idx, [](float& place, std::size_t) { place = 0.0F; });
  }

  // Every entry is written to `taken`; where it stays, the next one overwrites it.
  void add_take(std::span<float> x, Index base, CooView v, const TakeBounds& bounds, SparseVector& taken,
                SparseVector& reported, float* before) const override {
    const bool adds = !v.val.empty();
    std::size_t count = 0;
    taken.resize(v.size());
    reported.clear();
    const CooSink out{taken.idx.data(), taken.val.data()};
    for_entries(x, base, v.idx, [&, out, take = bounds.take, report = bounds.report](float& place, std::size_t i) {
      if (before != nullptr) before[i] = place;
      const float after = adds ? place + v.val[i] : place;
      const bool leaves = magnitude_bits(after) >= take;
      if (adds || leaves) place = leaves ? 0.0F : after;
      out.idx[count] = v.idx[i];
      out.val[count] = after;
      count += static_cast<std::size_t>(leaves);
      if (!leaves && magnitude_bits(after) >= report) reported.push_back(v.idx[i], after);
    });
    taken.resize(count);
  }

 private:
  void append_selected(const Accumulation& in, Index base, float threshold, SparseVector& out) const {
    const bool adds = !in.gradient.empty();
    OKTOPK_DCHECK(!adds || in.acc.size() == in.gradient.size());
    const ElementKernels& use = element_kernels();
    const auto mark = scan_kernel(in.acc.size());
    const auto accumulate_mark = use.accumulate_mark[static_cast<std::size_t>(in.gradient.type())];
    const std::uint32_t bound = bound_of(threshold);
    collect(in.acc.size(), out, [&](Section section, SparseVector& to) {
      Cleared cleared(in, section);
      Output output(to);
      for_tiles(section, [&](Section tile) {
        const auto acc = in.acc.subspan(tile.begin, tile.size());
        std::uint64_t* const marks = output.marks(tile).data();
        adds ? accumulate_mark(acc, addend(in, tile), bound, marks) : mark(acc, bound, marks);
        cleared.before(tile.end, [marks, begin = tile.begin, bound](std::size_t i, float value) {
          set_mark(marks, i - begin, magnitude_bits(value) >= bound);
        });
        output.append(use, acc.data(), base + static_cast<Index>(tile.begin), adds ? nullptr : following(in.acc, tile));
      });
      output.finish();
    });
  }

  static std::uint32_t bound_of(float threshold) { return std::max(magnitude_bits(threshold), 1U); }

  static Addend addend(const Accumulation& in, Section tile) {
    return {in.gradient.subspan(tile.begin, tile.size()).as<void>(), in.scale};
  }

  // The whole tile that a scan of x reads after this one, if any.
  static const float* following(std::span<const float> x, Section tile) {
    return tile.end + kTile <= x.size() ? x.data() + tile.end : nullptr;
  }

  template <class Visit>
  static void for_tiles(Section section, const Visit& visit) {
    for (std::size_t begin = section.begin; begin < section.end; begin += kTile)
      visit(Section{begin, std::min(section.end, begin + kTile)});
  }

  // visit(part, section) for sections that begin at multiples of kGrain, each on its own thread.
  template <class Visit>
  void for_sections(std::size_t n, const Visit& visit) const {
    const std::size_t grains = (n + kGrain - 1) / kGrain;
    const std::size_t parts = std::min(parts_.size(), grains);
    if (parts <= 1) return visit(0, Section{0, n});
    pool_->run(parts, [&](std::size_t part) {
      visit(part, Section{part * grains / parts * kGrain, std::min(n, (part + 1) * grains / parts * kGrain)});
    });
  }

  // Calls select(section, to) for all sections, and appends their `to` to `out`, in order.
  template <class Select>
  void collect(std::size_t n, SparseVector& out, const Select& select) const {
    if (parts_.size() == 1) return select(Section{0, n}, out);
    for (SparseVector& part : parts_) part.clear();
    for_sections(n, [&](std::size_t part, Section section) { select(section, parts_[part]); });
    for (const SparseVector& part : parts_) out.append(part);
  }

  // Memory of passes, kept so that none allocates.
  mutable std::optional<ThreadPool> pool_;  // with several threads only
  mutable std::vector<SparseVector> parts_;
  mutable std::vector<MomentLanes> blocks_;
};

}  // namespace

std::unique_ptr<Device> make_cpu_device(const CpuOptions& options) {
  require(options.threads >= 1 && options.threads <= static_cast<int>(kMaxThreads),
          "cpu device: threads = ", options.threads, ", but it must be in 1..", kMaxThreads);
  return std::make_unique<CpuDevice>(static_cast<std::size_t>(options.threads));
}

}  // namespace oktopk
