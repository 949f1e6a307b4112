// SPDX-License-Identifier: Apache-2.0
// Runs a target without libFuzzer: on every file of the given folders, and on variants of each, which a fixed seed
// makes: flipped bits, changed bytes, pieces that are missing, repeated or cut off. replay COUNT FOLDER...
// Exit status: 0; 2, with a line on stderr, where the arguments are unfit. A target that finds a fault aborts.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "fuzz/target.h"
#include "oktopk/base/random.h"

namespace {

using oktopk::Random;
using Data = std::vector<std::uint8_t>;

void run(const Data& data) { LLVMFuzzerTestOneInput(data.data(), data.size()); }

void change(Data& data, Random& random) {
  if (data.empty()) return;
  const std::size_t at = random.below(data.size());
  const std::size_t length = std::min<std::size_t>(1 + random.below(8), data.size() - at);
  const auto begin = data.begin() + static_cast<std::ptrdiff_t>(at);
  const auto end = begin + static_cast<std::ptrdiff_t>(length);
  switch (random.below(5)) {
    case 0:
      data[at] ^= static_cast<std::uint8_t>(1U << random.below(8));
      break;
    case 1:
      std::fill(begin, end, static_cast<std::uint8_t>(random.below(3) * 0x7f + random.below(2)));
      break;
    case 2:
      data.erase(begin, end);
      break;
    case 3: {
      const Data piece(begin, end);
      data.insert(begin, piece.begin(), piece.end());
      break;
    }
    default:
      data.resize(at);
  }
}

Data read(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  return Data(std::istreambuf_iterator<char>(in), {});
}

[[noreturn]] void refuse(const std::string& what) {
  std::fprintf(stderr, "replay: %s\nusage: replay COUNT FOLDER...\n", what.c_str());
  std::exit(2);
}

long count_of(const std::string& text) {
  char* end = nullptr;
  const long count = std::strtol(text.c_str(), &end, 10);
  if (text.empty() || *end != '\0' || count < 0) refuse("COUNT is \"" + text + "\", but it must be a number from 0 on");
  return count;
}

// An empty corpus is a mistake.
std::vector<std::filesystem::path> files_of(const std::string& folder) {
  std::error_code trouble;
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder, trouble)) files.push_back(entry.path());
  if (trouble) refuse("the folder \"" + folder + "\" cannot be read: " + trouble.message());
  if (files.empty()) refuse("the folder \"" + folder + "\" has no files");
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

int main(int count, char** values) {
  if (count < 3) refuse("COUNT and at least one FOLDER are needed");
  const long variants = count_of(values[1]);
  std::vector<std::filesystem::path> files;
  for (int i = 2; i < count; ++i)
    for (auto& file : files_of(values[i])) files.push_back(std::move(file));
  for (const auto& file : files) {
    const Data data = read(file);
    run(data);
    Random random(17, data.size());
    for (long v = 0; v < variants; ++v) {
      Data variant = data;
      for (std::uint64_t changes = 1 + random.below(4); changes > 0; --changes) change(variant, random);
      run(variant);
    }
  }
  std::printf("%zu files, %ld variants of each\n", files.size(), variants);
}
