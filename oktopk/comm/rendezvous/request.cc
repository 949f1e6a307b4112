// SPDX-License-Identifier: Apache-2.0
#include "oktopk/comm/rendezvous/request.h"

#include <algorithm>
#include <array>
#include <span>
#include <string>
#include <thread>

#include "oktopk/base/error.h"
#include "oktopk/comm/transport_support.h"

namespace oktopk {
namespace {

constexpr auto kAskPause = std::chrono::milliseconds(20);

}  // namespace

RendezvousRequest read_request(TcpStream& stream, Deadline deadline) {
  std::array<std::byte, kRequestLengthBytes> length{};
  stream.read_fully(length, deadline);
  std::string text(read_request_length(length.data()), '\0');
  stream.read_fully(std::as_writable_bytes(std::span(text)), deadline);
  return read_request(text);
}

std::unique_ptr<TcpStream> connect_to_server(const ServerStoreOptions& options, Deadline deadline) {
  const TcpTarget target{parse_endpoint(options.address)};
  const TcpIdentity mine{
      .secret = options.secret, .job = options.job, .purpose = TcpPurpose::store, .encrypt = options.encrypt};
  return std::make_unique<TcpStream>(connect_session(target, mine, deadline));
}

RendezvousRequest RendezvousClient::ask(const RendezvousRequest& request, Communicator::Duration wait) {
  const std::lock_guard lock(mutex_);
  const Deadline deadline =
      std::chrono::steady_clock::now() + std::min(wait, kLongestTimeout) + std::min(options_.patience, kLongestTimeout);
  while (true) {
    try {
      return ask_by(request, deadline);
    } catch (const CommError& error) {
      stream_.reset();
      if (std::chrono::steady_clock::now() + kAskPause >= deadline)
        fail<CommError>("the rendezvous at ", options_.address, " cannot be reached: ", error.what());
    }
    std::this_thread::sleep_for(kAskPause);
  }
}

RendezvousRequest RendezvousClient::ask_by(const RendezvousRequest& request, Deadline deadline) {
  const Deadline soon = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  if (stream_ == nullptr) stream_ = connect_to_server(options_, std::min(deadline, soon));
  stream_->write_fully(write_request(request), deadline);
  return read_request(*stream_, deadline);
}

}  // namespace oktopk
