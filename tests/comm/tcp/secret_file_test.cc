// SPDX-License-Identifier: Apache-2.0
// The secret of a job from a file: who may read it, and which lines are no secret.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "oktopk/base/error.h"
#include "oktopk/comm/transports.h"
#include "tests/support/message.h"

namespace oktopk::secret_file_test {
namespace {

const std::string kSecret = "0123456789abcdef";

class SecretFile : public testing::Test {
 protected:
  ~SecretFile() override { std::filesystem::remove(path_); }

  const std::string& write(const std::string& text, mode_t mode = 0600) {
    std::ofstream(path_, std::ios::binary) << text;
    EXPECT_EQ(chmod(path_.c_str(), mode), 0);
    return path_;
  }
  void expect_refused(const std::string& text) {
    expect_error("secret file " + path_ + ": " + text, [&] { read_secret_file(path_); });
  }

  const std::string path_ = testing::TempDir() + "oktopk-secret-" + std::to_string(getpid());
};

TEST_F(SecretFile, first_line_is_the_secret) {
  for (const mode_t mode : {0600, 0400}) {
    EXPECT_EQ(read_secret_file(write(kSecret + "\nrest", mode)), kSecret);
    EXPECT_EQ(read_secret_file(write(kSecret, mode)), kSecret);
  }
  const std::string longest(4096, 'x');
  EXPECT_EQ(read_secret_file(write(longest + "\n")), longest);
}

TEST_F(SecretFile, file_that_others_may_read_or_write_is_refused_with_its_mode) {
  for (const auto& [mode, text] : {std::pair{0640, "0640"}, {0604, "0604"}, {0620, "0620"}, {0644, "0644"}}) {
    write(kSecret, static_cast<mode_t>(mode));
    expect_refused(std::string("its mode is ") + text);
  }
}

// A link has mode 0777 itself, as in a mounted secret of Kubernetes: the file counts.
TEST_F(SecretFile, permissions_are_those_of_the_file_behind_a_link) {
  const std::string link = write(kSecret) + "-link";
  std::filesystem::create_symlink(path_, link);
  EXPECT_EQ(read_secret_file(link), kSecret);
  std::filesystem::remove(link);
}

// A secret that root mounted for a group: 0440 is as close as it can be.
TEST_F(SecretFile, file_of_another_user_may_be_readable_by_its_group) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can give a file away";
  ASSERT_EQ(chown(write(kSecret, 0440).c_str(), 65534, 0), 0);
  EXPECT_EQ(read_secret_file(path_), kSecret);
  for (const mode_t mode : {0444, 0460}) {
    write(kSecret, mode);
    expect_refused("its mode is 04");
  }
}

TEST_F(SecretFile, line_that_is_no_secret_is_refused_by_name) {
  expect_refused("it cannot be read");
  const std::pair<std::string, const char*> kBad[] = {
      {"", "its first line is empty"},
      {"\n" + kSecret, "its first line is empty"},
      {"short\n", "its first line has 5 bytes"},
      {std::string(100'000, 'x'), "its first line has more than 4096 bytes"},
      {"01234567" + std::string(1, '\0') + "89abcdefghijkl\n", "byte 8 of its first line is 0"},
      {kSecret + "\r\n", "byte 16 of its first line is 13"},
  };
  for (const auto& [text, words] : kBad) {
    write(text);
    expect_refused(words);
  }
}

TEST_F(SecretFile, folder_is_refused) { EXPECT_THROW(read_secret_file(testing::TempDir()), UsageError); }

}  // namespace
}  // namespace oktopk::secret_file_test
