// SPDX-License-Identifier: Apache-2.0
// Reads the secret of a job from a file that no stranger can read or write (transports.h). The permissions are those
// of the file that was opened, whatever links led there.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <ios>
#include <system_error>

#include "oktopk/base/error.h"
#include "oktopk/comm/transports.h"

namespace oktopk {
namespace {

constexpr std::size_t kMostSecretBytes = 4096;

struct File {
  explicit File(int opened) : fd(opened) {}
  ~File() {
    if (fd >= 0) ::close(fd);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  const int fd;
};

// The user's own file is for the user alone. A file of somebody else (root, for example) may be readable by a group of
// this user, because there is no other way to read it.
void check_permissions(int fd, const std::string& path) {
  struct stat found {};
  require(::fstat(fd, &found) == 0, "secret file ", path, ": its permissions cannot be read");
  const unsigned mode = found.st_mode & 07777U;
  const bool is_own = found.st_uid == ::geteuid();
  require((mode & (is_own ? 077U : 037U)) == 0, "secret file ", path, ": its mode is 0", std::oct, mode,
          ", must give its group", is_own ? "" : " at most reading", " and others nothing; run: chmod ",
          is_own ? "600 " : "440 ", path, " (a secret volume of Kubernetes: defaultMode: 0400)");
}

// The first line, without its end, as far as kMostSecretBytes.
std::string read_line(int fd, const std::string& path) {
  std::string line;
  char byte = 0;
  while (line.size() <= kMostSecretBytes) {
    const auto count = ::read(fd, &byte, 1);
    if (count < 0 && errno == EINTR) continue;
    require(count >= 0, "secret file ", path, ": it cannot be read: ", std::generic_category().message(errno));
    if (count == 0 || byte == '\n') break;
    line += byte;
  }
  return line;
}

// An environment variable cannot carry a NUL, nor a Python string any byte: a secret is text.
void check_secret(const std::string& secret, const std::string& path) {
  for (std::size_t i = 0; i < secret.size(); ++i) {
    const auto byte = static_cast<unsigned char>(secret[i]);
    require(byte >= 0x20 && byte < 0x7f, "secret file ", path, ": byte ", i, " of its first line is ",
            static_cast<unsigned>(byte), ", must be printable ASCII (head -c 32 /dev/urandom | base64)");
  }
  require(!secret.empty(), "secret file ", path, ": its first line is empty");
  require(secret.size() >= kLeastSecretBytes, "secret file ", path, ": its first line has ", secret.size(),
          " bytes, must have at least ", kLeastSecretBytes);
  require(secret.size() <= kMostSecretBytes, "secret file ", path, ": its first line has more than ", kMostSecretBytes,
          " bytes");
}

}  // namespace

std::string read_secret_file(const std::string& path) {
  const File file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  require(file.fd >= 0, "secret file ", path, ": it cannot be read: ", std::generic_category().message(errno));
  check_permissions(file.fd, path);
  std::string secret = read_line(file.fd, path);
  check_secret(secret, path);
  return secret;
}

}  // namespace oktopk
