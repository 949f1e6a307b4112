// SPDX-License-Identifier: Apache-2.0
// Transport "mpi" (transports.h).
// split() makes no MPI communicator, because MPI_Comm_split has no timeout. A part is a list of ranks of the world's
// duplicated communicator, and a tag of its own keeps its messages apart.
// MPI cannot take back a message that has begun. So MPI reads and writes memory of the operation (MpiOperation), not
// of the caller. An operation lives as long as MPI has a request of it, and a dead communicator is never freed
// (docs/decisions/0018-mpi-memory-is-ours.md).
// A receive is posted when its message is there and its size is known, never before (MpiInbox): Open MPI 4.1 writes
// a message that is too large behind the end of the buffer, and a receive that is not posted need not be cancelled.
// Messages are Isend, Improbe and Imrecv with one tag, so that MPI's own order of messages is ours.
// A rank that gives up tells its peers by a message with a tag of its own (last words), which a rank that waits hears.
// A rank that only lost its patience tells nobody: a peer that comes late still finds what was sent.
#include "oktopk/comm/transports.h"

#include <algorithm>
#include <array>
#include <climits>
#include <cstddef>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "oktopk/base/bytes.h"
#include "oktopk/base/error.h"
#include "oktopk/comm/collectives.h"
#include "oktopk/comm/communicator.h"
#include "oktopk/comm/mpi_comm.h"
#include "oktopk/comm/transport_support.h"

namespace oktopk {
namespace {

std::string mpi_error_text(int code) {
  char buffer[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  if (MPI_Error_string(code, buffer, &length) != MPI_SUCCESS) return "MPI error " + std::to_string(code);
  return std::string(buffer, static_cast<std::size_t>(length));
}

// The name of a thread level, as MPI has it.
std::string mpi_thread_level(int level) {
  if (level == MPI_THREAD_SINGLE) return "MPI_THREAD_SINGLE";
  if (level == MPI_THREAD_FUNNELED) return "MPI_THREAD_FUNNELED";
  if (level == MPI_THREAD_SERIALIZED) return "MPI_THREAD_SERIALIZED";
  return level == MPI_THREAD_MULTIPLE ? "MPI_THREAD_MULTIPLE" : std::to_string(level);
}

// Describes `bytes` bytes to MPI, whose counts are int: directly, or as one element of a derived type.
class MpiShape {
 public:
  MpiShape(std::size_t bytes, std::size_t chunk) {
    if (bytes <= chunk) {
      count_ = static_cast<int>(bytes);
      return;
    }
    const std::size_t chunks = bytes / chunk;
    require(chunks <= INT_MAX, "mpi: a message of ", bytes, " bytes");
    MPI_Datatype block = MPI_DATATYPE_NULL;
    MPI_Type_contiguous(static_cast<int>(chunk), MPI_BYTE, &block);
    const int lengths[] = {static_cast<int>(chunks), static_cast<int>(bytes % chunk)};
    const MPI_Aint places[] = {0, static_cast<MPI_Aint>(chunks * chunk)};
    const MPI_Datatype types[] = {block, MPI_BYTE};
    MPI_Type_create_struct(2, lengths, places, types, &type_);
    MPI_Type_commit(&type_);
    MPI_Type_free(&block);
    count_ = 1;
  }
  MpiShape(const MpiShape&) = delete;
  MpiShape& operator=(const MpiShape&) = delete;
  // MPI keeps the type for as long as a started message needs it.
  ~MpiShape() {
    if (type_ != MPI_BYTE) MPI_Type_free(&type_);
  }

  int count() const { return count_; }
  MPI_Datatype type() const { return type_; }

 private:
  int count_ = 0;
  MPI_Datatype type_ = MPI_BYTE;
};

// While it lives, errors are return codes also in calls that name no communicator, such as MPI_Test. MPI gives those
// errors to the handler of MPI_COMM_WORLD (MPI 3) or MPI_COMM_SELF (MPI 4), which ends the program by default. Does
// nothing for a simulator (blocking): its ranks share those handlers, and it ends the program with a message.
class MpiErrorsReturn {
 public:
  explicit MpiErrorsReturn(bool blocking) : is_active_(!blocking) {
    if (!is_active_) return;
    for (std::size_t i = 0; i < comms_.size(); ++i) {
      MPI_Comm_get_errhandler(comms_[i], &saved_[i]);
      MPI_Comm_set_errhandler(comms_[i], MPI_ERRORS_RETURN);
    }
  }
  MpiErrorsReturn(const MpiErrorsReturn&) = delete;
  MpiErrorsReturn& operator=(const MpiErrorsReturn&) = delete;
  ~MpiErrorsReturn() {
    if (!is_active_) return;
    for (std::size_t i = 0; i < comms_.size(); ++i) {
      MPI_Comm_set_errhandler(comms_[i], saved_[i]);
      MPI_Errhandler_free(&saved_[i]);
    }
  }

 private:
  std::array<MPI_Comm, 2> comms_{MPI_COMM_WORLD, MPI_COMM_SELF};
  std::array<MPI_Errhandler, 2> saved_{};
  bool is_active_;
};

// The duplicated MPI communicator that a communicator shares with its parts.
struct MpiWorld {
  explicit MpiWorld(MPI_Comm duplicate) : comm(duplicate) { MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN); }
  MpiWorld(const MpiWorld&) = delete;
  MpiWorld& operator=(const MpiWorld&) = delete;
  ~MpiWorld() {
    if (!is_kept && mpi_is_running()) MPI_Comm_free(&comm);
  }

  MPI_Comm comm;
  int last_tag = 0;      // that MPI allows; last words use tags from there downwards
  int next_tag = 0;      // no part that this rank is in uses this tag or a larger one
  bool is_kept = false;  // some message may still refer to comm: it is never freed
};

// One exchange: its messages and the memory that MPI uses for them, which is kept for the next exchange.
// COST: one copy of what is sent and one of what arrives; none in place.
class MpiOperation {
 public:
  struct Message {
    int peer = 0;
    std::byte* memory = nullptr;  // MPI reads or writes here
    std::size_t bytes = 0;        // size of a send, capacity of a receive
    MPI_Request request = MPI_REQUEST_NULL;
    bool is_complete = false;
  };

  // Receives first, then sends, in the order of start(). In place, MPI gets the caller's buffers.
  void prepare(std::span<const Send> sends, std::span<Recv> recvs, bool in_place) {
    messages_.clear();
    for (const Recv& recv : recvs) messages_.push_back({recv.peer, recv.buffer.data(), recv.buffer.size()});
    for (const Send& send : sends)
      messages_.push_back({send.peer, const_cast<std::byte*>(send.bytes.data()), send.bytes.size()});
    recvs_ = recvs;
    receives_ = recvs.size();
    in_place_ = in_place;
    if (in_place) return;
    if (memory_.size() < messages_.size()) memory_.resize(messages_.size());
    for (std::size_t i = receives_; i < messages_.size(); ++i) {
      const std::byte* from = messages_[i].memory;
      std::copy_n(from, messages_[i].bytes, make_room(i, messages_[i].bytes));
    }
  }

  std::vector<Message>& messages() { return messages_; }
  bool is_receive(std::size_t i) const { return i < receives_; }
  std::string describe(std::size_t i) const {
    const Message& message = messages_[i];
    if (!is_receive(i)) return text_of("send to rank ", message.peer);
    return text_of("receive from rank ", message.peer, ", capacity ", message.bytes, " bytes");
  }

  // Memory for message i, which has this size.
  std::byte* make_room(std::size_t i, std::size_t size) {
    if (in_place_) return messages_[i].memory;
    Bytes& room = memory_[i];
    if (room.size() < size) {
      room.clear();  // growing must not copy the old content
      room.resize(size);
    }
    return messages_[i].memory = room.data();
  }

  // Receive i is complete with this many bytes.
  void arrived(std::size_t i, std::size_t size) {
    recvs_[i].size = size;
    if (!in_place_) std::copy_n(messages_[i].memory, size, recvs_[i].buffer.data());
  }

  // Forgets the caller's buffers. True when MPI has no request of it any more.
  bool withdraw() noexcept {
    recvs_ = {};
    return !is_open();
  }

  // In place: receives that have begun get `grace` to end; then MPI keeps the requests and the caller's buffers.
  void let_go(Communicator::Duration grace) noexcept {
    poll(grace, [&] { return !is_open(); });
    for (Message& message : messages_)
      if (message.request != MPI_REQUEST_NULL) MPI_Request_free(&message.request);
  }

 private:
  bool is_open() noexcept {
    bool is_open = false;
    for (Message& message : messages_) {
      int is_done = 1;
      if (message.request != MPI_REQUEST_NULL) MPI_Test(&message.request, &is_done, MPI_STATUS_IGNORE);
      is_open = is_open || is_done == 0;
    }
    return is_open;
  }

  std::vector<Message> messages_;
  std::vector<Bytes> memory_;  // by message
  std::span<Recv> recvs_;      // the caller's
  std::size_t receives_ = 0;
  bool in_place_ = false;
};

// Matches arrived messages with receives: the n-th message from a rank belongs to the n-th receive from that rank.
struct MpiInbox {
  struct Receive {
    int peer;
    MpiOperation* operation;
    std::size_t i;  // its message
  };
  struct Arrived {
    int peer;
    MPI_Message handle;
    std::size_t size;
  };

  // Takes the oldest of `items` that has this peer, if there is one.
  template <class Item>
  static std::optional<Item> take(std::vector<Item>& items, int peer) {
    const auto found = std::ranges::find(items, peer, &Item::peer);
    if (found == items.end()) return std::nullopt;
    const Item item = *found;
    items.erase(found);
    return item;
  }

  std::vector<Receive> waiting;    // no message has come for them
  std::vector<Arrived> unclaimed;  // no receive has asked for them
};

// Last words have this size; MPI sends so little at once, whether or not anybody listens.
using Words = std::array<char, 256>;

constexpr int kLooksPerHearing = 64;  // looks for messages between two looks for last words

std::size_t bytes_of(MPI_Status& status) {
  int size = 0;
  MPI_Get_count(&status, MPI_BYTE, &size);
  // Only derived types need MPI_Get_elements_x, which a simulator may lack.
  if (size != MPI_UNDEFINED) return static_cast<std::size_t>(size);
  MPI_Count elements = 0;
  MPI_Get_elements_x(&status, MPI_BYTE, &elements);
  return static_cast<std::size_t>(elements);
}

int last_tag() {
  const int* last = nullptr;
  int is_known = 0;
  MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, static_cast<void*>(&last), &is_known);
  return is_known != 0 ? *last : 32767;  // the smallest that MPI allows
}

// Collective over `original`. CommError when not all ranks come in time.
MPI_Comm duplicate(MPI_Comm original, const MpiOptions& options) {
  const MpiErrorsReturn errors_return(options.blocking);
  struct Duplication {
    MPI_Comm copy = MPI_COMM_NULL;
    MPI_Request request = MPI_REQUEST_NULL;
  };
  auto started = std::make_unique<Duplication>();
  int code = options.blocking ? MPI_Comm_dup(original, &started->copy)
                              : MPI_Comm_idup(original, &started->copy, &started->request);
  const auto patience = std::max(options.timeout, Communicator::kDefaultTimeout);
  const bool is_done = options.blocking || poll(patience, [&] {
                         int done = 1;
                         if (code == MPI_SUCCESS) code = MPI_Test(&started->request, &done, MPI_STATUS_IGNORE);
                         return done != 0;
                       });
  if (!is_done) {
    static_cast<void>(started.release());  // MPI writes there when the last rank comes after all
    fail<CommError>("mpi: not all ranks came to make a communicator within ", in_seconds(patience), " s");
  }
  if (code != MPI_SUCCESS) fail<CommError>("mpi: duplicating: ", mpi_error_text(code));
  return started->copy;
}

class MpiCommunicator final : public Communicator {
 public:
  MpiCommunicator(std::shared_ptr<MpiWorld> world, Part place, const MpiOptions& options)
      : world_(std::move(world)),
        place_(std::move(place)),
        options_(options),
        operations_(std::make_unique<OperationPool<MpiOperation>>()) {}

  ~MpiCommunicator() override {
    if (!mpi_is_running()) return;
    bool is_open = false;
    operations_->for_each_taken([&](std::uint64_t ticket) {
      give_up("destroyed", true);
      if (!withdraw((*operations_)[ticket])) is_open = true;
    });
    if (!inbox_.unclaimed.empty()) world_->is_kept = true;
    if (is_open) static_cast<void>(operations_.release());  // MPI's until the program ends
  }

  int rank() const override { return place_.rank; }
  int size() const override { return static_cast<int>(place_.ranks.size()); }
  std::string_view transport() const override { return "mpi"; }
  Duration timeout() const override { return options_.timeout; }

  // The largest next tag of the ranks is new to each of them. UsageError on all ranks when no tag is left.
  std::unique_ptr<Communicator> split(int color, int key) override {
    require_alive();
    Part part = agree_on_part(*this, color, key, world_->next_tag);
    const int last = world_->last_tag / 2;
    require(part.number <= last, "split: this is part ", part.number, " of one MPI communicator, and MPI has tags for ",
            last, "; make another communicator");
    world_->next_tag = part.number + 1;
    const std::vector<int> ranks = part.ranks;
    for (int& rank : part.ranks) rank = world_rank(rank);
    return as_part(std::make_unique<MpiCommunicator>(world_, std::move(part), options_), color, ranks);
  }

  // Compares host names: MPI_Comm_split_type, which knows the ranks that share memory, has no timeout.
  int host() override {
    require_alive();
    using Name = std::array<char, MPI_MAX_PROCESSOR_NAME>;
    Name mine{};
    int length = 0;
    const int code = MPI_Get_processor_name(mine.data(), &length);
    if (code != MPI_SUCCESS) die("host: " + mpi_error_text(code));
    std::fill(mine.begin() + length, mine.end(), '\0');
    std::vector<Name> all(place_.ranks.size());
    Workspace work;
    allgather(*this, std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)), work);
    return static_cast<int>(std::find(all.begin(), all.end(), mine) - all.begin());
  }

  void require_any_thread() const override {
    int level = MPI_THREAD_SINGLE;
    MPI_Query_thread(&level);
    require(level >= MPI_THREAD_SERIALIZED, "mpi: MPI was initialised with ", mpi_thread_level(level),
            ", but an exchange on a thread of its own needs ", mpi_thread_level(MPI_THREAD_SERIALIZED),
            ": let MpiSession initialise MPI, or ask MPI_Init_thread for that level");
  }

  std::uint64_t begin(std::span<const Send> sends, std::span<Recv> recvs) override {
    require_alive();
    const std::uint64_t ticket = operations_->take();
    MpiOperation& operation = (*operations_)[ticket];
    try {
      operation.prepare(sends, recvs, in_place());
      post(operation);
      collect();  // what is here can move while the caller is busy
    } catch (...) {
      withdraw(operation);
      throw;
    }
    return ticket;
  }

  void finish(std::uint64_t ticket) override {
    MpiOperation& operation = (*operations_)[ticket];
    try {
      require_alive();
      wait_for(operation);
    } catch (...) {
      withdraw(operation);
      throw;
    }
    operations_->give_back(ticket);
  }

  void abandon(std::uint64_t ticket) noexcept override {
    if (mpi_is_running()) withdraw((*operations_)[ticket]);
    give_up("an exchange was abandoned", true);
  }

 private:
  int world_rank(int peer) const { return place_.ranks[static_cast<std::size_t>(peer)]; }
  bool in_place() const { return options_.in_place || options_.blocking; }
  int words_tag() const { return world_->last_tag - place_.number; }

  void give_up(const std::string& reason, bool is_told) noexcept {
    if (!is_dead_) reason_ = reason;
    if (!is_dead_ && is_told) tell_peers(reason);
    is_dead_ = true;
    world_->is_kept = true;
  }
  [[noreturn]] void die(const std::string& reason) {
    give_up(reason, false);
    fail<CommError>("mpi: rank ", rank(), ": ", reason);
  }
  void require_alive() {
    if (is_dead_) die("the communicator is dead: " + reason_);
  }
  void check(int code, const MpiOperation& operation, std::size_t i) {
    if (code != MPI_SUCCESS) die(operation.describe(i) + ": " + mpi_error_text(code));
  }

  void post(MpiOperation& operation) {
    for (std::size_t i = 0; i < operation.messages().size(); ++i) {
      if (operation.is_receive(i)) {
        expect(operation, i);
        continue;
      }
      MpiOperation::Message& message = operation.messages()[i];
      const MpiShape shape(message.bytes, options_.chunk_bytes);
      check(MPI_Isend(message.memory, shape.count(), shape.type(), world_rank(message.peer), place_.number,
                      world_->comm, &message.request),
            operation, i);
    }
  }

  void expect(MpiOperation& operation, std::size_t i) {
    MpiOperation::Message& message = operation.messages()[i];
    if (!options_.blocking) {
      const MpiInbox::Receive what{message.peer, &operation, i};
      if (const auto arrived = MpiInbox::take(inbox_.unclaimed, message.peer)) return receive(what, *arrived);
      return inbox_.waiting.push_back(what);
    }
    const MpiShape shape(message.bytes, options_.chunk_bytes);
    check(MPI_Irecv(message.memory, shape.count(), shape.type(), world_rank(message.peer), place_.number, world_->comm,
                    &message.request),
          operation, i);
  }

  // Matches what has arrived.
  void collect() {
    while (!inbox_.waiting.empty()) {
      int is_there = 0;
      MPI_Message handle = MPI_MESSAGE_NULL;
      MPI_Status status;
      const int code = MPI_Improbe(MPI_ANY_SOURCE, place_.number, world_->comm, &is_there, &handle, &status);
      if (code != MPI_SUCCESS) die("looking for messages: " + mpi_error_text(code));
      if (is_there == 0) return;
      const auto from = std::find(place_.ranks.begin(), place_.ranks.end(), status.MPI_SOURCE);
      const auto peer = static_cast<int>(from - place_.ranks.begin());
      const MpiInbox::Arrived arrived{peer, handle, bytes_of(status)};
      if (const auto what = MpiInbox::take(inbox_.waiting, peer)) {
        receive(*what, arrived);
      } else {
        inbox_.unclaimed.push_back(arrived);
      }
    }
  }

  void receive(const MpiInbox::Receive& what, MpiInbox::Arrived arrived) {
    MpiOperation& operation = *what.operation;
    MpiOperation::Message& message = operation.messages()[what.i];
    if (arrived.size > message.bytes)
      die(operation.describe(what.i) + ": a message of " + std::to_string(arrived.size) + " bytes arrived");
    const MpiErrorsReturn errors_return(options_.blocking);
    const MpiShape shape(arrived.size, options_.chunk_bytes);
    check(MPI_Imrecv(operation.make_room(what.i, arrived.size), shape.count(), shape.type(), &arrived.handle,
                     &message.request),
          operation, what.i);
  }

  // True when message i is complete; hands over what it received. Blocking: waits until it is.
  bool test(MpiOperation& operation, std::size_t i) {
    MpiOperation::Message& message = operation.messages()[i];
    if (message.is_complete) return true;
    if (message.request == MPI_REQUEST_NULL) return false;  // a receive whose message is not here
    int is_done = 1;
    MPI_Status status;
    check(options_.blocking ? MPI_Wait(&message.request, &status) : MPI_Test(&message.request, &is_done, &status),
          operation, i);
    if (is_done == 0) return false;
    if (operation.is_receive(i)) operation.arrived(i, bytes_of(status));
    return message.is_complete = true;
  }

  void wait_for(MpiOperation& operation) {
    const MpiErrorsReturn errors_return(options_.blocking);
    // Each test lets all of MPI progress: asking for one message after the other is enough.
    std::size_t done = 0;
    int looks = 0;
    const std::size_t count = operation.messages().size();
    const bool is_complete = poll(options_.timeout, [&] {
      if (!options_.blocking) collect();
      if (!options_.blocking && ++looks % kLooksPerHearing == 0) hear();
      while (done < count && test(operation, done)) ++done;
      return done == count;
    });
    if (is_complete) return;
    std::vector<int> silent;
    for (std::size_t i = 0; i < count; ++i)
      if (!test(operation, i)) silent.push_back(operation.messages()[i].peer);
    die(no_answer(options_.timeout, std::move(silent)));
  }

  // Lets go of the caller's buffers. False when MPI still has a request: the operation must live on.
  bool withdraw(MpiOperation& operation) noexcept {
    const MpiErrorsReturn errors_return(options_.blocking);
    const bool is_over = operation.withdraw();
    // A receive whose message was already on the way may take a while to end.
    if (!is_over && in_place()) operation.let_go(std::min<Duration>(options_.timeout, std::chrono::seconds(1)));
    return is_over || in_place();
  }

  // The words stay in memory: MPI may read them as long as the program runs.
  void tell_peers(const std::string& reason) noexcept {
    if (options_.blocking || !mpi_is_running()) return;
    auto words = std::make_unique<Words>();
    words->fill('\0');
    std::copy_n(reason.begin(), std::min(reason.size(), words->size() - 1), words->begin());
    for (int peer = 0; peer < size(); ++peer) {
      MPI_Request request = MPI_REQUEST_NULL;
      if (peer == rank()) continue;
      MPI_Isend(words->data(), static_cast<int>(words->size()), MPI_CHAR, world_rank(peer), words_tag(), world_->comm,
                &request);
      if (request != MPI_REQUEST_NULL) MPI_Request_free(&request);
    }
    static_cast<void>(words.release());
  }

  // Dies if a peer has left last words.
  void hear() {
    int is_there = 0;
    MPI_Message handle = MPI_MESSAGE_NULL;
    MPI_Status status;
    const int code = MPI_Improbe(MPI_ANY_SOURCE, words_tag(), world_->comm, &is_there, &handle, &status);
    if (code != MPI_SUCCESS) die("looking for last words: " + mpi_error_text(code));
    if (is_there == 0) return;
    Words words{};
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Imrecv(words.data(), static_cast<int>(words.size()), MPI_CHAR, &handle, &request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    words.back() = '\0';
    const auto from = std::find(place_.ranks.begin(), place_.ranks.end(), status.MPI_SOURCE) - place_.ranks.begin();
    die(text_of("rank ", from, " gave up: ", words.data()));
  }

  std::shared_ptr<MpiWorld> world_;
  Part place_;  // ranks of the world; the number is the tag
  MpiOptions options_;
  bool is_dead_ = false;
  std::string reason_;
  std::unique_ptr<OperationPool<MpiOperation>> operations_;
  MpiInbox inbox_;
};

}  // namespace

bool mpi_available() { return true; }

bool mpi_is_running() {
  int initialised = 0;
  int finalised = 0;
  MPI_Initialized(&initialised);
  MPI_Finalized(&finalised);
  return initialised != 0 && finalised == 0;
}

MpiSession::MpiSession(MpiThreads threads) {
  int initialised = 0;
  MPI_Initialized(&initialised);
  if (initialised != 0) return;
  const int needed = threads == MpiThreads::any ? MPI_THREAD_SERIALIZED : MPI_THREAD_SINGLE;
  int provided = MPI_THREAD_SINGLE;
  const int code = MPI_Init_thread(nullptr, nullptr, needed, &provided);
  if (code != MPI_SUCCESS) fail<CommError>("mpi: initialising: ", mpi_error_text(code));
  if (provided < needed) {
    MPI_Finalize();
    fail<CommError>("mpi: this MPI gives ", mpi_thread_level(provided), ", but ", mpi_thread_level(needed),
                    " is needed: use an MPI with thread support, or ",
                    "MpiSession(MpiThreads::first) and no BucketedReducer");
  }
  owns_ = true;
}

MpiSession::~MpiSession() {
  if (owns_ && mpi_is_running()) MPI_Finalize();
}

std::unique_ptr<Communicator> make_mpi_communicator(MPI_Comm comm, const MpiOptions& options) {
  require(mpi_is_running(), "mpi: not initialised, or already finalised (see MpiSession)");
  require(comm != MPI_COMM_NULL, "mpi: the communicator is MPI_COMM_NULL");
  require(options.timeout > Communicator::Duration::zero(), "mpi: the timeout must be positive");
  require(options.chunk_bytes >= 1 && options.chunk_bytes <= INT_MAX, "mpi: chunk_bytes ", options.chunk_bytes,
          ", must be from 1 to ", INT_MAX);
  MpiOptions limited = options;
  limited.timeout = std::min(options.timeout, kLongestTimeout);
  const auto world = std::make_shared<MpiWorld>(duplicate(comm, limited));
  world->last_tag = last_tag();
  Part place{.ranks = {}, .number = world->next_tag++};
  int size = 0;
  MPI_Comm_rank(world->comm, &place.rank);
  MPI_Comm_size(world->comm, &size);
  place.ranks.resize(static_cast<std::size_t>(size));
  std::iota(place.ranks.begin(), place.ranks.end(), 0);
  return std::make_unique<MpiCommunicator>(world, std::move(place), limited);
}

std::unique_ptr<Communicator> make_mpi_world(const MpiOptions& options) {
  return make_mpi_communicator(MPI_COMM_WORLD, options);
}

}  // namespace oktopk
