// SPDX-License-Identifier: Apache-2.0
// Messages of the transport "mpi" (mpi_communicator.h): Isend, Improbe and Imrecv with one tag, so that MPI's own
// order of messages is ours. Waits poll with Improbe and Test. Operations are pooled and keep their memory: no
// allocation of ours per message once warm.
#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <vector>

#include "oktopk/base/error.h"
#include "oktopk/comm/mpi/communicator.h"

namespace oktopk {
namespace {

// Last words have this size; MPI sends so little at once, whether or not anybody listens.
using Words = std::array<char, 256>;
// How many looks for messages there are between two looks for last words.
constexpr int kLooksPerHearing = 64;

// In place: how long a withdrawn receive may take to end when its message was already on the way.
constexpr Communicator::Duration kLongestGrace = std::chrono::seconds(1);

std::size_t bytes_of(MPI_Status& status) {
  int size = 0;
  MPI_Get_count(&status, MPI_BYTE, &size);
  // Only derived types need MPI_Get_elements_x, which a simulator may lack.
  if (size != MPI_UNDEFINED) return static_cast<std::size_t>(size);
  MPI_Count elements = 0;
  MPI_Get_elements_x(&status, MPI_BYTE, &elements);
  return static_cast<std::size_t>(elements);
}

}  // namespace

std::uint64_t MpiCommunicator::begin(std::span<const Send> sends, std::span<Recv> recvs) {
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

void MpiCommunicator::post(MpiOperation& operation) {
  for (std::size_t i = 0; i < operation.messages().size(); ++i) {
    if (operation.is_receive(i)) {
      expect(operation, i);
      continue;
    }
    MpiOperation::Message& message = operation.messages()[i];
    const MpiShape shape(message.bytes, options_.chunk_bytes);
    check(MPI_Isend(message.memory, shape.count(), shape.type(), world_rank(message.peer), place_.number, world_->comm,
                    &message.request),
          operation, i);
  }
}

void MpiCommunicator::expect(MpiOperation& operation, std::size_t i) {
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
void MpiCommunicator::collect() {
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

void MpiCommunicator::receive(const MpiInbox::Receive& what, MpiInbox::Arrived arrived) {
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

void MpiCommunicator::check(int code, const MpiOperation& operation, std::size_t i) {
  if (code != MPI_SUCCESS) die(operation.describe(i) + ": " + mpi_error_text(code));
}

// True when message i is complete; hands over what it received. Blocking: waits until it is.
bool MpiCommunicator::test(MpiOperation& operation, std::size_t i) {
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

void MpiCommunicator::finish(std::uint64_t ticket) {
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

void MpiCommunicator::wait_for(MpiOperation& operation) {
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
bool MpiCommunicator::withdraw(MpiOperation& operation) noexcept {
  const MpiErrorsReturn errors_return(options_.blocking);
  const bool is_over = operation.withdraw();
  if (!is_over && in_place()) operation.let_go(std::min(options_.timeout, kLongestGrace));
  return is_over || in_place();
}

void MpiCommunicator::abandon(std::uint64_t ticket) noexcept {
  if (mpi_is_running()) withdraw((*operations_)[ticket]);
  give_up("an exchange was abandoned", true);
}

// The words stay in memory: MPI may read them as long as the program runs.
void MpiCommunicator::tell_peers(const std::string& reason) noexcept {
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
void MpiCommunicator::hear() {
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

}  // namespace oktopk
