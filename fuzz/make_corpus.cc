// SPDX-License-Identifier: Apache-2.0
// Writes the seed corpus: make_corpus FOLDER makes FOLDER/<target>/ with small legal inputs of each target. The results
// are committed in fuzz/corpus; inputs that found something stand beside them.
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

#include "fuzz/subjects.h"
#include "fuzz/target.h"
#include "oktopk/allreduce/parts/slot_messages.h"
#include "oktopk/base/error.h"
#include "oktopk/base/hash.h"
#include "oktopk/comm/collectives.h"
#include "oktopk/comm/flight.h"
#include "oktopk/comm/rendezvous/arbiter.h"
#include "oktopk/comm/rendezvous/request.h"
#include "oktopk/comm/tcp/handshake.h"
#include "oktopk/trace/trace.h"
#include "oktopk/tune/profile.h"
#include "tests/codec/samples.h"

namespace {

using namespace oktopk;

class Folder {
 public:
  Folder(const std::filesystem::path& root, const std::string& target) : path_(root / target) {
    std::filesystem::create_directories(path_);
  }
  template <class... Heads>
  void write(const std::string& name, std::span<const std::byte> bytes, Heads... heads) const {
    std::ofstream out(path_ / name, std::ios::binary);
    (out.write(reinterpret_cast<const char*>(&heads), sizeof(heads)), ...);
    out.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  }

 private:
  std::filesystem::path path_;
};

std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

void write_frames(const Folder& folder) {
  testing::Random random(1);
  const Range range{1000, 1300};
  for (const Codec codec : testing::every_codec()) {
    const bool is_all = codec.index == IndexCoding::all;
    const SparseVector entries = testing::random_entries(range, is_all ? 2 : 0.1, random);
    const auto codings = static_cast<std::uint8_t>(static_cast<int>(codec.index) + 16 * static_cast<int>(codec.value));
    folder.write(testing::test_name(codec), testing::encoded(codec, range, entries), codings, range.begin, range.end);
  }
  const std::vector<float> dense(300, 1.5F);
  Bytes out;
  encode_dense_frame({Codec{}, range, 0}, dense, out);
  folder.write("dense", out, std::uint8_t{0}, range.begin, range.end);
}

void write_states(const Folder& folder) {
  for (unsigned kind = 0; kind < fuzz::kSubjectKinds; ++kind)
    for (unsigned preset = 0; preset < presets().size(); preset += kind == 0 ? 1 : 4) {
      fuzz::Subject subject(kind, preset);
      for (int i = 0; i < 3; ++i) subject.step();
      for (unsigned all = 0; all < 2; ++all)
        folder.write(text_of("kind", kind, "_", preset, all == 0 ? "" : "_all"), subject.save(),
                     static_cast<std::uint8_t>(kind + all * fuzz::kSubjectKinds), static_cast<std::uint8_t>(preset));
    }
}

void write_slots(const Folder& folder) {
  const std::uint16_t n = 9999, k = 200;
  const SlotStep step{slots::Deal::of(n + 1, 2), k + 1U, 3, 5};
  SparseVector places, rest;
  for (Index i = 5; i < 5000; i += 41) places.push_back(i, static_cast<float>(i) / 64 - 30);
  std::vector<std::uint32_t> message(step.words());
  SlotWriter().write(step, places, slots::kLeastBound, message, rest);
  const std::uint8_t P = 1, number = 3;
  for (const std::uint8_t corrects : {std::uint8_t{0}, std::uint8_t{1}})
    folder.write(corrects == 0 ? "as_sent" : "corrected", std::as_bytes(std::span(message)), n, P, k, number, corrects);
}

void write_collectives(const Folder& folder) {
  const std::string zeros(600, '\0');
  for (std::uint8_t P = 0; P < 6; ++P)
    for (std::uint8_t kind = 0; kind < 3; ++kind)
      for (std::uint16_t choice = 0; choice < (kind == 0 ? 2 : 10); ++choice) {
        std::string messages;
        for (int i = 0; i < 12; ++i) messages += std::string("\x0b\x00", 2) + "\x0a" + std::string(10, 'x');
        folder.write(text_of("p", P + 2, "_", int{kind}, "_", choice), bytes_of(choice % 2 == 0 ? messages : zeros), P,
                     std::uint8_t{1}, kind, static_cast<std::uint16_t>(kind == 0 ? 20 + choice : choice));
      }
}

void write_texts(const Folder& folder) {
  folder.write("profile", bytes_of(to_json(Profile{})), std::uint8_t{0});
  folder.write(
      "rules",
      bytes_of(
          "dense:n<64K;circulant[codec=elias_fano+bf16,skips=8,4,2,1,group=1]:n>=1M,density=0.001..0.02,P=8;oktopk"),
      std::uint8_t{1});
  folder.write("codec", bytes_of("elias_fano+bf16"), std::uint8_t{2});
  folder.write("skips", bytes_of("8,4,2,1"), std::uint8_t{3});
  folder.write("radix", bytes_of("radix:3"), std::uint8_t{3});
}

// Two ranks after an exchange, one that waits for a third rank, and a rank with an error.
void write_dumps(const Folder& folder) {
  auto comms = make_thread_world(2, std::chrono::seconds(60));
  std::string all;
  for (auto& comm : comms) {
    FlightRecorder& flight = *comm->flight();
    const FlightLabel label(*comm, "allgather");
    FlightLine& line = comm->flight_line();
    Bytes bytes(24);
    std::vector<Recv> recvs = {{1 - comm->rank(), bytes, 24}};
    const std::vector<Send> sends = {{1 - comm->rank(), bytes}};
    flight.begin_step(4);
    flight.end(flight.begin(line, sends, recvs), recvs, FlightState::done);
    flight.begin(line, sends, recvs);
    if (comm->rank() == 1) flight.note_error("rank 0 does not answer");
    all += (all.empty() ? std::string() : std::string(1, '\0')) + flight.to_json();
  }
  folder.write("two_ranks", bytes_of(all));
  folder.write("first_rank", bytes_of(all.substr(0, all.find('\0'))));
}

void write_traces(const Folder& folder) {
  Trace trace;
  const Trace::Clock::time_point start(std::chrono::seconds(1));
  const std::array<TraceArg, 2> args = {TraceArg("n", 5), TraceArg("preset", "circulant")};
  trace.name_thread(1, "exchange");
  for (int rank = 0; rank < 3; ++rank)
    trace.record(rank, rank % 2, "step", "reducer", start, start + std::chrono::microseconds(rank), args);
  for (const std::int64_t shift : {std::int64_t{0}, std::int64_t{-1000}})
    folder.write(shift == 0 ? "events" : "shifted", trace.pack(), shift);
}

void write_arbiters(const Folder& folder) {
  const Membership membership{
      .epoch = 3, .ids = {1, 4, 5}, .lost = {2, 3}, .joined = {5}, .committed = 17, .run = 99, .last_id = 5};
  const MemberWord word{.want = MemberWord::Want::regroup, .token = 7, .id = 4, .committed = 17, .last = membership};
  folder.write("membership", bytes_of(write_membership(membership)), std::uint8_t{0});
  folder.write("word", bytes_of(write_word(word)), std::uint8_t{1});
  folder.write("state", bytes_of(write_state({membership, {{1, 6}, {4, 7}}})), std::uint8_t{2});
  // Three come and ask, and time passes; they take their epoch. One is lost, the others ask; the arbiter is started
  // anew, with its state and without; all say a word.
  const std::string come("\0\3\0\0\3\1\0\3\2", 9), ask("\5\0\1\5\1\1\5\2\1", 9), time("\2\377\1", 3);
  const std::string say("\7\0\7\1\7\2", 6), lose("\3\1", 2), repeat("\6\0\0\6\1\3", 6);
  for (const char restart : {'\1', '\11'})
    folder.write(restart == '\1' ? "job" : "job_anew",
                 bytes_of(come + ask + time + say + lose + ask + restart + say + ask + time + repeat + say),
                 std::uint8_t{3});
}

void write_handshakes(const Folder& folder) {
  const TcpHello hello{kTcpMagic, hash_text("job"), 7, 3, 1, 4, 5, 9, TcpPurpose::mesh, 0, {}};
  const TcpAnswer answer{hello.magic, 9, {}};
  const auto encrypted = [&] {
    TcpHello other = hello;
    other.encrypt = 1;
    return other;
  }();
  const auto view = [](const auto& message) { return std::as_bytes(std::span(&message, 1)); };
  const std::string no_proof(32, '\0');
  for (const std::uint8_t encrypt : {std::uint8_t{0}, std::uint8_t{4}}) {
    const char* name = encrypt == 0 ? "_plain" : "_encrypted";
    const auto kind = [&](int k) { return static_cast<std::uint8_t>(k + encrypt); };
    folder.write(text_of("unchanged", name), {}, kind(0));
    folder.write(text_of("changed_nonce", name), bytes_of(std::string(64, '\0') + "x"), kind(0));
    folder.write(text_of("changed_proof", name), bytes_of(std::string(150, '\0') + "x"), kind(0));
    folder.write(text_of("to_client", name), bytes_of(no_proof), kind(1), answer);
    folder.write(text_of("to_server", name), bytes_of(no_proof), kind(2), std::uint8_t{49},
                 encrypt == 0 ? hello : encrypted);
    folder.write(text_of("half", name), view(hello).first(40), kind(2), std::uint8_t{7});
  }
}

void write_links(const Folder& folder) {
  for (const std::uint8_t encrypt : {std::uint8_t{0}, std::uint8_t{1}}) {
    const char* name = encrypt == 0 ? "_plain" : "_encrypted";
    // Kind, length, numbers of what is left, channel, body; then read.
    const std::string message("\1\1\4\1\0\2body\5", 11), control("\1\5\10\1\0\0\1\0\0\0dead\5", 15);
    folder.write(text_of("early", name), bytes_of(message + std::string("\2\10\2\5", 4)), encrypt);
    folder.write(text_of("posted", name), bytes_of(std::string("\2\10\2", 3) + message), encrypt);
    folder.write(text_of("failure", name), bytes_of(control), encrypt);
    folder.write(text_of("closed", name), bytes_of(std::string("\4\2", 2) + message), encrypt);
    const std::string half("\1\1\4\1\2\2half\5", 11), rest("\1\1\2\1\0\2of\5", 9), leave("\1\3\0\1\0\2\5", 7),
        close("\4\2", 2);
    folder.write(text_of("left_in_message", name), bytes_of(half + close + leave + rest), encrypt);
    folder.write(text_of("left_before_message", name), bytes_of(leave + half + close + rest), encrypt);
    const std::string offer("\1\7\0\1\0\2\5", 7), accept("\1\10\0\1\0\2\5", 7), send("\3\10\2\5", 4);
    const std::string credit("\1\6\0\0\144\0\0\0\0\0\0\0\0\5", 14);  // of 100 bytes
    folder.write(text_of("offered", name), bytes_of(offer + std::string("\2\10\2", 3) + message), encrypt);
    folder.write(text_of("accepted", name), bytes_of(send + accept), encrypt);
    folder.write(text_of("credit", name), bytes_of(send + send + credit + accept + send), encrypt);
    folder.write(text_of("raw", name), bytes_of(std::string("\0\50", 2) + std::string(40, '\1') + "\5"), encrypt);
  }
}

void write_rendezvous(const Folder& folder) {
  for (const std::uint8_t encrypt : {std::uint8_t{0}, std::uint8_t{4}}) {
    const char* name = encrypt == 0 ? "_plain" : "_encrypted";
    const std::string set("\20\0\1\1\1\5value", 11), get("\20\1\1\1\1\0", 6);
    // A member's word: number, no key, no value; then want, token, number, id and run.
    const std::string ask("\20\2\1\1\0\0\0\1\0\0\0", 11), here("\21\2\1\1\0\0\0\0\0\1\1\1", 12),
        leave("\20\2\1\1\0\0\0\2\0\2\0", 11);
    const auto server = [&](const std::string& what, std::uint8_t clients, const std::string& script) {
      folder.write(what + name, bytes_of(script), static_cast<std::uint8_t>(1 + encrypt), clients);
    };
    server("set_get", 0, set + get);
    server("elastic", 0, ask + ask + leave + get);
    server("two_members", 1, here + ask + here + leave);
    server("raw", 2, std::string("\0\3abc\1\4\0\0\0\0", 11) + set);
    const std::string value = write_membership({.epoch = 1, .ids = {1, 2}, .joined = {1, 2}, .last_id = 2});
    folder.write(text_of("reply", name), write_request({.kind = RequestKind::membership, .number = 2, .value = value}),
                 encrypt);
  }
}

}  // namespace

int main(int count, char** values) {
  if (count != 2) {
    std::fprintf(stderr, "usage: make_corpus FOLDER\n");
    return 2;
  }
  write_frames({values[1], "frame"});
  write_states({values[1], "state"});
  write_slots({values[1], "slots"});
  write_collectives({values[1], "collectives"});
  write_texts({values[1], "text"});
  write_dumps({values[1], "dump"});
  write_traces({values[1], "trace"});
  write_arbiters({values[1], "arbiter"});
  write_handshakes({values[1], "handshake"});
  write_links({values[1], "link"});
  write_rendezvous({values[1], "rendezvous"});
  return 0;
}
