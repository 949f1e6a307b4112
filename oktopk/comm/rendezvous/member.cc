// SPDX-License-Identifier: Apache-2.0
#include "oktopk/comm/rendezvous/member.h"

#include <poll.h>

#include <algorithm>
#include <array>
#include <span>
#include <utility>

#include "oktopk/base/error.h"
#include "oktopk/comm/rendezvous/times.h"
#include "oktopk/comm/tcp/crypto.h"
#include "oktopk/comm/transport_support.h"

namespace oktopk {
namespace {

using namespace rendezvous;
using std::chrono::milliseconds;

// An arbiter that could never be reached is given up then: its address is wrong.
constexpr auto kStartTime = std::chrono::seconds(5);
constexpr auto kConnectTime = std::chrono::seconds(2);
constexpr auto kGoodbyeTime = milliseconds(500);
// How often a wait looks whether it is over.
constexpr auto kSlice = milliseconds(100);

std::uint64_t random_token() {
  std::uint64_t token = 0;
  while (token == 0) fill_random(std::as_writable_bytes(std::span(&token, 1)));
  return token;
}

}  // namespace

MemberLink::MemberLink(Options options)
    : options_(std::move(options)), side_({.token = random_token(), .least = options_.least}) {
  parse_endpoint(options_.server.address);  // its UsageError would end the process in the thread
  thread_ = std::thread([this] { run(); });
}

MemberLink::~MemberLink() {
  leave();
  if (thread_.joinable()) thread_.join();
}

void MemberLink::leave() {
  const Lock lock(mutex_);
  is_over_ = true;
  changed_.notify_all();
}

void MemberLink::kill() {
  const Lock lock(mutex_);
  is_killed_ = true;
  answered_.notify_all();
}

bool MemberLink::has_joiners() {
  const Lock lock(mutex_);
  return side_.has_joiners(Clock::now());
}

std::vector<std::string> MemberLink::take_notes() {
  const Lock lock(mutex_);
  return side_.take_notes();
}

void MemberLink::await_epoch(std::uint64_t committed) {
  Lock lock(mutex_);
  const Clock::time_point deadline = Clock::now() + std::min(options_.server.patience, kLongestTimeout);
  side_.want_epoch(committed);
  changed_.notify_all();
  while (side_.waits()) {
    if (is_killed_) fail<CommError>("tcp: this member was closed");
    const bool is_there = side_.was_ever_heard() || Clock::now() < start_ + kStartTime;
    if (Clock::now() >= deadline || !is_there)
      fail<CommError>("the rendezvous at ", options_.server.address, ": ", side_.why_it_waits());
    answered_.wait_until(lock, std::min(deadline, Clock::now() + kSlice));
    if (!options_.look) continue;
    lock.unlock();
    options_.look();
    lock.lock();
  }
  if (!side_.refusal().empty()) fail<CommError>("tcp: this member is not in the next epoch: ", side_.refusal());
}

void MemberLink::run() {
  Lock lock(mutex_);
  auto pause = kFirstPause;
  while (!is_over_ && side_.refusal().empty()) {
    const MemberWord word = side_.next_word();
    std::string trouble;
    ArbiterAnswer answer;
    lock.unlock();
    try {
      answer = talk(word);
    } catch (const CommError& error) {
      trouble = error.what();
      stream_.reset();
    }
    lock.lock();
    if (is_over_) break;
    if (trouble.empty()) {
      pause = kFirstPause;
      side_.hear(word, answer, Clock::now());
      answered_.notify_all();
      const std::size_t crowds = 1 + side_.word().last.ids.size() / 64;
      changed_.wait_for(lock, crowds * kWordPause, [&] { return is_over_ || side_.waits(); });
    } else {
      side_.miss(trouble, Clock::now());
      changed_.wait_for(lock, pause, [&] { return is_over_.load(); });
      pause = std::min(2 * pause, kLongestPause);
    }
  }
  const bool is_refused = !side_.refusal().empty();
  lock.unlock();
  if (!is_refused) return say_goodbye();
  if (options_.expel) options_.expel();
}

// The arbiter answers a member that waits when it has decided, or after a while.
ArbiterAnswer MemberLink::talk(const MemberWord& word) {
  if (stream_ == nullptr) stream_ = connect_to_server(options_.server, Clock::now() + kConnectTime);
  stream_->write_fully(write_request({.kind = RequestKind::member, .value = write_word(word)}),
                       Clock::now() + kReplyTime);
  const Deadline deadline = Clock::now() + kReplyTime;
  std::array<std::byte, kRequestLengthBytes> length{};
  read_fully(length, deadline);
  std::string text(read_request_length(length.data()), '\0');
  read_fully(std::as_writable_bytes(std::span(text)), deadline);
  const RendezvousRequest reply = read_request(text);
  using enum ArbiterAnswer::Kind;
  if (reply.kind == RequestKind::wait) return {.why = reply.value, .candidates = reply.number};
  if (reply.kind == RequestKind::refused) return {.kind = refused, .why = reply.value};
  if (reply.kind != RequestKind::membership) fail<CommError>("sent a reply that there is not");
  return {.kind = membership, .id = reply.number, .membership = read_membership(reply.value)};
}

// In slices: the member may go at any time.
void MemberLink::read_fully(std::span<std::byte> bytes, Deadline deadline) {
  while (!bytes.empty()) {
    const std::size_t count = stream_->read(bytes);
    bytes = bytes.subspan(count);
    if (count > 0) continue;
    if (is_over_) fail<CommError>("tcp: this member was closed");
    if (Clock::now() >= deadline) fail<CommError>("did not answer within ", in_seconds(kReplyTime), " s");
    pollfd entry{stream_->fd(), POLLIN, 0};
    ::poll(&entry, 1, static_cast<int>(kSlice.count()));
  }
}

// Waits for the end of the connection: the arbiter has then read the word.
void MemberLink::say_goodbye() {
  if (stream_ == nullptr) return;
  MemberWord word = side_.next_word();
  word.want = MemberWord::Want::leave;
  const Deadline deadline = Clock::now() + kGoodbyeTime;
  try {
    stream_->write_fully(write_request({.kind = RequestKind::member, .value = write_word(word)}), deadline);
    stream_->end_writing();
    std::array<std::byte, 256> rest{};
    while (true) stream_->read_fully(rest, deadline);
  } catch (const CommError&) {
    stream_.reset();
  }
}

}  // namespace oktopk
