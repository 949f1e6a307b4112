// SPDX-License-Identifier: Apache-2.0
// Any text where people write one: profiles as JSON, rules of preset auto, names of codecs and lists of skips. Only
// UsageError may come of it; a text that is read and written again means the same.
#include <string>

#include "fuzz/target.h"
#include "oktopk/base/error.h"
#include "oktopk/codec/codec.h"
#include "oktopk/comm/skips.h"
#include "oktopk/tune/profile.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace oktopk;
  fuzz::Input input(data, size);
  const unsigned choice = input.take() % 4;
  const std::string text = input.text();
  try {
    if (choice == 0) {
      const std::string written = to_json(profile_from_json(text, "input"));
      fuzz::check(to_json(profile_from_json(written, "written")) == written);
    }
    if (choice == 1) {
      const Overrides rules = Overrides::parse(text);
      fuzz::check(Overrides::parse(to_string(rules)) == rules);
    }
    if (choice == 2) {
      const Codec codec = parse_codec(text);
      fuzz::check(parse_codec(to_string(codec)) == codec);
    }
    if (choice == 3) parse_skips(text, 1 + static_cast<int>(size % 40));
  } catch (const UsageError&) {
  }
  return 0;
}
