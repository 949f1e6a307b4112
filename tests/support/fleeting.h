// SPDX-License-Identifier: Apache-2.0
// A communicator whose buffers are gone as soon as their owner may free them: each message lies in
// pages of its own, which are unmapped when its exchange has ended, failed or was abandoned. A
// transport that touches them afterwards ends the program.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <map>
#include <memory>
#include <new>
#include <span>
#include <utility>
#include <vector>

#include "oktopk/comm/decorators.h"

namespace oktopk {

class Pages {
 public:
  explicit Pages(std::size_t size) : size_(std::max<std::size_t>(size, 1)) {
    memory_ = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory_ == MAP_FAILED) throw std::bad_alloc();
  }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  ~Pages() { munmap(memory_, size_); }

  std::byte* data() const { return static_cast<std::byte*>(memory_); }

 private:
  std::size_t size_;
  void* memory_;
};

class FleetingCommunicator final : public ForwardingCommunicator {
 public:
  using ForwardingCommunicator::ForwardingCommunicator;

  std::unique_ptr<Communicator> split(int color, int key) override {
    return std::make_unique<FleetingCommunicator>(inner().split(color, key));
  }

  std::uint64_t begin(std::span<const Send> sends, std::span<Recv> recvs) override {
    Exchange exchange;
    for (const Send& send : sends) {
      std::byte* place = exchange.add(send.bytes.size());
      std::copy(send.bytes.begin(), send.bytes.end(), place);
      exchange.sends.push_back({send.peer, {place, send.bytes.size()}});
    }
    for (const Recv& recv : recvs)
      exchange.recvs.push_back({recv.peer, {exchange.add(recv.buffer.size()), recv.buffer.size()}, 0});
    exchange.wanted = recvs;
    const std::uint64_t ticket = inner().begin(exchange.sends, exchange.recvs);
    open_.insert_or_assign(ticket, std::move(exchange));
    return ticket;
  }

  void finish(std::uint64_t ticket) override {
    const auto node = open_.extract(ticket);
    const Exchange& exchange = node.mapped();
    inner().finish(ticket);
    for (std::size_t i = 0; i < exchange.recvs.size(); ++i) {
      const Recv& recv = exchange.recvs[i];
      std::copy_n(recv.buffer.data(), recv.size, exchange.wanted[i].buffer.data());
      exchange.wanted[i].size = recv.size;
    }
  }

  void abandon(std::uint64_t ticket) noexcept override {
    inner().abandon(ticket);
    open_.erase(ticket);
  }

 private:
  struct Exchange {
    std::vector<std::unique_ptr<Pages>> pages;
    std::vector<Send> sends;
    std::vector<Recv> recvs;
    std::span<Recv> wanted;

    std::byte* add(std::size_t size) {
      pages.push_back(std::make_unique<Pages>(size));
      return pages.back()->data();
    }
  };
  std::map<std::uint64_t, Exchange> open_;
};

}  // namespace oktopk
