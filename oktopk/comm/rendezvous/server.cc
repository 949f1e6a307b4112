// SPDX-License-Identifier: Apache-2.0
// The server of a rendezvous: one thread that never waits for a client. Keys and values live in memory, up to
// kMostStoreBytes in all.
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "oktopk/base/error.h"
#include "oktopk/base/process_mark.h"
#include "oktopk/comm/rendezvous/arbiter.h"
#include "oktopk/comm/rendezvous/request.h"
#include "oktopk/comm/rendezvous/times.h"
#include "oktopk/comm/tcp/crypto.h"
#include "oktopk/comm/tcp/listener.h"
#include "oktopk/comm/tcp/stream.h"
#include "oktopk/comm/transport_support.h"
#include "oktopk/comm/transports.h"

namespace oktopk {
namespace {

using namespace rendezvous;
using ServerClock = std::chrono::steady_clock;

constexpr std::size_t kMostStoreBytes = std::size_t{64} << 20;
constexpr std::size_t kMostClients = 8192;

std::uint64_t random_number() {
  std::uint64_t number = 0;
  fill_random(std::as_writable_bytes(std::span(&number, 1)));
  return number;
}

}  // namespace

// A connection that has proved itself: requests in, replies out, and the key that it waits for.
class StoreClient {
 public:
  explicit StoreClient(TcpSession session) : address_(session.address), stream_(std::move(session)) {}

  const std::string& address() const { return address_; }
  void close_in_child() { stream_.close(); }
  pollfd entry() const { return {stream_.fd(), static_cast<short>(wants_write_ ? POLLIN | POLLOUT : POLLIN), 0}; }

  // The next complete request, if one is there.
  bool read(RendezvousRequest& request) {
    if (in_.size() < kRequestLengthBytes) in_.resize(kRequestLengthBytes);
    if (!fill()) return false;
    const std::uint32_t length = read_request_length(in_.data());
    if (in_.size() == kRequestLengthBytes) in_.resize(kRequestLengthBytes + length);
    if (!fill()) return false;
    request = read_request({reinterpret_cast<const char*>(in_.data()) + kRequestLengthBytes, length});
    in_.clear();
    read_ = 0;
    return true;
  }

  void reply(const RendezvousRequest& reply) {
    if (out_.size() > 2 * kMostRequestBytes) fail<CommError>("reads no replies");
    const Bytes bytes = write_request(reply);
    out_.insert(out_.end(), bytes.begin(), bytes.end());
    write();
  }

  void write() {
    while (!out_.empty()) {
      const std::size_t count = stream_.write(out_, {});
      if (count == 0) break;
      out_.erase(out_.begin(), out_.begin() + static_cast<std::ptrdiff_t>(count));
    }
    const bool is_flushed = stream_.flush();
    wants_write_ = !out_.empty() || !is_flushed;
  }

  // The key that the client waits for; empty if none.
  std::string wanted;
  Deadline deadline;
  // The member of an elastic job; 0: none. The number of its last word, and the word where it waits for the answer.
  std::uint64_t token = 0;
  std::uint64_t number = 0;
  std::optional<MemberWord> word;
  Deadline hold;
  bool is_over = false;

 private:
  bool fill() {
    while (read_ < in_.size()) {
      const std::size_t count = stream_.read(std::span(in_).subspan(read_));
      if (count == 0) return false;
      read_ += count;
    }
    return true;
  }

  std::string address_;
  TcpStream stream_;
  Bytes in_, out_;
  std::size_t read_ = 0;
  bool wants_write_ = false;
};

// The state of an arbiter in a file, which is replaced as a whole.
class ArbiterFile {
 public:
  explicit ArbiterFile(std::string path) : path_(std::move(path)) {}

  // Nothing where there is no file. UsageError if it cannot be read.
  ArbiterState read() {
    std::ifstream in(path_, std::ios::binary);
    if (path_.empty() || !in) return {};
    saved_ = std::string(std::istreambuf_iterator<char>(in), {});
    try {
      return read_arbiter_state(saved_);
    } catch (const CommError& error) {
      fail<UsageError>("rendezvous: the state in ", path_, " cannot be used: ", error.what());
    }
  }

  // CommError when it cannot be written.
  void write(const ArbiterState& state) {
    if (path_.empty()) return;
    std::string text = write_state(state);
    if (text == saved_) return;
    const std::string draft = path_ + ".new";
    const int fd = ::open(draft.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    bool is_written = fd >= 0 && write_fully(fd, text) && ::fsync(fd) == 0;
    std::error_code error(is_written ? 0 : errno, std::generic_category());
    if (fd >= 0) ::close(fd);
    if (is_written) std::filesystem::rename(draft, path_, error);
    if (error) fail<CommError>("the state cannot be written to ", path_, ": ", error.message());
    saved_ = std::move(text);
  }

 private:
  static bool write_fully(int fd, std::string_view text) {
    while (!text.empty()) {
      const ssize_t count = ::write(fd, text.data(), text.size());
      if (count < 0 && errno != EINTR) return false;
      if (count > 0) text.remove_prefix(static_cast<std::size_t>(count));
    }
    return true;
  }

  const std::string path_;
  std::string saved_;
};

class RendezvousServer::Service {
 public:
  explicit Service(const RendezvousServerOptions& options)
      : listener_(listen_at(parse_endpoint(options.listen)),
                  {.secret = options.secret,
                   .job = options.job,
                   .purpose = TcpPurpose::store,
                   .encrypt = options.encrypt,
                   .host = host_identity()},
                  refusals_),
        log_(options.log),
        file_(options.state),
        arbiter_({options.grace, options.reattach, options.settle, random_number, options.log}, ServerClock::now(),
                 file_.read()),
        address_(Endpoint{parse_endpoint(options.listen).host, local_port(listener_.socket())}.text()) {
    thread_ = std::thread([this] { run(); });
  }
  ~Service() {
    stop_.wake();
    thread_.join();
  }

  const std::string& address() const { return address_; }
  const RefusalLog& refusals() const { return *refusals_; }
  bool is_forked() const { return mark_.is_forked(); }
  void close_in_child() {
    listener_.close_in_child();
    for (const auto& client : clients_) client->close_in_child();
    stop_.close();
  }

 private:
  void run() {
    std::vector<pollfd> entries;
    auto turned = ServerClock::now();
    while (true) {
      const auto turn = std::exchange(turned, ServerClock::now());
      if (turned - turn > kTurn + kStall) arbiter_.slept(turned - turn);
      entries.assign(1, {stop_.fd(), POLLIN, 0});
      listener_.add_to(entries);
      for (const auto& client : clients_) entries.push_back(client->entry());
      ::poll(entries.data(), static_cast<nfds_t>(entries.size()), milliseconds_until(next_deadline()));
      if (entries[0].revents != 0) return;
      for (TcpSession& session : listener_.advance()) {
        if (clients_.size() < kMostClients)
          clients_.push_back(std::make_unique<StoreClient>(std::move(session)));
        else
          listener_.refuse(session.address, "found all places taken");
      }
      serve_all();
      serve_all();  // once more: a client that was served first may wait for a key that a later one wrote
      if (arbiter_.decide(ServerClock::now())) answer_all();
      save();
    }
  }

  // A client that is served looks at the others, so all stay in their places meanwhile.
  void serve_all() {
    for (const auto& client : clients_) client->is_over = !serve(*client);
    for (const auto& client : clients_)
      if (client->is_over && client->token != 0) arbiter_.detach(client->token, ServerClock::now());
    std::erase_if(clients_, [](const auto& client) { return client->is_over; });
  }

  // Tells the members of the next epoch, which is in the file by then.
  void answer_all() {
    save();
    for (const auto& client : clients_) {
      try {
        look_for_answer(*client);
      } catch (const CommError& error) {
        listener_.refuse(client->address(), error.what());  // the next serve() finds the same
      }
    }
  }

  // A state that cannot be written is reported once.
  void save() {
    try {
      file_.write(arbiter_.state());
      save_trouble_.clear();
    } catch (const CommError& error) {
      if (log_ && save_trouble_ != error.what()) log_(error.what());
      save_trouble_ = error.what();
    }
  }

  Deadline next_deadline() const {
    Deadline next = ServerClock::now() + kTurn;
    for (const auto& client : clients_) {
      if (!client->wanted.empty()) next = std::min(next, client->deadline);
      if (client->word.has_value()) next = std::min(next, client->hold);
    }
    return next;
  }

  // False when the connection is over.
  bool serve(StoreClient& client) {
    try {
      client.write();
      RendezvousRequest request;
      while (client.read(request)) obey(client, request);
      look_for_wanted(client);
      if (client.word.has_value() && ServerClock::now() >= client.hold) look_for_answer(client);
      return true;
    } catch (const CommError& error) {
      if (std::string_view(error.what()) != "closed the connection") listener_.refuse(client.address(), error.what());
      return false;
    }
  }

  void obey(StoreClient& client, RendezvousRequest& request) {
    if (request.kind == RequestKind::set) {
      set(request);
      return client.reply({.kind = RequestKind::done});
    }
    if (request.kind == RequestKind::member) return hear(client, read_word(request.value));
    if (request.kind != RequestKind::get || !client.wanted.empty() || request.key.empty())
      fail<CommError>("sent a request that there is not");
    const auto most = static_cast<std::uint64_t>(in_seconds(kLongestTimeout) * 1000);
    client.wanted = request.key;
    client.deadline = ServerClock::now() + std::chrono::milliseconds(std::min(request.number, most));
    look_for_wanted(client);
  }

  // A member has one connection: a new one takes the place of the one before, whose last words may come later.
  void hear(StoreClient& client, MemberWord word) {
    for (const auto& other : clients_) {
      if (other->token != word.token || other.get() == &client) continue;
      if (other->number > word.number) return;
      other->token = 0;
      other->word.reset();
    }
    client.token = word.token;
    client.number = word.number;
    client.hold = ServerClock::now() + (word.want == MemberWord::Want::regroup ? kHold : kTurn * 0);
    client.word = std::move(word);
    look_for_answer(client);
  }

  void look_for_answer(StoreClient& client) {
    if (!client.word.has_value()) return;
    const auto now = ServerClock::now();
    ArbiterAnswer answer = arbiter_.hear(*client.word, now);
    if (answer.kind == ArbiterAnswer::Kind::wait && now < client.hold) return;
    if (std::exchange(client.word, {})->want == MemberWord::Want::leave) client.token = 0;
    if (answer.kind == ArbiterAnswer::Kind::membership)
      return client.reply(
          {.kind = RequestKind::membership, .number = answer.id, .value = write_membership(answer.membership)});
    if (answer.kind == ArbiterAnswer::Kind::refused)
      return client.reply({.kind = RequestKind::refused, .value = std::move(answer.why)});
    client.reply({.kind = RequestKind::wait, .number = answer.candidates, .value = std::move(answer.why)});
  }

  void set(RendezvousRequest& request) {
    std::string& value = values_[request.key];
    bytes_ += request.key.size() + request.value.size() - value.size();
    value = std::move(request.value);
    if (bytes_ > kMostStoreBytes) fail<CommError>("wrote more than ", kMostStoreBytes, " bytes into the store");
  }

  void look_for_wanted(StoreClient& client) {
    if (client.wanted.empty()) return;
    const auto at = values_.find(client.wanted);
    const bool is_late = ServerClock::now() >= client.deadline;
    if (at == values_.end() && !is_late) return;
    client.wanted.clear();
    client.reply(at == values_.end() ? RendezvousRequest{.kind = RequestKind::nothing}
                                     : RendezvousRequest{.kind = RequestKind::value, .value = at->second});
  }

  const ProcessMark mark_;
  const std::shared_ptr<RefusalLog> refusals_ = std::make_shared<RefusalLog>();
  TcpListener listener_;
  const std::function<void(const std::string&)> log_;
  ArbiterFile file_;
  std::string save_trouble_;
  Arbiter arbiter_;
  const std::string address_;
  WakePipe stop_;
  std::vector<std::unique_ptr<StoreClient>> clients_;
  std::map<std::string, std::string> values_;
  std::size_t bytes_ = 0;
  std::thread thread_;
};

RendezvousServer::RendezvousServer(const RendezvousServerOptions& options) {
  require(options.secret.size() >= kLeastSecretBytes, "rendezvous: the secret has ", options.secret.size(),
          " bytes, must have at least ", kLeastSecretBytes);
  service_ = std::make_unique<Service>(options);
}
RendezvousServer::~RendezvousServer() {
  if (!service_->is_forked()) return;
  service_->close_in_child();
  leak(std::move(service_));
}

std::string RendezvousServer::address() const { return service_->address(); }
const RefusalLog& RendezvousServer::refusals() const { return service_->refusals(); }

}  // namespace oktopk
