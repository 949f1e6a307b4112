// SPDX-License-Identifier: Apache-2.0
// The rows of `oktopk-lab kernels`: passes over all n elements, sums and trims of k entries, codings and frames.
#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <utility>

#include "lab/kernels/kernel_bench.h"
#include "oktopk/codec/codec.h"
#include "oktopk/codec/coding.h"
#include "oktopk/codec/frame.h"
#include "oktopk/reduce/synchroniser.h"
#include "oktopk/select/selector.h"
#include "oktopk/sparse/sum.h"
#include "oktopk/sparse/top.h"

namespace oktopk {
namespace {

constexpr double kEntryBytes = sizeof(Index) + sizeof(float);

// A row whose measure is the time per entry.
KernelRow entry_row(std::string kernel, double entry_bytes, std::size_t entries, std::size_t code_bytes = 0) {
  const auto count = static_cast<double>(entries);
  return {.kernel = std::move(kernel),
          .bytes = entry_bytes * count,
          .entries = count,
          .bits = 8 * static_cast<double>(code_bytes) / count,
          .limit = "copy"};
}

}  // namespace

// Gradients are added in one call and taken away in the next.
void KernelBench::add_passes() {
  const double n = data_.n;
  SparseVector out;
  Uninitialised<float> acc;
  float sign = 1;
  const auto add_fused = [&](const char* name, Gradient gradient, std::span<const Index> cleared = {}) {
    acc = data_.x;
    sign = 1;
    add({.kernel = name, .bytes = (8.0 + static_cast<double>(size_of(gradient.type()))) * n, .limit = "axpy"}, [&] {
      device_->accumulate_select({acc, gradient, std::exchange(sign, -sign), cleared}, threshold_, out);
    });
  };
  add({.kernel = "threshold scan", .bytes = 4 * n, .limit = "read"}, [&] {
    out.clear();
    device_->select_at_least(data_.x, 0, threshold_, out);
  });
  add_fused("fused accumulate+select fp32", data_.gradient);
  add_fused("fused, clearing k", data_.gradient, selection_.idx);
  add_fused("fused accumulate+select bf16", data_.bf16);
  add_fused("fused accumulate+select fp16", data_.fp16);
  acc = data_.x;
  sign = 1;
  add({.kernel = "exact top-k", .bytes = 4 * n, .limit = "read"},
      [&] { select_exact(*device_, {.acc = acc}, k_, out); });
  add({.kernel = "exact top-k, fused", .bytes = 12 * n, .limit = "axpy"}, [&] {
    select_exact(*device_, {acc, data_.gradient, std::exchange(sign, -sign)}, k_, out);
  });
  add({.kernel = "finite check", .bytes = 4 * n, .limit = "read"},
      [&] { sink_ += static_cast<float>(device_->first_nonfinite(data_.x)); });
  add({.kernel = "accumulate", .bytes = 12 * n, .limit = "axpy"}, [&] {
    device_->accumulate({acc, data_.gradient, std::exchange(sign, -sign)});
  });
}

// On a stream with error feedback: two gradients come and go, and selected entries are cleared.
void KernelBench::add_selectors() {
  constexpr int kSettle = 12;  // steps until a threshold has found its place
  for (const SelectorInfo& info : selectors()) {
    const auto selector = make_selector(info.name, {.P = 4});
    Uninitialised<float> acc(data_.n, 0.0F);
    SparseVector out;
    int turn = 0;
    const auto step = [&] {
      const auto& gradient = turn % 2 == 0 ? data_.x : data_.gradient;
      const float sign = turn++ % 4 < 2 ? 1.0F : -1.0F;
      selector->select(*device_, {acc, gradient, sign}, k_, out);
    };
    const auto clear = [&] { device_->clear_at(acc, 0, out.idx); };
    for (int i = 0; i < kSettle; ++i) {
      step();
      clear();
    }
    add({.kernel = "selector " + std::string(info.name), .bytes = 12.0 * data_.n, .limit = "axpy"}, step, clear);
  }
}

// Selection by the standard library.
void KernelBench::add_baselines() {
  SparseVector out;
  const auto collect = [&](float threshold) {
    out.clear();
    for (std::size_t i = 0; i < data_.x.size(); ++i)
      if (std::fabs(data_.x[i]) >= threshold) out.push_back(static_cast<Index>(i), data_.x[i]);
  };
  Uninitialised<float> magnitudes(data_.n);
  add({.kernel = "std::nth_element", .bytes = 4.0 * data_.n, .limit = "read"}, [&] {
    std::transform(data_.x.begin(), data_.x.end(), magnitudes.begin(), [](float v) { return std::fabs(v); });
    const auto kth = magnitudes.begin() + static_cast<std::ptrdiff_t>(k_ - 1);
    std::nth_element(magnitudes.begin(), kth, magnitudes.end(), std::greater<>());
    collect(*kth);
  });
  add({.kernel = "std scan, push_back", .bytes = 4.0 * data_.n, .limit = "read"}, [&] { collect(threshold_); });
}

void KernelBench::add_sparse() {
  SparseVector out;
  // An owner's sum: P parts of about k/P entries within n/P indices. Each part is another region of the selection,
  // moved to the place of the first one.
  for (const Index P : {2U, 4U, 8U, 16U, 64U}) {
    const Index width = data_.n / P;
    if (width == 0) continue;
    std::vector<SparseVector> parts(P);
    std::size_t entries = 0;
    for (Index p = 0; p < P; ++p) {
      parts[p].append(part(selection_, {p * width, (p + 1) * width}));
      for (Index& i : parts[p].idx) i -= p * width;
      entries += parts[p].size();
    }
    const std::vector<CooView> views(parts.begin(), parts.end());
    add(entry_row("reduce P=" + std::to_string(P), kEntryBytes, entries), [&] { sum(views, {0, width}, out); });
  }
  SparseVector all;
  Uninitialised<float> acc = data_.x;
  select_exact(*device_, {.acc = acc}, std::min<std::size_t>(data_.n, k_ + (k_ + 9) / 10), all);
  add(
      entry_row("trim 1.1k to k", kEntryBytes, all.size()), [&] { keep_largest(out, k_); },
      [&] {
        out.clear();
        out.append(all);
      });
  DenseMean mean(data_.n);
  bool odd = false;
  add(entry_row("dense mean", kEntryBytes, (selection_.size() + next_.size()) / 2), [&] {
    odd = !odd;
    sink_ += mean.show({.sparse = odd ? selection_ : next_})[0];
  });
}

// Each index and value coding alone.
void KernelBench::add_codings() {
  for (std::size_t i = 0; i < index_codings().size(); ++i) {
    const auto coding = static_cast<IndexCoding>(i);
    const IndexCodec& codec = index_codec(coding);
    Uninitialised<Index> indices = selection_.idx;
    Range range{0, data_.n};
    if (coding == IndexCoding::all) {  // it has every index of its range
      range.end = static_cast<Index>(indices.size());
      std::iota(indices.begin(), indices.end(), 0U);
    }
    Bytes code, out;
    codec.encode(indices, range, code);
    const std::string name = "index " + std::string(index_codings()[i].name);
    add(entry_row(name + " encode", sizeof(Index), indices.size(), code.size()), [&] {
      out.clear();
      codec.encode(indices, range, out);
    });
    add(entry_row(name + " decode", sizeof(Index), indices.size(), code.size()),
        [&] { codec.decode(code, range, indices); });
  }
  for (std::size_t i = 0; i < value_codings().size(); ++i) {
    const ValueCodec& codec = value_codec(static_cast<ValueCoding>(i));
    Uninitialised<float> values = selection_.val;
    Bytes code(codec.bytes(values.size()));
    codec.encode(values, code);
    const std::string name = "value " + std::string(value_codings()[i].name);
    add(entry_row(name + " encode", sizeof(float), values.size(), code.size()),
        [&] { codec.encode(selection_.val, code); });
    add(entry_row(name + " decode", sizeof(float), values.size(), code.size()), [&] { codec.decode(code, values); });
  }
}

void KernelBench::add_frames() {
  for (const std::string codec :
       {"coo32+fp32", "bit_packed+fp32", "elias_fano+fp32", "elias_fano+bf16", "elias_fano+log8"}) {
    const FrameSpec spec{.codec = parse_codec(codec), .range = {0, data_.n}};
    Bytes code, out;
    encode_frame(spec, selection_, code);
    const Frame opened = open_frame(code, spec);
    SparseVector decoded, error;
    const auto add_verb = [&](const char* verb, const Body& body) {
      add(entry_row("frame " + codec + verb, kEntryBytes, selection_.size(), code.size()), body);
    };
    add_verb(" encode", [&] {
      out.clear();
      error.clear();
      encode_frame(spec, selection_, out, &error);
    });
    add_verb(" open", [&] { sink_ += static_cast<float>(open_frame(code, spec).count); });
    add_verb(" decode", [&] {
      decoded.clear();
      decode_frame(opened, decoded);
    });
  }
}

}  // namespace oktopk
