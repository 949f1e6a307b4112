// SPDX-License-Identifier: Apache-2.0
// A member's link to the arbiter of its job, in a RendezvousServer (arbiter.h). A thread of its own says
// several times a second that the member is here, hears whether somebody waits to join, and makes a new connection
// whenever the old one broke: a step never waits for the arbiter.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "oktopk/comm/rendezvous/arbiter.h"
#include "oktopk/comm/rendezvous/request.h"

namespace oktopk {

class MemberLink {
 public:
  struct Options {
    ServerStoreOptions server;    // patience: how long await_epoch() waits
    std::uint64_t least = 1;      // members of the first epoch
    std::function<void()> look;   // TcpOptions::look
    std::function<void()> expel;  // the arbiter has given this member up; called once, from the link's thread
  };

  // UsageError: the address of the server is none.
  explicit MemberLink(Options options);
  // Says goodbye, if the arbiter can be reached.
  ~MemberLink();

  // The first epoch of this member, or the next one. CommError: it was given up, the link was killed, or there was no
  // answer in time.
  void await_epoch(std::uint64_t committed);
  MemberId id() const { return side_.word().id; }
  const Membership& membership() const { return side_.word().last; }

  bool has_joiners();
  std::vector<std::string> take_notes();
  // Ends await_epoch() of another thread, now and later.
  void kill();
  // Goes for good.
  void leave();
  // Closes the descriptor and nothing else.
  void close_in_child() {
    if (stream_ != nullptr) stream_->close();
  }

 private:
  using Lock = std::unique_lock<std::mutex>;
  using Clock = std::chrono::steady_clock;

  void run();
  ArbiterAnswer talk(const MemberWord& word);
  void read_fully(std::span<std::byte> bytes, Deadline deadline);
  void say_goodbye();

  const Options options_;
  const Clock::time_point start_ = Clock::now();
  std::unique_ptr<TcpStream> stream_;  // of the thread
  std::atomic<bool> is_over_ = false;

  std::mutex mutex_;                  // guards what follows
  std::condition_variable changed_;   // the thread waits for the member
  std::condition_variable answered_;  // the member waits for the thread
  MemberSide side_;                   // but its id and membership are read by the member alone
  bool is_killed_ = false;

  std::thread thread_;
};

}  // namespace oktopk
