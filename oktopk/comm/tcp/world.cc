// SPDX-License-Identifier: Apache-2.0
#include "oktopk/comm/tcp/world.h"

#include <algorithm>
#include <exception>

#include "oktopk/base/error.h"
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

}  // namespace

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

}  // namespace oktopk
