// SPDX-License-Identifier: Apache-2.0
// Loops that the compiler turns into vector code by itself, written once. Each level includes this file in a
// namespace of its own, after it has defined OKTOPK_TARGET (the instructions that functions may use) and kRowLanes
// (32-bit lanes of a register); so there is no include guard. The loops work on integers, and on floats without any sum
// that could be reordered: all levels give the same bits.

// NOLINTBEGIN(misc-definitions-in-headers): this is no header in the usual sense.

// Codings

typedef std::uint32_t Row __attribute__((vector_size(4 * kRowLanes)));

OKTOPK_TARGET inline bool increases(const std::uint32_t* idx, std::size_t count) {
  std::uint32_t wrong = 0;
  for (std::size_t i = 1; i < count; ++i) wrong |= idx[i - 1] < idx[i] ? 0U : 1U;
  return wrong == 0;
}

OKTOPK_TARGET inline std::uint32_t gaps(const std::uint32_t* idx, std::size_t count, std::uint32_t next,
                                        std::uint32_t* gaps) {
  std::uint32_t any = gaps[0] = idx[0] - next;
  for (std::size_t i = 1; i < count; ++i) {
    gaps[i] = idx[i] - idx[i - 1] - 1;
    any |= gaps[i];
  }
  return any;
}

// Lane j of word k of the block is at 16 * k + j: every lane packs its own 32 fields.
OKTOPK_TARGET inline void pack(const std::uint32_t* fields, unsigned width, std::byte* out) {
  if (width == 0) return;  // `out` may be null
  for (std::size_t lane = 0; lane < kFieldLanes; lane += kRowLanes) {
    std::byte* to = out + sizeof(std::uint32_t) * lane;
    Row word = {};
    unsigned used = 0;
    for (std::size_t i = lane; i < kFieldBlock; i += kFieldLanes) {
      Row field;
      std::memcpy(&field, fields + i, sizeof field);
      word |= field << used;
      used += width;
      if (used < 32) continue;
      std::memcpy(to, &word, sizeof word);
      to += sizeof(std::uint32_t) * kFieldLanes;
      used -= 32;
      word = used == 0 ? Row{} : field >> (width - used);
    }
  }
}

OKTOPK_TARGET inline void unpack(const std::byte* from, unsigned width, std::uint32_t* fields) {
  if (width == 0) {
    std::memset(fields, 0, sizeof(std::uint32_t) * kFieldBlock);
    return;
  }
  const auto mask = static_cast<std::uint32_t>((std::uint64_t{1} << width) - 1);
  for (std::size_t lane = 0; lane < kFieldLanes; lane += kRowLanes) {
    const std::byte* at = from + sizeof(std::uint32_t) * lane;
    unsigned used = 0;
    for (std::size_t i = lane; i < kFieldBlock; i += kFieldLanes) {
      Row word;
      std::memcpy(&word, at, sizeof word);
      Row field = word >> used;
      used += width;
      if (used >= 32) {
        at += sizeof(std::uint32_t) * kFieldLanes;
        used -= 32;
        if (used != 0) {
          std::memcpy(&word, at, sizeof word);
          field |= word << (width - used);
        }
      }
      field &= mask;
      std::memcpy(fields + i, &field, sizeof field);
    }
  }
}

OKTOPK_TARGET inline void join(const HighBits& high, std::uint32_t* low, std::size_t count) {
  const HighBits h = high;
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint32_t part = h.ones[i] - h.first - static_cast<std::uint32_t>(i);
    low[i] = h.begin + ((part << h.low_width) | low[i]);
  }
}

OKTOPK_TARGET inline void to_bf16(const float* val, std::size_t count, std::byte* out) {
  for (std::size_t i = 0; i < count; ++i) {
    const Bf16 half = oktopk::to_bf16(val[i]);
    std::memcpy(out + sizeof half * i, &half, sizeof half);
  }
}

template <bool adds>
OKTOPK_TARGET inline bool read_bf16(const std::byte* from, std::size_t count, float* val) {
  std::uint32_t wrong = 0;
  for (std::size_t i = 0; i < count; ++i) {
    Bf16 half;
    std::memcpy(&half, from + sizeof half * i, sizeof half);
    wrong |= (half.bits & 0x7F80u) == 0x7F80u ? 1u : 0u;
    val[i] = adds ? val[i] + to_float(half) : to_float(half);
  }
  return wrong == 0;
}

OKTOPK_TARGET inline bool split_bf16(float* val, std::size_t count, std::byte* out) {
  std::uint32_t wrong = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const Bf16 half = oktopk::to_bf16(val[i]);
    wrong |= (std::bit_cast<std::uint32_t>(val[i]) & 0x7F800000u) == 0x7F800000u ? 1u : 0u;
    std::memcpy(out + sizeof half * i, &half, sizeof half);
    val[i] -= to_float(half);
  }
  return wrong == 0;
}

OKTOPK_TARGET inline Extremes extremes(const float* val, std::size_t count, std::int32_t floor) {
  std::int32_t least = INT32_MAX;
  std::int32_t most = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const std::int32_t bits = std::bit_cast<std::int32_t>(val[i]) & INT32_MAX;
    // All ones if below: as a condition it would keep the compiler from vectorising.
    const std::int32_t counted = bits | (((bits - floor) >> 31) & INT32_MAX);
    least = counted < least ? counted : least;
    most = bits > most ? bits : most;
  }
  return {least, most};
}

// The logarithm is a polynomial within 2e-5 that is exact at powers of two: far finer than the
// levels, which have 10 significant bits.
OKTOPK_TARGET inline void log_codes(const LogQuantiser& quantiser, const float* val, std::size_t count,
                                    std::uint8_t* codes) {
  const LogQuantiser q = quantiser;
  for (std::size_t i = 0; i < count; ++i) {
    const auto bits = std::bit_cast<std::uint32_t>(val[i]);
    const auto magnitude = static_cast<std::int32_t>(bits & 0x7FFFFFFFu);
    const float m = std::bit_cast<float>((bits & 0x007FFFFFu) | 0x3F800000u) - 1.0f;
    const float bulge = 0.44191694f + m * (-0.26717863f + m * (0.14842493f + m * -0.04514793f));
    const auto octaves = static_cast<float>((magnitude >> 23) - q.low_exponent);
    const float log = octaves + (m + m * (1.0f - m) * bulge - q.low_fraction);
    float level = log * q.per_octave + q.rounding;
    level = level > 0.0f ? level : 0.0f;
    level = level < q.steps ? level : q.steps;
    std::int32_t code = static_cast<std::int32_t>(level) + q.first;
    code = magnitude > q.zero ? code : 0;
    codes[i] = static_cast<std::uint8_t>(code | static_cast<std::int32_t>((bits >> 31) << q.sign_bit));
  }
}
// Elements

// Words of marks that are not zero are queued without a branch; most have one or two ones, which are written without
// asking. COST: about 1 ns per entry.
OKTOPK_TARGET inline std::size_t emit(const float* tile, const Marks& marks, std::uint32_t base, CooSink to,
                                      const float* next) {
  constexpr std::size_t kLine = 64 / sizeof(float);
  std::array<std::uint32_t, kTile / 64 + 1> queue;
  std::size_t queued = 0;
  for (std::uint32_t w = 0; w < marks.size(); ++w) {
    queue[queued] = w;
    queued += static_cast<std::size_t>(marks[w] != 0);
  }
  std::size_t count = 0;
  for (std::size_t q = 0; q < queued; ++q) {
    if (next != nullptr) {
      for (int line = 0; line < 4; ++line) __builtin_prefetch(next + kLine * line);
      next += 4 * kLine;
    }
    const std::uint32_t first = 64 * queue[q];
    std::uint64_t word = marks[queue[q]];
    const auto ones = static_cast<std::size_t>(std::popcount(word));
    std::uint32_t* const idx = to.idx + count;
    float* const val = to.val + count;
    std::uint32_t i = first + static_cast<std::uint32_t>(std::countr_zero(word));
    idx[0] = base + i;
    val[0] = tile[i];
    word &= word - 1;
    i = first + static_cast<std::uint32_t>(std::countr_zero(word)) % 64;
    idx[1] = base + i;
    val[1] = tile[i];
    word &= word - 1;
    for (std::size_t at = 2; word != 0; ++at, word &= word - 1) {
      i = first + static_cast<std::uint32_t>(std::countr_zero(word));
      idx[at] = base + i;
      val[at] = tile[i];
    }
    count += ones;
  }
  return count;
}

inline std::uint32_t bits_of(float x) { return std::bit_cast<std::uint32_t>(x); }
inline std::uint16_t bits_of(Bf16 x) { return x.bits; }
inline std::uint16_t bits_of(Fp16 x) { return x.bits; }

template <class T>
OKTOPK_TARGET inline void accumulate(std::span<float> acc, const Addend& add) {
  const T* __restrict gradient = static_cast<const T*>(add.gradient);
  float* __restrict to = acc.data();
  const float scale = add.scale;
  for (std::size_t i = 0; i < acc.size(); ++i) to[i] += scale * to_float(gradient[i]);
}

OKTOPK_TARGET inline void multiply(std::span<float> x, float factor) {
  for (float& v : x) v *= factor;
}

// A value is not finite if and only if all bits of its exponent are set. Whole blocks are looked at first.
template <class T>
OKTOPK_TARGET inline std::size_t first_nonfinite(const void* x, std::size_t n) {
  using Bits = decltype(bits_of(T{}));
  constexpr std::array<std::uint32_t, 3> kExponents = {kInfinityBits, 0x7f80U, 0x7c00U};
  constexpr auto kExponent = static_cast<Bits>(kExponents[static_cast<std::size_t>(float_type<T>())]);
  constexpr std::size_t kBlock = 1024 / sizeof(T);
  const T* values = static_cast<const T*>(x);
  std::size_t i = 0;
  for (; i + kBlock <= n; i += kBlock) {
    Bits most = 0;
    for (std::size_t j = 0; j < kBlock; ++j) {
      const auto exponent = static_cast<Bits>(bits_of(values[i + j]) & kExponent);
      most = exponent > most ? exponent : most;
    }
    if (most == kExponent) break;
  }
  while (i < n && (bits_of(values[i]) & kExponent) != kExponent) ++i;
  return i;
}

OKTOPK_TARGET inline void add_moments(std::span<const float> x, MomentLanes& lanes) {
  const std::size_t whole = x.size() / MomentLanes::kLanes * MomentLanes::kLanes;
  MomentLanes sums = lanes;
  const auto add = [&](std::size_t lane, double v) {
    sums.sum[lane] += v;
    sums.squares[lane] += v * v;
  };
  for (std::size_t i = 0; i < whole; i += MomentLanes::kLanes)
    for (std::size_t lane = 0; lane < MomentLanes::kLanes; ++lane) add(lane, x[i + lane]);
  for (std::size_t i = whole; i < x.size(); ++i) add(i - whole, x[i]);
  lanes = sums;
}

// NOLINTEND(misc-definitions-in-headers)
