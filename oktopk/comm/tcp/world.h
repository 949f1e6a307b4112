// SPDX-License-Identifier: Apache-2.0
// All connections of one rank of transport "tcp", shared by its communicator and the parts of split(). One lock guards
// everything; it is not held during poll(). A thread that waits in await() drives the sockets itself (the leader;
// others wait for it), so that a message costs no change of threads. While nobody waits, the background thread does;
// it also sends signs of life and misses those of peers.
#pragma once

#include <poll.h>

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "oktopk/base/process_mark.h"
#include "oktopk/comm/communicator.h"
#include "oktopk/comm/tcp/frame.h"
#include "oktopk/comm/tcp/link.h"
#include "oktopk/comm/tcp/socket.h"

namespace oktopk {

struct TcpWorldOptions {
  int rank = 0;
  std::uint64_t host = 0;
  Communicator::Duration timeout{};
  Communicator::Duration silence{};
  FrameTags tags;
  std::size_t early_bytes = 0;
  std::function<void()> look;  // TcpOptions::look
};

class TcpWorld {
 public:
  // In a child of fork() it stays in memory, and only its descriptors are closed.
  static std::shared_ptr<TcpWorld> make(const TcpWorldOptions& options, std::vector<TcpSession> sessions);
  // sessions[r] is the connection with rank r; the own one is unused.
  TcpWorld(const TcpWorldOptions& options, std::vector<TcpSession> sessions);
  // Says goodbye, or why it died, and waits for at most kLinger until all peers have heard it.
  ~TcpWorld();
  TcpWorld(const TcpWorld&) = delete;
  TcpWorld& operator=(const TcpWorld&) = delete;

  static constexpr auto kLinger = std::chrono::seconds(2);

  int rank() const { return options_.rank; }
  Communicator::Duration timeout() const { return options_.timeout; }
  bool is_forked() const { return mark_.is_forked(); }
  std::uint64_t host_of(int rank) const;

  // Starts the sends and receives of the slots. CommError if the world is dead.
  void start(TcpOperation& operation);
  // Returns when the operation is complete. CommError if the world dies first; its buffers are then free.
  void await(TcpOperation& operation);
  // Ends every present and later wait on all ranks.
  void kill(const std::string& reason);
  // The communicator of this channel ends.
  void leave(std::uint64_t channel, const std::vector<int>& members);
  void close_in_child();

 private:
  using Lock = std::unique_lock<std::mutex>;
  using Clock = std::chrono::steady_clock;

  // A thread that polls.
  struct Poller {
    WakePipe pipe;
    std::vector<pollfd> entries;
    std::vector<TcpLink*> links;  // of entries[1], entries[2], ...
    bool is_polling = false;
  };
  // Messages of this rank to itself.
  struct OwnQueue {
    Fifo<TcpSlot*> sends, recvs;
  };

  void post(TcpSlot& slot);
  void post_to_self(TcpSlot& slot);
  void push_out(TcpOperation& operation);
  bool turn(Lock& lock, Poller& poller, Clock::time_point until);
  void fill(Poller& poller);
  void handle(Poller& poller);
  template <class Act>
  void guard(TcpLink& link, Act act);
  void die(int culprit, const std::string& reason);
  void wake();
  bool read_awaited(const TcpOperation& operation);
  // `active`: when the wait began, or something came or went.
  void wait_once(Lock& lock, const TcpOperation& operation, Clock::time_point& active, Clock::time_point deadline);
  void time_out(const TcpOperation& operation);
  void look(Lock& lock);
  [[noreturn]] void throw_dead() const;

  void run_background();
  void beat();
  bool has_ended() const;

  const ProcessMark mark_;
  const TcpWorldOptions options_;
  std::vector<std::unique_ptr<TcpLink>> links_;  // by rank; null for this one

  std::mutex mutex_;                   // guards what follows, and the links
  std::condition_variable followers_;  // waits while another thread leads
  std::condition_variable idle_;       // the background thread, while others lead
  Poller leader_, background_;
  bool has_leader_ = false;
  int waiters_ = 0;
  std::uint64_t exchanges_ = 0;            // that began or ended
  std::map<std::uint64_t, OwnQueue> own_;  // by channel
  bool dead_ = false;
  std::string reason_;
  bool is_ending_ = false;
  Clock::time_point end_;                 // of the wait for peers at the end
  std::vector<Clock::time_point> heard_;  // by rank: the last sign of life
  Clock::time_point last_beat_;

  std::thread thread_;  // runs run_background()
};

}  // namespace oktopk
