// SPDX-License-Identifier: Apache-2.0
// The kernels of elements, written once over `Lanes`, the primitives of one level. x86.cc includes this file
// in the namespace of each level, after it has defined Lanes and OKTOPK_TARGET (attributes, which templates over a type
// could not carry); so there is no include guard. Elements that fill no vector are left to the scalar kernels.

// NOLINTBEGIN(misc-definitions-in-headers): this is no header in the usual sense.
constexpr std::size_t kWidth = Lanes::kWidth;

// Words are put together in registers: one that was stored in pieces could not be loaded as a whole
// before all pieces have reached the cache.
constexpr std::size_t kWord = 64;
inline std::size_t whole_words(std::size_t n) { return n / kWord * kWord; }

OKTOPK_TARGET void mark(std::span<const float> x, std::uint32_t bound, std::uint64_t* marks) {
  const std::size_t end = whole_words(x.size());
  const auto least = Lanes::bound(bound);
  for (std::size_t i = 0; i < end; i += kWord) {
    std::uint64_t word = 0;
    for (std::size_t j = 0; j < kWord; j += kWidth)
      word |= std::uint64_t{Lanes::at_least(Lanes::load(x.data() + i + j), least)} << j;
    marks[i / kWord] = word;
  }
  if (end < x.size()) kScalarElements.mark(x.subspan(end), bound, marks + end / kWord);
}

template <class T>
OKTOPK_TARGET inline auto accumulated(float* acc, const T* gradient, float scale) {
  const auto sum = Lanes::load(acc) + scale * Lanes::widen(gradient);
  Lanes::store(acc, sum);
  return sum;
}

template <class T>
OKTOPK_TARGET void accumulate_mark(std::span<float> acc, const Addend& add, std::uint32_t bound, std::uint64_t* marks) {
  const T* gradient = static_cast<const T*>(add.gradient);
  const std::size_t end = whole_words(acc.size());
  const auto least = Lanes::bound(bound);
  const float scale = add.scale;
  for (std::size_t i = 0; i < end; i += kWord) {
    std::uint64_t word = 0;
    for (std::size_t j = i; j < i + kWord; j += kWidth)
      word |= std::uint64_t{Lanes::at_least(accumulated(acc.data() + j, gradient + j, scale), least)} << (j - i);
    marks[i / kWord] = word;
  }
  if (end == acc.size()) return;
  kScalarElements.accumulate_mark[static_cast<std::size_t>(float_type<T>())](
      acc.subspan(end), {gradient + end, add.scale}, bound, marks + end / kWord);
}

constexpr ElementKernels kElements = {
    .mark = mark,
    .accumulate_mark = {accumulate_mark<float>, accumulate_mark<Bf16>, accumulate_mark<Fp16>},
    .emit = emit,
    .accumulate = {accumulate<float>, accumulate<Bf16>, accumulate<Fp16>},
    .multiply = multiply,
    .first_nonfinite = {first_nonfinite<float>, first_nonfinite<Bf16>, first_nonfinite<Fp16>},
    .add_moments = add_moments,
};
// NOLINTEND(misc-definitions-in-headers)
