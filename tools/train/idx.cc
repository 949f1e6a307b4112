// SPDX-License-Identifier: Apache-2.0
#include "tools/train/idx.h"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>

#include "oktopk/base/error.h"

namespace oktopk {
namespace {

constexpr int kClasses = 10;
constexpr std::uint32_t kMostSamples = 10'000'000;
constexpr std::uint32_t kLargestSide = 4096;
constexpr std::uint32_t kImageMagic = 0x00000803;  // unsigned bytes, three dimensions
constexpr std::uint32_t kLabelMagic = 0x00000801;
constexpr std::size_t kPiece = 1 << 20;
constexpr double kMean = 0.1307;
constexpr double kDeviation = 0.3081;

// A file that may be compressed; zlib reads both.
class InFile {
 public:
  InFile(const std::string& dir, const std::string& name) : path_(find(dir, name)) {
    file_ = gzopen(path_.c_str(), "rb");
    require(file_ != nullptr, path_, ": cannot be opened");
    gzbuffer(file_, 1 << 17);
  }
  ~InFile() { gzclose_r(file_); }
  InFile(const InFile&) = delete;
  InFile& operator=(const InFile&) = delete;

  const std::string& path() const { return path_; }

  std::uint32_t header_number() {
    std::array<std::uint8_t, 4> b{};
    require(read(b.data(), b.size()) == b.size(), path_, ": ends within its header");
    return std::uint32_t{b[0]} << 24U | std::uint32_t{b[1]} << 16U | std::uint32_t{b[2]} << 8U | b[3];
  }

  // The rest of the file, which must have `count` bytes.
  std::vector<std::uint8_t> rest(std::uint64_t count) {
    std::vector<std::uint8_t> bytes;
    while (bytes.size() < count) {
      const std::size_t before = bytes.size();
      const std::size_t wanted = std::min<std::uint64_t>(kPiece, count - before);
      bytes.resize(before + wanted);
      const std::size_t got = read(bytes.data() + before, wanted);
      require(got == wanted, path_, ": ends after ", before + got, " of the ", count,
              " bytes that its header promises");
    }
    std::uint8_t more = 0;
    require(read(&more, 1) == 0, path_, ": goes on after the ", count, " bytes that its header promises");
    return bytes;
  }

 private:
  static std::string find(const std::string& dir, const std::string& name) {
    for (const char* ending : {"", ".gz"}) {
      const auto path = std::filesystem::path(dir) / (name + ending);
      std::error_code ignored;
      if (std::filesystem::is_regular_file(path, ignored)) return path.string();
    }
    fail<UsageError>("no file ", name, " or ", name, ".gz in '", dir, "'");
  }

  std::size_t read(std::uint8_t* to, std::size_t count) {
    const int got = gzread(file_, to, static_cast<unsigned>(count));
    int code = Z_OK;
    const char* why = gzerror(file_, &code);
    require(code != Z_BUF_ERROR, path_, ": ends within its compressed data");
    require(got >= 0, path_, ": cannot be read: ", why);
    return static_cast<std::size_t>(std::max(got, 0));
  }

  std::string path_;
  gzFile file_ = nullptr;
};

void check_magic(InFile& file, std::uint32_t expected, const char* what) {
  const std::uint32_t magic = file.header_number();
  require(magic == expected, file.path(), ": is not a file of ", what, ": its magic number is ", magic, ", should be ",
          expected);
}

// A number of the header that says what there is how many of.
std::uint32_t checked_number(InFile& file, std::uint32_t most, const char* what) {
  const std::uint32_t number = file.header_number();
  require(number >= 1 && number <= most, file.path(), ": its header promises ", number, " ", what, ": must be 1 to ",
          most);
  return number;
}

void read_images(InFile& file, Dataset& data) {
  check_magic(file, kImageMagic, "images");
  const auto count = checked_number(file, kMostSamples, "images");
  data.shape.height = static_cast<int>(checked_number(file, kLargestSide, "rows"));
  data.shape.width = static_cast<int>(checked_number(file, kLargestSide, "columns"));
  const auto features = static_cast<std::uint64_t>(data.shape.features());
  const auto bytes = file.rest(count * features);
  std::array<float, 256> value{};
  for (std::size_t i = 0; i < value.size(); ++i)
    value[i] = static_cast<float>((static_cast<double>(i) / 255 - kMean) / kDeviation);
  data.inputs.resize(static_cast<Eigen::Index>(features), count);
  std::ranges::transform(bytes, data.inputs.data(), [&](std::uint8_t b) { return value[b]; });
}

void read_labels(InFile& file, Dataset& data) {
  check_magic(file, kLabelMagic, "labels");
  const auto bytes = file.rest(checked_number(file, kMostSamples, "labels"));
  const auto bad = std::ranges::find_if(bytes, [](std::uint8_t b) { return b >= kClasses; });
  require(bad == bytes.end(), file.path(), ": label ", bad - bytes.begin(), " is ", bad == bytes.end() ? 0 : int{*bad},
          ": must be less than ", kClasses);
  data.classes = kClasses;
  data.labels.assign(bytes.begin(), bytes.end());
}

Dataset read_set(const std::string& dir, const std::string& prefix) {
  InFile labels(dir, prefix + "-labels-idx1-ubyte");
  InFile images(dir, prefix + "-images-idx3-ubyte");
  Dataset data;
  read_labels(labels, data);
  read_images(images, data);
  require(static_cast<std::size_t>(data.inputs.cols()) == data.size(), images.path(), " has ", data.inputs.cols(),
          " images, but ", labels.path(), " has ", data.size(), " labels");
  return data;
}

}  // namespace

LearningProblem load_mnist(const std::string& dir) {
  LearningProblem problem{.name = "mnist", .train = read_set(dir, "train"), .test = read_set(dir, "t10k")};
  const Shape& a = problem.train.shape;
  const Shape& b = problem.test.shape;
  require(a == b, "images for training in '", dir, "' are ", a.height, " x ", a.width, ", those for the test ",
          b.height, " x ", b.width);
  return problem;
}

}  // namespace oktopk
