// SPDX-License-Identifier: Apache-2.0
// The loader on tiny files that the test writes, whole and damaged.
#include "tools/train/idx.h"

#include <gtest/gtest.h>
#include <unistd.h>
#include <zlib.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "oktopk/base/error.h"

namespace oktopk::idx_test {
namespace {

namespace fs = std::filesystem;

const std::string kTrainImages = "train-images-idx3-ubyte";
const std::string kTrainLabels = "train-labels-idx1-ubyte";
const std::string kTestImages = "t10k-images-idx3-ubyte";
const std::string kTestLabels = "t10k-labels-idx1-ubyte";

std::string big_endian(std::uint32_t x) {
  return {static_cast<char>(x >> 24U), static_cast<char>(x >> 16U), static_cast<char>(x >> 8U), static_cast<char>(x)};
}

std::string images(std::uint32_t count, std::uint32_t rows, std::uint32_t columns) {
  std::string pixels;
  for (std::uint32_t i = 0; i < count * rows * columns; ++i) pixels.push_back(static_cast<char>(i * 51));
  return big_endian(0x803) + big_endian(count) + big_endian(rows) + big_endian(columns) + pixels;
}

std::string labels(const std::string& values) {
  return big_endian(0x801) + big_endian(static_cast<std::uint32_t>(values.size())) + values;
}

std::string read_bytes(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// A folder with four good files: three images of 2 x 4 to train on, two to test.
class Idx : public testing::Test {
 protected:
  void SetUp() override {
    const std::string test = testing::UnitTest::GetInstance()->current_test_info()->name();
    dir_ = fs::temp_directory_path() / ("oktopk_idx_" + test + std::to_string(getpid()));
    fs::create_directories(dir_);
    write(kTrainImages, images(3, 2, 4));
    write(kTrainLabels, labels({7, 0, 9}));
    write(kTestImages, images(2, 2, 4));
    write(kTestLabels, labels({1, 2}));
  }
  void TearDown() override { fs::remove_all(dir_); }

  void write(const std::string& name, const std::string& bytes) const {
    std::ofstream(dir_ / name, std::ios::binary) << bytes;
  }
  // Instead of the plain file.
  void write_compressed(const std::string& name, const std::string& bytes) const {
    fs::remove(dir_ / name);
    gzFile file = gzopen((dir_ / (name + ".gz")).c_str(), "wb");
    ASSERT_NE(file, nullptr);
    ASSERT_EQ(gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size())), static_cast<int>(bytes.size()));
    ASSERT_EQ(gzclose(file), Z_OK);
  }
  LearningProblem load() const { return load_mnist(dir_.string()); }
  // Loading fails with a message that has all of `parts`.
  void expect_refused(const std::vector<std::string>& parts) const {
    try {
      load();
      FAIL() << "was loaded, should have said: " << parts.back();
    } catch (const UsageError& e) {
      for (const std::string& part : parts)
        EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << "no '" << part << "' in: " << e.what();
    }
  }

  fs::path dir_;
};

void expect_good(const LearningProblem& problem) {
  EXPECT_EQ(problem.name, "mnist");
  EXPECT_EQ(problem.train.shape, (Shape{1, 2, 4}));
  EXPECT_EQ(problem.train.classes, 10);
  EXPECT_EQ(problem.train.labels, (std::vector{7, 0, 9}));
  EXPECT_EQ(problem.test.labels, (std::vector{1, 2}));
  ASSERT_EQ(problem.train.inputs.rows(), 8);
  ASSERT_EQ(problem.train.inputs.cols(), 3);
  ASSERT_EQ(problem.test.inputs.cols(), 2);
  for (int i = 0; i < 24; ++i)
    EXPECT_NEAR(problem.train.inputs(i % 8, i / 8), (i * 51 % 256 / 255.0 - 0.1307) / 0.3081, 1e-6);
}

TEST_F(Idx, load_plain_files_gives_their_samples) { expect_good(load()); }

TEST_F(Idx, load_compressed_files_gives_the_same) {
  for (const auto& name : {kTrainImages, kTrainLabels, kTestImages, kTestLabels})
    write_compressed(name, read_bytes(dir_ / name));
  expect_good(load());
}

TEST_F(Idx, load_mixture_of_plain_and_compressed_gives_the_same) {
  write_compressed(kTrainLabels, labels({7, 0, 9}));
  expect_good(load());
}

TEST_F(Idx, load_missing_file_names_what_was_looked_for) {
  for (const auto& name : {kTrainImages, kTrainLabels, kTestImages, kTestLabels}) {
    fs::rename(dir_ / name, dir_ / "away");
    expect_refused({name, name + ".gz", dir_.string()});
    fs::rename(dir_ / "away", dir_ / name);
  }
  dir_ /= "nowhere";
  expect_refused({"nowhere"});
  dir_ = dir_.parent_path();
}

TEST_F(Idx, load_bad_magic_throws) {
  write(kTrainImages, labels({1, 2, 3}));
  expect_refused({kTrainImages, "magic", "2049", "2051"});
  write(kTrainImages, images(3, 2, 4));
  write(kTestLabels, images(3, 2, 4));
  expect_refused({kTestLabels, "magic", "2051", "2049"});
}

TEST_F(Idx, load_any_short_file_throws) {
  for (const auto& name : {kTrainImages, kTrainLabels, kTestImages, kTestLabels}) {
    const std::string good = read_bytes(dir_ / name);
    for (std::size_t size = 0; size < good.size(); ++size) {
      write(name, good.substr(0, size));
      expect_refused({name, "ends"});
    }
    write(name, good);
  }
  expect_good(load());
}

TEST_F(Idx, load_any_short_compressed_file_throws) {
  write_compressed(kTrainImages, images(3, 2, 4));
  const std::string name = kTrainImages + ".gz";
  const std::string good = read_bytes(dir_ / name);
  for (std::size_t size = 0; size < good.size(); ++size) {
    write(name, good.substr(0, size));
    expect_refused({name, "ends within"});
  }
}

TEST_F(Idx, load_damaged_compressed_file_throws) {
  write_compressed(kTrainImages, images(3, 2, 4));
  const std::string name = kTrainImages + ".gz";
  std::string bytes = read_bytes(dir_ / name);
  bytes[bytes.size() - 6] ^= 1;  // its checksum
  write(name, bytes);
  expect_refused({name, "cannot be read"});
}

TEST_F(Idx, load_file_that_is_too_long_throws) {
  write(kTestImages, images(2, 2, 4) + "x");
  expect_refused({kTestImages, "goes on"});
}

// Must neither take that much memory nor that much time.
TEST_F(Idx, load_header_that_promises_too_much_throws) {
  const std::string magic = big_endian(0x803);
  write(kTrainImages, magic + big_endian(9999999) + big_endian(4096) + big_endian(4096) + "abc");
  expect_refused({kTrainImages, "ends after 3 of the 167772143222784 bytes"});
  write(kTrainImages, magic + big_endian(0xFFFFFFFF) + big_endian(2) + big_endian(4));
  expect_refused({kTrainImages, "4294967295 images"});
  write(kTrainImages, magic + big_endian(3) + big_endian(0) + big_endian(4));
  expect_refused({kTrainImages, "0 rows"});
  write(kTrainImages, magic + big_endian(3) + big_endian(2) + big_endian(70000));
  expect_refused({kTrainImages, "70000 columns"});
  write(kTrainImages, images(3, 2, 4));
  write(kTrainLabels, big_endian(0x801) + big_endian(0));
  expect_refused({kTrainLabels, "0 labels"});
}

TEST_F(Idx, load_other_number_of_labels_than_images_throws) {
  write(kTrainLabels, labels({7, 0}));
  expect_refused({kTrainImages, "3 images", kTrainLabels, "2 labels"});
}

TEST_F(Idx, load_label_of_ten_throws) {
  write(kTestLabels, labels({1, 10}));
  expect_refused({kTestLabels, "label 1 is 10"});
}

TEST_F(Idx, load_images_of_other_size_to_test_throws) {
  write(kTestImages, images(2, 4, 2));
  expect_refused({"2 x 4", "4 x 2"});
}

}  // namespace
}  // namespace oktopk::idx_test
