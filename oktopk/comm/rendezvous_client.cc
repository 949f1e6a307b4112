// SPDX-License-Identifier: Apache-2.0
#include "oktopk/comm/rendezvous_client.h"

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

RendezvousClient::RendezvousClient(const ServerStoreOptions& options) : options_(options) {
  target_.endpoint = parse_endpoint(options.address);
}

Deadline RendezvousClient::deadline_after(Communicator::Duration wait) const {
  return std::chrono::steady_clock::now() + std::min(wait, kLongestTimeout) +
         std::min(options_.patience, kLongestTimeout);
}

RendezvousRequest RendezvousClient::ask_once(const RendezvousRequest& request, Communicator::Duration wait) {
  const std::lock_guard lock(mutex_);
  try {
    return ask_by(request, deadline_after(wait));
  } catch (const CommError& error) {
    stream_.reset();
    fail<CommError>("the rendezvous at ", options_.address, ": ", error.what());
  }
}

RendezvousRequest RendezvousClient::ask(const RendezvousRequest& request, Communicator::Duration wait) {
  const std::lock_guard lock(mutex_);
  const Deadline deadline = deadline_after(wait);
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

void RendezvousClient::close() {
  const std::lock_guard lock(mutex_);
  stream_.reset();
}

RendezvousRequest RendezvousClient::ask_by(const RendezvousRequest& request, Deadline deadline) {
  if (stream_ == nullptr) {
    const TcpIdentity mine{
        .secret = options_.secret, .job = options_.job, .purpose = TcpPurpose::store, .encrypt = options_.encrypt};
    const Deadline soon = std::chrono::steady_clock::now() + std::chrono::seconds(5);
    stream_ = std::make_unique<TcpStream>(connect_session(target_, mine, std::min(deadline, soon)));
  }
  stream_->write_fully(write_request(request), deadline);
  std::array<std::byte, kRequestLengthBytes> length{};
  stream_->read_fully(length, deadline);
  std::string text(read_request_length(length.data()), '\0');
  stream_->read_fully(std::as_writable_bytes(std::span(text)), deadline);
  return read_request(text);
}

}  // namespace oktopk
