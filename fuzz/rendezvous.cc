// SPDX-License-Identifier: Apache-2.0
// The rendezvous server among up to three clients that have proved themselves and then send anything: raw bytes, or
// requests of any kind, of an elastic job, too. Each of them gets legal replies or is dropped, and the server still
// serves others. And a client whose server replies anything: CommError, or a reply.
#include <array>
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "fuzz/sockets.h"
#include "fuzz/target.h"
#include "oktopk/comm/rendezvous/arbiter.h"
#include "oktopk/comm/rendezvous/request.h"
#include "oktopk/comm/tcp/stream.h"
#include "oktopk/comm/transports.h"

namespace {

using namespace oktopk;
using namespace std::chrono_literals;

constexpr int kMostActions = 60;
constexpr std::size_t kMostReply = 4096;

TcpIdentity store_identity(bool encrypt) { return fuzz::identity_of(TcpPurpose::store, encrypt); }

// A word of a member, of the first epoch or none.
std::string take_word(fuzz::Input& input) {
  constexpr std::string_view kWants = "arl";
  MemberWord word{.want = static_cast<MemberWord::Want>(kWants[input.take() % kWants.size()])};
  word.token = 1 + input.take() % 3;
  word.number = input.take() % 3;
  word.id = input.take() % 3;
  if (word.id != 0) word.last = {.epoch = 1, .ids = {1, 2}, .run = input.take() % 2U, .last_id = 2};
  return write_word(word);
}

RendezvousRequest take_request(fuzz::Input& input) {
  constexpr std::string_view kKinds = "sgmwedvnx?";
  RendezvousRequest request{.kind = static_cast<RequestKind>(kKinds[input.take() % kKinds.size()])};
  request.number = input.take() % 8 == 0 ? input.take<std::uint64_t>() : input.take() % 4;
  request.key = std::string(input.take() % 3, 'k');
  const auto value = input.take_bytes(input.take());
  request.value.assign(reinterpret_cast<const char*>(value.data()), value.size());
  if (request.kind == RequestKind::member && input.take() % 2 == 0) request.value = take_word(input);
  return request;
}

// Reads replies to the end of the stream, which must come.
void read_to_end(TcpStream& stream) {
  try {
    while (true) {
      const RendezvousRequest reply = read_request(stream, fuzz::soon());
      if (reply.kind == RequestKind::membership) read_membership(reply.value);
    }
  } catch (const CommError& error) {
    const std::string_view why = error.what();
    fuzz::check(why.starts_with("closed the connection") || why.starts_with("broke the connection"));
  }
}

void run_server(fuzz::Input& input, bool encrypt) {
  const TcpIdentity mine = store_identity(encrypt);
  const RendezvousServer server(
      {.secret = mine.secret, .job = mine.job, .encrypt = encrypt, .grace = 1ms, .settle = 1ms});
  const TcpTarget target{parse_endpoint(server.address())};
  std::vector<std::unique_ptr<TcpStream>> clients;
  for (unsigned left = 1 + input.take() % 3; left > 0; --left)
    clients.push_back(std::make_unique<TcpStream>(connect_session(target, mine, fuzz::soon())));
  for (int i = 0; i < kMostActions && !input.rest().empty(); ++i) {
    const unsigned choice = input.take();
    try {
      TcpStream& client = *clients[choice % clients.size()];
      if (choice / 16 % 4 == 0)
        client.write_fully(input.take_bytes(input.take()), fuzz::soon());
      else
        client.write_fully(write_request(take_request(input)), fuzz::soon());
    } catch (const CommError&) {
      // Dropped by the server.
    }
  }
  for (const auto& client : clients) client->end_writing();
  for (const auto& client : clients) read_to_end(*client);
  const KeyValueStore store = make_server_store({server.address(), mine.secret, mine.job, encrypt, fuzz::kPatience});
  store.set("alive", "yes");
  fuzz::check(store.get("alive", 1s) == "yes");
}

// Answers one request with the bytes.
void answer_with(std::span<const std::byte> bytes, bool encrypt) {
  ServerHandshake handshake(fuzz::accept_caller(), fuzz::soon());
  while (!handshake.advance(store_identity(encrypt))) fuzz::await(handshake.fd());
  TcpStream stream(handshake.take());
  read_request(stream, fuzz::soon());
  stream.write_fully(bytes, fuzz::soon());
}

void run_client(fuzz::Input& input, bool encrypt) {
  const auto bytes = input.rest().first(std::min(input.rest().size(), kMostReply));
  const auto serving = std::async(std::launch::async, [&] { answer_with(bytes, encrypt); });
  const TcpIdentity mine = store_identity(encrypt);
  RendezvousClient client({fuzz::endpoint().text(), mine.secret, mine.job, encrypt, fuzz::kPatience});
  try {
    const RendezvousRequest reply = client.ask({.kind = RequestKind::get, .number = 1, .key = "k"}, {});
    fuzz::check(reply.key.size() + reply.value.size() < bytes.size());
    if (reply.kind == RequestKind::membership) fuzz::check(!read_membership(reply.value).ids.empty());
  } catch (const CommError&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Input input(data, size);
  const unsigned kind = input.take();
  const bool encrypt = kind / 4 % 2 == 1;
  if (kind % 4 == 0)
    run_client(input, encrypt);
  else
    run_server(input, encrypt);
  return 0;
}
