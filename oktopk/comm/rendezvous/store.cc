// SPDX-License-Identifier: Apache-2.0
// The clients' side of a rendezvous: files, or a server that is reached over a connection.
#include "oktopk/comm/transports.h"

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>
#include <thread>

#include "oktopk/base/error.h"
#include "oktopk/base/hash.h"
#include "oktopk/comm/rendezvous/request.h"
#include "oktopk/comm/tcp/crypto.h"
#include "oktopk/comm/transport_support.h"

namespace oktopk {
namespace {

namespace fs = std::filesystem;
using StoreClock = std::chrono::steady_clock;

constexpr auto kStorePause = std::chrono::milliseconds(20);

class FileStore {
 public:
  explicit FileStore(const std::string& directory) : directory_(directory) {
    std::error_code code;
    fs::create_directories(directory_, code);
    require(fs::is_directory(directory_), "rendezvous: \"", directory, "\" is no directory and cannot be made");
  }

  // Written under another name first: a reader sees all of it or nothing.
  void set(const std::string& key, const std::string& value) const {
    Key random{};
    fill_random(random);
    const fs::path file = path_of(key);
    const fs::path draft = file.string() + text_of(".", hash_bytes(random));
    std::ofstream(draft, std::ios::binary) << value;
    std::error_code code;
    fs::rename(draft, file, code);
    if (code) fail<CommError>("rendezvous: cannot write ", file.string(), ": ", code.message());
  }

  std::optional<std::string> get(const std::string& key, Communicator::Duration timeout) const {
    const auto deadline = StoreClock::now() + std::min(timeout, kLongestTimeout);
    while (true) {
      if (std::ifstream in(path_of(key), std::ios::binary); in)
        return std::string(std::istreambuf_iterator<char>(in), {});
      else if (errno == EMFILE || errno == ENFILE)
        fail<CommError>("rendezvous: cannot read ", path_of(key).string(), ": ", std::generic_category().message(errno),
                        " (ulimit -n)");
      if (StoreClock::now() >= deadline) return std::nullopt;
      std::this_thread::sleep_for(kStorePause);
    }
  }

  void remove(const std::string& key) const {
    std::error_code code;
    fs::remove(path_of(key), code);
  }

 private:
  fs::path path_of(std::string key) const {
    std::ranges::replace(key, '/', '_');
    return directory_ / key;
  }

  fs::path directory_;
};

}  // namespace

void RefusalLog::add(std::string reason) {
  const std::lock_guard lock(mutex_);
  ++count_;
  if (last_.size() == kMostReasons) last_.erase(last_.begin());
  last_.push_back(std::move(reason));
}

std::uint64_t RefusalLog::count() const {
  const std::lock_guard lock(mutex_);
  return count_;
}

std::vector<std::string> RefusalLog::last() const {
  const std::lock_guard lock(mutex_);
  return last_;
}

KeyValueStore make_file_store(const std::string& directory) {
  const auto files = std::make_shared<FileStore>(directory);
  return {[files](const std::string& key, const std::string& value) { files->set(key, value); },
          [files](const std::string& key, Communicator::Duration timeout) { return files->get(key, timeout); },
          [files](const std::string& key) { files->remove(key); }};
}

KeyValueStore make_server_store(const ServerStoreOptions& options) {
  const auto server = std::make_shared<RendezvousClient>(options);
  const auto set = [server](const std::string& key, const std::string& value) {
    server->ask({.kind = RequestKind::set, .key = key, .value = value}, Communicator::Duration::zero());
  };
  const auto get = [server](const std::string& key, Communicator::Duration timeout) -> std::optional<std::string> {
    timeout = std::min(timeout, kLongestTimeout);
    const auto wait = static_cast<std::uint64_t>(std::chrono::ceil<std::chrono::milliseconds>(timeout).count());
    RendezvousRequest reply = server->ask({.kind = RequestKind::get, .number = wait, .key = key}, timeout);
    if (reply.kind != RequestKind::value) return std::nullopt;
    return std::move(reply.value);
  };
  return {set, get, {}};
}

std::string make_random_secret() {
  constexpr std::string_view kDigits = "0123456789abcdef";
  Key random{};
  fill_random(random);
  std::string text;
  for (const std::byte byte : random) {
    text += kDigits[static_cast<std::size_t>(byte >> 4)];
    text += kDigits[static_cast<std::size_t>(byte & std::byte{15})];
  }
  return text;
}

}  // namespace oktopk
