// SPDX-License-Identifier: Apache-2.0
// The vector kernels of the CPU device, written once over `Lanes`: the primitives of one level.
// Included in the middle of cpu_avx2.cc and cpu_avx512.cc, after each has defined Lanes and
// OKTOPK_TARGET (attributes of the level, which templates over a type could not carry); so there is
// no include guard. Elements that do not fill a vector are left to the scalar kernels.
//
// emit is free of branches at any density: the vectors with marks are queued, and the queue is
// packed into the output with whole stores. COST: about 1 ns per entry.

constexpr std::size_t kWidth = Lanes::kWidth;

inline std::size_t whole(std::size_t n) { return n / kWidth * kWidth; }

// Marks are bits in the order of the elements, so those of a vector are one integer.
OKTOPK_TARGET inline void put_marks(std::uint8_t* marks, std::size_t i, Lanes::Mask mask) {
  std::memcpy(marks + i / 8, &mask, sizeof(mask));
}

OKTOPK_TARGET void mark(std::span<const float> x, std::uint32_t bound, std::uint8_t* marks) {
  const std::size_t end = whole(x.size());
  const auto least = Lanes::bound(bound);
  for (std::size_t i = 0; i < end; i += kWidth)
    put_marks(marks, i, Lanes::at_least(Lanes::load(x.data() + i), least));
  if (end < x.size()) cpu_kernels_scalar().mark(x.subspan(end), bound, marks + end / 8);
}

// The numbers of the vectors that have marks.
OKTOPK_TARGET inline std::size_t queue_marked(const Lanes::Mask* masks, std::size_t vectors,
                                              std::uint32_t* queue) {
  std::size_t queued = 0;
  for (std::size_t v = 0; v < vectors; v += kWidth) {
    const unsigned nonzero = Lanes::nonzero(masks + v);
    const auto id = Lanes::count_from(static_cast<std::uint32_t>(v));
    Lanes::store(queue + queued, Lanes::pack(id, Lanes::packing(nonzero)));
    queued += static_cast<std::size_t>(std::popcount(nonzero));
  }
  return queued;
}

OKTOPK_TARGET std::size_t emit_whole(const float* x, const Marks& marks, const Target& to) {
  constexpr std::size_t kVectors = kTile / kWidth;
  alignas(64) Lanes::Mask masks[kVectors];
  alignas(64) std::uint32_t queue[kVectors + kWidth];
  std::memcpy(masks, marks.data(), sizeof(masks));
  const std::size_t queued = queue_marked(masks, kVectors, queue);
  std::size_t count = 0;
  for (std::size_t q = 0; q < queued; ++q) {
    const std::size_t v = queue[q];
    const unsigned mask = masks[v];
    const auto packing = Lanes::packing(mask);
    const auto id = Lanes::count_from(to.base + static_cast<Index>(v * kWidth));
    Lanes::store(to.val + count, Lanes::pack(Lanes::load(x + v * kWidth), packing));
    Lanes::store(to.idx + count, Lanes::pack(id, packing));
    count += static_cast<std::size_t>(std::popcount(mask));
  }
  return count;
}

OKTOPK_TARGET std::size_t emit(std::span<const float> x, const Marks& marks, const Target& to) {
  if (x.size() == kTile) return emit_whole(x.data(), marks, to);
  std::array<float, kTile> padded{};
  std::copy(x.begin(), x.end(), padded.begin());
  return emit_whole(padded.data(), marks, to);
}

template <class T>
OKTOPK_TARGET inline auto accumulated(float* acc, const T* gradient, Lanes::Floats scale) {
  const auto sum = Lanes::add(Lanes::load(acc), Lanes::multiply(scale, Lanes::widen(gradient)));
  Lanes::store(acc, sum);
  return sum;
}

template <class T>
OKTOPK_TARGET void accumulate_mark(std::span<float> acc, const Addend& add, std::uint32_t bound,
                                   std::uint8_t* marks) {
  const T* gradient = static_cast<const T*>(add.gradient);
  const std::size_t end = whole(acc.size());
  const auto least = Lanes::bound(bound);
  const auto scale = Lanes::all(add.scale);
  for (std::size_t i = 0; i < end; i += kWidth)
    put_marks(marks, i, Lanes::at_least(accumulated(acc.data() + i, gradient + i, scale), least));
  if (end == acc.size()) return;
  cpu_kernels_scalar().accumulate_mark[index_of<T>()](acc.subspan(end), {gradient + end, add.scale},
                                                      bound, marks + end / 8);
}

template <class T>
OKTOPK_TARGET void accumulate(std::span<float> acc, const Addend& add) {
  const T* gradient = static_cast<const T*>(add.gradient);
  const std::size_t end = whole(acc.size());
  const auto scale = Lanes::all(add.scale);
  for (std::size_t i = 0; i < end; i += kWidth) accumulated(acc.data() + i, gradient + i, scale);
  cpu_kernels_scalar().accumulate[index_of<T>()](acc.subspan(end), {gradient + end, add.scale});
}

OKTOPK_TARGET void multiply(std::span<float> x, float factor) {
  const std::size_t end = whole(x.size());
  const auto by = Lanes::all(factor);
  for (std::size_t i = 0; i < end; i += kWidth)
    Lanes::store(x.data() + i, Lanes::multiply(Lanes::load(x.data() + i), by));
  cpu_kernels_scalar().multiply(x.subspan(end), factor);
}

// Whole blocks are looked at; the scalar kernel then finds the place.
template <class T>
OKTOPK_TARGET std::size_t first_nonfinite(const void* x, std::size_t n) {
  constexpr std::size_t kBlock = 512 / sizeof(T);
  const T* values = static_cast<const T*>(x);
  std::size_t i = 0;
  while (i + kBlock <= n && !Lanes::any_full(values + i, kBlock, exponent_bits<T>())) i += kBlock;
  return i + cpu_kernels_scalar().first_nonfinite[index_of<T>()](values + i, n - i);
}

OKTOPK_TARGET void add_moments(std::span<const float> x, MomentLanes& lanes) {
  const std::size_t end = x.size() / MomentLanes::kLanes * MomentLanes::kLanes;
  Lanes::add_moments(x.data(), end, lanes);
  cpu_kernels_scalar().add_moments(x.subspan(end), lanes);
}

constexpr CpuKernels kKernels = {
    .mark = mark,
    .accumulate_mark = {accumulate_mark<float>, accumulate_mark<Bf16>, accumulate_mark<Fp16>},
    .emit = emit,
    .accumulate = {accumulate<float>, accumulate<Bf16>, accumulate<Fp16>},
    .multiply = multiply,
    .first_nonfinite = {first_nonfinite<float>, first_nonfinite<Bf16>, first_nonfinite<Fp16>},
    .add_moments = add_moments,
};
