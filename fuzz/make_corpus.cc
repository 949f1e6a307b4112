// SPDX-License-Identifier: Apache-2.0
// Writes the seed corpus: make_corpus FOLDER makes FOLDER/<target>/ with small legal inputs of each target. The results
// are committed in fuzz/corpus; inputs that found something stand beside them.
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

#include "fuzz/subjects.h"
#include "fuzz/target.h"
#include "oktopk/allreduce/parts/slot_messages.h"
#include "oktopk/base/error.h"
#include "oktopk/tune/profile.h"
#include "tests/codec/samples.h"

namespace {

using namespace oktopk;

class Folder {
 public:
  Folder(const std::filesystem::path& root, const std::string& target) : path_(root / target) {
    std::filesystem::create_directories(path_);
  }
  template <class... Heads>
  void write(const std::string& name, std::span<const std::byte> bytes, Heads... heads) const {
    std::ofstream out(path_ / name, std::ios::binary);
    (out.write(reinterpret_cast<const char*>(&heads), sizeof(heads)), ...);
    out.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  }

 private:
  std::filesystem::path path_;
};

std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

void write_frames(const Folder& folder) {
  testing::Random random(1);
  const Range range{1000, 1300};
  for (const Codec codec : testing::every_codec()) {
    const bool is_all = codec.index == IndexCoding::all;
    const SparseVector entries = testing::random_entries(range, is_all ? 2 : 0.1, random);
    const auto codings = static_cast<std::uint8_t>(static_cast<int>(codec.index) + 16 * static_cast<int>(codec.value));
    folder.write(testing::test_name(codec), testing::encoded(codec, range, entries), codings, range.begin, range.end);
  }
  const std::vector<float> dense(300, 1.5F);
  Bytes out;
  encode_dense_frame({Codec{}, range, 0}, dense, out);
  folder.write("dense", out, std::uint8_t{0}, range.begin, range.end);
}

void write_states(const Folder& folder) {
  for (unsigned kind = 0; kind < fuzz::kSubjectKinds; ++kind)
    for (unsigned preset = 0; preset < presets().size(); preset += kind == 0 ? 1 : 4) {
      fuzz::Subject subject(kind, preset);
      for (int i = 0; i < 3; ++i) subject.step();
      for (unsigned all = 0; all < 2; ++all)
        folder.write(text_of("kind", kind, "_", preset, all == 0 ? "" : "_all"), subject.save(),
                     static_cast<std::uint8_t>(kind + all * fuzz::kSubjectKinds), static_cast<std::uint8_t>(preset));
    }
}

void write_slots(const Folder& folder) {
  const std::uint16_t n = 9999, k = 200;
  const SlotStep step{slots::Deal::of(n + 1, 2), k + 1U, 3, 5};
  SparseVector places, rest;
  for (Index i = 5; i < 5000; i += 41) places.push_back(i, static_cast<float>(i) / 64 - 30);
  std::vector<std::uint32_t> message(step.words());
  SlotWriter().write(step, places, slots::kLeastBound, message, rest);
  const std::uint8_t P = 1, number = 3;
  for (const std::uint8_t corrects : {std::uint8_t{0}, std::uint8_t{1}})
    folder.write(corrects == 0 ? "as_sent" : "corrected", std::as_bytes(std::span(message)), n, P, k, number, corrects);
}

void write_collectives(const Folder& folder) {
  const std::string zeros(600, '\0');
  for (std::uint8_t P = 0; P < 6; ++P)
    for (std::uint8_t kind = 0; kind < 3; ++kind)
      for (std::uint16_t choice = 0; choice < (kind == 0 ? 2 : 10); ++choice) {
        std::string messages;
        for (int i = 0; i < 12; ++i) messages += std::string("\x0b\x00", 2) + "\x0a" + std::string(10, 'x');
        folder.write(text_of("p", P + 2, "_", int{kind}, "_", choice), bytes_of(choice % 2 == 0 ? messages : zeros), P,
                     std::uint8_t{1}, kind, static_cast<std::uint16_t>(kind == 0 ? 20 + choice : choice));
      }
}

void write_texts(const Folder& folder) {
  folder.write("profile", bytes_of(to_json(Profile{})), std::uint8_t{0});
  folder.write(
      "rules",
      bytes_of(
          "dense:n<64K;circulant[codec=elias_fano+bf16,skips=8,4,2,1,group=1]:n>=1M,density=0.001..0.02,P=8;oktopk"),
      std::uint8_t{1});
  folder.write("codec", bytes_of("elias_fano+bf16"), std::uint8_t{2});
  folder.write("skips", bytes_of("8,4,2,1"), std::uint8_t{3});
  folder.write("radix", bytes_of("radix:3"), std::uint8_t{3});
}

}  // namespace

int main(int count, char** values) {
  if (count != 2) {
    std::fprintf(stderr, "usage: make_corpus FOLDER\n");
    return 2;
  }
  write_frames({values[1], "frame"});
  write_states({values[1], "state"});
  write_slots({values[1], "slots"});
  write_collectives({values[1], "collectives"});
  write_texts({values[1], "text"});
  return 0;
}
