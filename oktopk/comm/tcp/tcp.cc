// SPDX-License-Identifier: Apache-2.0
// Transport "tcp" (transports.h): a communicator is one channel of a TcpWorld. Operations are pooled, so that a warm
// communicator starts exchanges without allocating.
#include "oktopk/comm/transports.h"

#include <poll.h>

#include <algorithm>
#include <array>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "oktopk/base/error.h"
#include "oktopk/base/hash.h"
#include "oktopk/base/process_mark.h"
#include "oktopk/comm/communicator.h"
#include "oktopk/comm/tcp/link.h"
#include "oktopk/comm/tcp/mesh.h"
#include "oktopk/comm/tcp/socket.h"
#include "oktopk/comm/transport_support.h"

namespace oktopk {
namespace {

// How long a thread that waits polls without sleeping since something came or went; it gives its core away in between.
constexpr auto kSpinTime = std::chrono::microseconds(50);
// The background thread keeps away from the sockets until no exchange has begun or ended for so long: a message that
// woke it would cost a change of threads, and the lock.
constexpr auto kQuietTime = std::chrono::milliseconds(2);
// Signs of life per `silence`.
constexpr int kBeatsPerSilence = 8;

struct TcpWorldOptions {
  int rank = 0;
  std::uint64_t host = 0;
  Communicator::Duration timeout{};
  Communicator::Duration silence{};
  FrameTags tags;
  std::size_t early_bytes = 0;
  std::function<void()> look;  // TcpOptions::look
};

// All connections of one rank of transport "tcp", shared by its communicator and the parts of split(). One lock guards
// everything; it is not held during poll(). A thread that waits in await() drives the sockets itself (the leader;
// others wait for it), so that a message costs no change of threads. While nobody waits, the background thread does;
// it also sends signs of life and misses those of peers.
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

std::shared_ptr<TcpWorld> TcpWorld::make(const TcpWorldOptions& options, std::vector<TcpSession> sessions) {
  return {new TcpWorld(options, std::move(sessions)), [](TcpWorld* world) {
            if (world->is_forked())
              world->close_in_child();
            else
              delete world;
          }};
}

TcpWorld::TcpWorld(const TcpWorldOptions& options, std::vector<TcpSession> sessions)
    : options_(options), last_beat_(Clock::now()) {
  for (std::size_t r = 0; r < sessions.size(); ++r) {
    const int peer = static_cast<int>(r);
    heard_.push_back(last_beat_);
    links_.push_back(peer == options.rank ? nullptr
                                          : std::make_unique<TcpLink>(
                                                std::move(sessions[r]),
                                                TcpLinkOptions{options.tags, options.rank, peer, options.early_bytes}));
  }
  if (links_.size() > 1) thread_ = std::thread([this] { run_background(); });
}

TcpWorld::~TcpWorld() {
  {
    const Lock lock(mutex_);
    for (const auto& link : links_) {
      if (link == nullptr || dead_) continue;
      link->tell(FrameKind::goodbye);
      link->end();
    }
    is_ending_ = true;
    end_ = Clock::now() + kLinger;
    wake();
  }
  if (thread_.joinable()) thread_.join();
}

std::uint64_t TcpWorld::host_of(int rank) const {
  return rank == options_.rank ? options_.host : links_[static_cast<std::size_t>(rank)]->host();
}

void TcpWorld::start(TcpOperation& operation) {
  const Lock lock(mutex_);
  if (dead_) throw_dead();
  ++exchanges_;
  operation.open = operation.slots.size();
  for (TcpSlot& slot : operation.slots) {
    if (dead_) return;  // await() says why
    post(slot);
  }
  push_out(operation);
}

void TcpWorld::post(TcpSlot& slot) {
  if (slot.peer == options_.rank) return post_to_self(slot);
  TcpLink& link = *links_[static_cast<std::size_t>(slot.peer)];
  guard(link, [&] { slot.recv == nullptr ? link.send(slot) : link.receive(slot); });
}

void TcpWorld::post_to_self(TcpSlot& slot) {
  OwnQueue& queue = own_[slot.channel];
  const bool is_send = slot.recv == nullptr;
  (is_send ? queue.sends : queue.recvs).push(&slot);
  if (queue.sends.empty() || queue.recvs.empty()) return;
  TcpSlot& send = *queue.sends.pop();
  TcpSlot& recv = *queue.recvs.pop();
  if (send.source.size() > recv.recv->buffer.size())
    return die(options_.rank, text_of("rank ", options_.rank, " received ", send.source.size(),
                                      " bytes from itself, capacity ", recv.recv->buffer.size()));
  std::copy(send.source.begin(), send.source.end(), recv.recv->buffer.begin());
  recv.recv->size = send.source.size();
  complete(send);
  complete(recv);
}

// Sends what the connections take at once, and reads what waited for these receives.
void TcpWorld::push_out(TcpOperation& operation) {
  bool is_changed = false;
  for (const TcpSlot& slot : operation.slots) {
    if (dead_) return;
    if (slot.peer == options_.rank) continue;
    TcpLink& link = *links_[static_cast<std::size_t>(slot.peer)];
    if (link.wants_write()) guard(link, [&] { link.write(); });
    const bool reads = slot.recv != nullptr && link.has_more();
    if (reads) guard(link, [&] { link.read(); });
    is_changed = is_changed || reads || link.wants_write() || link.has_more();  // others may wait for what was read
  }
  if (is_changed) wake();
}

void TcpWorld::await(TcpOperation& operation) {
  Lock lock(mutex_);
  if (operation.open == 0) return;
  ++waiters_;
  Clock::time_point active = Clock::now();
  const auto deadline = active + options_.timeout;
  auto next_look = options_.look ? active + kLookTime : deadline;
  while (operation.open > 0 && !dead_) {
    wait_once(lock, operation, active, std::min(deadline, next_look));
    if (operation.open == 0 || dead_) break;
    const auto now = Clock::now();
    if (now >= deadline) time_out(operation);
    if (now < next_look || now >= deadline) continue;
    next_look = now + kLookTime;
    look(lock);
  }
  --waiters_;
  ++exchanges_;
  if (waiters_ == 0 && background_.is_polling &&
      std::ranges::any_of(links_, [](const auto& link) { return link != nullptr && link->wants_write(); }))
    background_.pipe.wake();  // it has to look for room to write, too
  if (operation.open > 0) throw_dead();
}

// A single message that is awaited may be there already: reading costs less than asking whether to read.
bool TcpWorld::read_awaited(const TcpOperation& operation) {
  if (operation.open != 1) return false;
  const auto at = std::ranges::find_if(operation.slots, &TcpSlot::is_open);
  if (at->recv == nullptr || at->peer == options_.rank) return false;
  TcpLink& link = *links_[static_cast<std::size_t>(at->peer)];
  if (link.wants_read()) guard(link, [&] { link.read(); });
  return operation.open == 0;
}

void TcpWorld::wait_once(Lock& lock, const TcpOperation& operation, Clock::time_point& active,
                         Clock::time_point deadline) {
  if (has_leader_) {
    followers_.wait_until(lock, deadline);
    return;
  }
  const auto now = Clock::now();
  const bool spins = now - active < kSpinTime;
  if (spins && read_awaited(operation)) return;
  has_leader_ = true;
  if (turn(lock, leader_, spins ? now : deadline)) {
    active = Clock::now();
  } else if (spins) {
    lock.unlock();
    std::this_thread::yield();
    lock.lock();
  }
  has_leader_ = false;
  followers_.notify_all();
}

void TcpWorld::time_out(const TcpOperation& operation) {
  std::vector<int> silent;
  for (const TcpSlot& slot : operation.slots)
    if (slot.is_open) silent.push_back(slot.peer);
  const int first = *std::ranges::min_element(silent);
  die(first, text_of("rank ", options_.rank, ": ", no_answer(options_.timeout, std::move(silent))));
}

// Without the lock: the caller's function may take as long as it likes.
void TcpWorld::look(Lock& lock) {
  lock.unlock();
  try {
    options_.look();
  } catch (...) {
    lock.lock();
    --waiters_;
    die(options_.rank, text_of("rank ", options_.rank, " was interrupted"));
    throw;
  }
  lock.lock();
}

// Threads of the parent may have held the lock, and changed everything but the descriptors.
void TcpWorld::close_in_child() {
  for (const auto& link : links_)
    if (link != nullptr) link->close_in_child();
  leader_.pipe.close();
  background_.pipe.close();
}

void TcpWorld::kill(const std::string& reason) {
  const Lock lock(mutex_);
  die(options_.rank, reason);
}

void TcpWorld::leave(std::uint64_t channel, const std::vector<int>& members) {
  const Lock lock(mutex_);
  own_.erase(channel);
  for (const int member : members) {
    TcpLink* const link = links_[static_cast<std::size_t>(member)].get();
    if (link == nullptr || dead_) continue;
    link->close_channel(channel);
    guard(*link, [&] { link->write(); });
  }
}

void TcpWorld::throw_dead() const { fail<CommError>("tcp: rank ", options_.rank, ": the world is dead: ", reason_); }

// Polls and handles what came, until `until` at most; whether there was anything. The background thread leaves it to
// others if there are any.
bool TcpWorld::turn(Lock& lock, Poller& poller, Clock::time_point until) {
  fill(poller);
  const bool has_more = std::ranges::any_of(poller.links, [](const TcpLink* link) { return link->has_more(); });
  const int timeout = has_more ? 0 : milliseconds_until(until);
  poller.is_polling = true;
  lock.unlock();
  const int count = ::poll(poller.entries.data(), static_cast<nfds_t>(poller.entries.size()), timeout);
  lock.lock();
  poller.is_polling = false;
  if (count <= 0 && !has_more) return false;
  if (poller.entries[0].revents != 0) poller.pipe.drain();
  if (&poller == &background_ && waiters_ > 0) return true;
  handle(poller);
  return true;
}

void TcpWorld::fill(Poller& poller) {
  poller.entries.clear();
  poller.links.clear();
  poller.entries.push_back({poller.pipe.fd(), POLLIN, 0});
  for (const auto& link : links_) {
    if (link == nullptr || link->has_ended()) continue;
    const int events = (link->wants_read() ? POLLIN : 0) | (link->wants_write() ? POLLOUT : 0);
    if (events == 0) continue;
    poller.entries.push_back({link->fd(), static_cast<short>(events), 0});
    poller.links.push_back(link.get());
  }
}

void TcpWorld::handle(Poller& poller) {
  for (std::size_t i = 0; i < poller.links.size(); ++i) {
    TcpLink& link = *poller.links[i];
    const int events = poller.entries[i + 1].revents;
    if ((events & (POLLIN | POLLHUP | POLLERR)) != 0 || link.has_more()) guard(link, [&] { link.read(); });
    if (link.wants_write()) guard(link, [&] { link.write(); });
  }
}

// An error of a connection is the end of the world.
template <class Act>
void TcpWorld::guard(TcpLink& link, Act act) {
  try {
    act();
  } catch (const TcpFailure& failure) {
    die(failure.culprit, failure.what());
  } catch (const CommError& error) {
    const auto at = std::ranges::find(links_, &link, [](const auto& one) { return one.get(); });
    die(static_cast<int>(at - links_.begin()), text_of(link.name(), " ", error.what()));
  } catch (const std::exception& error) {
    die(options_.rank, text_of("rank ", options_.rank, " failed: ", error.what()));
  }
}

// Frees all buffers, tells all peers, and wakes all threads. The first reason stays.
void TcpWorld::die(int culprit, const std::string& reason) {
  if (dead_) return;
  dead_ = true;
  reason_ = reason;
  own_.clear();
  for (const auto& link : links_) {
    if (link == nullptr) continue;
    link->die(culprit, reason);
    guard(*link, [&] { link->write(); });
  }
  followers_.notify_all();
  wake();
}

void TcpWorld::wake() {
  if (leader_.is_polling) leader_.pipe.wake();
  if (background_.is_polling) background_.pipe.wake();
  if (is_ending_) idle_.notify_all();
}

bool TcpWorld::has_ended() const {
  return std::ranges::all_of(links_, [](const auto& link) { return link == nullptr || link->has_ended(); });
}

void TcpWorld::run_background() {
  Lock lock(mutex_);
  std::uint64_t seen = 0;
  while (!is_ending_ || (!has_ended() && Clock::now() < end_)) {
    const bool is_quiet = waiters_ == 0 && std::exchange(seen, exchanges_) == exchanges_;
    if (!is_quiet && !is_ending_) {
      idle_.wait_for(lock, kQuietTime);
    } else {
      const auto next = last_beat_ + options_.silence / kBeatsPerSilence;
      turn(lock, background_, is_ending_ ? std::min(next, end_) : next);
    }
    beat();
  }
}

// Sends signs of life where nothing else was sent, and looks who has been silent for too long.
void TcpWorld::beat() {
  const auto now = Clock::now();
  const auto pause = options_.silence / kBeatsPerSilence;
  if (now < last_beat_ + pause) return;
  const bool slept = now > last_beat_ + options_.silence / 2;  // this process was stopped: peers may not be
  last_beat_ = now;
  for (std::size_t r = 0; r < links_.size(); ++r) {
    TcpLink* const link = links_[r].get();
    if (link == nullptr || dead_) continue;
    if (link->take_heard() || slept) heard_[r] = now;
    if (!link->take_sent() && !link->wants_write()) {
      link->tell(FrameKind::heartbeat);
      guard(*link, [&] { link->write(); });
    }
    if (now - heard_[r] > options_.silence)
      die(static_cast<int>(r), text_of(link->name(), " has been silent for ", in_seconds(options_.silence),
                                       " s: it is stopped, overloaded or cut off"));
  }
}

class TcpCommunicator final : public Communicator {
 public:
  TcpCommunicator(std::shared_ptr<TcpWorld> world, std::vector<int> members, int rank, std::uint64_t channel)
      : world_(std::move(world)), members_(std::move(members)), rank_(rank), channel_(channel) {}

  ~TcpCommunicator() override {
    if (is_forked()) {
      leak(std::move(operations_));  // a thread of the parent may have been changing them
      return;
    }
    expel();
    operations_.for_each_taken([&](std::uint64_t ticket) { TcpCommunicator::abandon(ticket); });
    world_->leave(channel_, members_);
  }

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(members_.size()); }
  std::string_view transport() const override { return "tcp"; }
  Duration timeout() const override { return world_->timeout(); }

  std::unique_ptr<Communicator> split(int color, int key) override {
    Part part = agree_on_part(*this, color, key, 0);
    const std::vector<int> ranks = part.ranks;  // of this communicator
    for (int& rank : part.ranks) rank = to_world(rank);
    // A number that the members share and that no other channel between them has.
    const std::array<std::uint64_t, 3> name{channel_, ++splits_, static_cast<std::uint64_t>(part.ranks.front())};
    const std::uint64_t channel = hash_bytes(std::as_bytes(std::span(name)));
    return as_part(std::make_unique<TcpCommunicator>(world_, std::move(part.ranks), part.rank, channel), color, ranks);
  }

  int host() override {
    const std::uint64_t mine = world_->host_of(world_->rank());
    const auto first = std::ranges::find_if(members_, [&](int member) { return world_->host_of(member) == mine; });
    return static_cast<int>(first - members_.begin());
  }

  std::uint64_t begin(std::span<const Send> sends, std::span<Recv> recvs) override {
    const std::uint64_t ticket = operations_.take();
    TcpOperation& operation = operations_[ticket];
    operation.slots.clear();
    operation.slots.reserve(sends.size() + recvs.size());
    for (Recv& recv : recvs) operation.slots.push_back({&operation, to_world(recv.peer), channel_, {}, &recv});
    for (const Send& send : sends)
      operation.slots.push_back({&operation, to_world(send.peer), channel_, send.bytes, nullptr});
    try {
      world_->start(operation);
    } catch (...) {
      operations_.give_back(ticket);
      throw;
    }
    return ticket;
  }

  void finish(std::uint64_t ticket) override {
    try {
      world_->await(operations_[ticket]);
    } catch (...) {
      operations_.give_back(ticket);
      throw;
    }
    operations_.give_back(ticket);
  }

  void abandon(std::uint64_t ticket) noexcept override {
    if (is_forked()) return;
    kill();
    operations_.give_back(ticket);
  }
  void kill() noexcept override {
    if (!is_forked()) world_->kill(text_of("rank ", world_->rank(), " abandoned an exchange"));
  }
  bool can_kill_waits() const override { return true; }
  bool is_forked() const override { return world_->is_forked(); }
  void close_in_child() noexcept override { world_->close_in_child(); }

 private:
  int to_world(int rank) const { return members_[static_cast<std::size_t>(rank)]; }

  std::shared_ptr<TcpWorld> world_;
  std::vector<int> members_;  // ranks in the world
  int rank_;
  std::uint64_t channel_;
  std::uint64_t splits_ = 0;
  OperationPool<TcpOperation> operations_;
};

}  // namespace

bool tcp_available() { return true; }

std::unique_ptr<Communicator> make_tcp_world(const TcpOptions& options) {
  TcpMesh mesh = connect_mesh(options);
  std::vector<int> members;
  for (int rank = 0; rank < options.size; ++rank) members.push_back(rank);
  const TcpWorldOptions world{.rank = options.rank,
                              .host = mesh.host,
                              .timeout = std::min(options.timeout, kLongestTimeout),
                              .silence = options.silence,
                              .tags = {options.epoch, mesh.membership},
                              .early_bytes = options.early_bytes,
                              .look = options.look};
  return std::make_unique<TcpCommunicator>(TcpWorld::make(world, std::move(mesh.sessions)), std::move(members),
                                           options.rank, 0);
}

}  // namespace oktopk
