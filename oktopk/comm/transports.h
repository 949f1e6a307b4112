// SPDX-License-Identifier: Apache-2.0
// The transports: how P ranks come to hold a Communicator each. "threads" are ranks inside one process, "mpi" the ranks
// of an MPI program, "tcp" processes on one host or many without MPI. A library may be built without MPI (no_mpi.cc) or
// TCP (no_tcp.cc): mpi_available() or tcp_available() is then false, and the rest of that transport throws UsageError.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "oktopk/base/error.h"
#include "oktopk/comm/communicator.h"

namespace oktopk {

// Transport "threads". It needs nothing installed. A message is copied once, from the sender's buffer into the
// receiver's, by the side that comes second.

// The P communicators of a new world, one per rank, each for one thread. When one of them fails or is destroyed with
// exchanges in flight, the waits of all others throw CommError at once, in the world and in the parts split from it; a
// part that dies does not kill the whole. A rank may be destroyed early: only a wait for it fails.
std::vector<std::unique_ptr<Communicator>> make_thread_world(
    int P, Communicator::Duration timeout = Communicator::kDefaultTimeout);

// Runs `body` on P threads, one rank each, and joins them; a rank's communicator ends with its body. If a rank throws,
// the world dies so that the others end promptly, and the first error that is not a consequence is rethrown.
void run_threads(int P, const std::function<void(Communicator&)>& body,
                 Communicator::Duration timeout = Communicator::kDefaultTimeout);

// Transport "mpi" (OpenMPI, MPICH). No MPI type appears here; mpi_comm.h takes an MPI_Comm. Waits poll and yield, so
// that more ranks than cores progress.

bool mpi_available();
// Whether MPI is initialised and not yet finalised, by whomever.
bool mpi_is_running();

// The threads that call MPI, one at a time.
enum class MpiThreads { first, any };

// Initialises MPI unless the program already did, and finalises what it initialised. CommError when this MPI does not
// allow those threads (any: MPI_THREAD_SERIALIZED). See also Communicator::require_any_thread().
class MpiSession {
 public:
  explicit MpiSession(MpiThreads threads = MpiThreads::any);
  ~MpiSession();
  MpiSession(const MpiSession&) = delete;
  MpiSession& operator=(const MpiSession&) = delete;

 private:
  [[maybe_unused]] bool owns_ = false;  // unused by no_mpi.cc
};

struct MpiOptions {
  Communicator::Duration timeout = Communicator::kDefaultTimeout;
  // Above this many bytes a message is described by a derived datatype of such chunks, because MPI counts are int.
  // Tests lower it.
  std::size_t chunk_bytes = std::size_t{1} << 30;
  // MPI reads and writes the buffers given to start() where they lie, which saves a copy of each message. REQUIRES:
  // after a CommError no such buffer is freed before the program ends, because a message that has begun cannot be
  // taken back (docs/errors.md). If false, buffers are free as soon as wait() has thrown.
  bool in_place = false;
  // Waits inside MPI instead of polling: no timeout. For a simulator of MPI, in which polling would take simulated
  // time and which detects deadlocks itself. Implies in_place.
  bool blocking = false;
};

// All ranks of the program (MPI_COMM_WORLD, duplicated). REQUIRES: MPI is initialised (see MpiSession). Collective;
// waits for ranks that start late for the timeout or kDefaultTimeout, whichever is longer.
std::unique_ptr<Communicator> make_mpi_world(const MpiOptions& options = {});

// How the ranks of transport "tcp" find each other: a small store of keys and values that all ranks can reach. It is a
// server at host:port (RendezvousServer), a shared directory, or two functions of the caller (a torch Store). Each rank
// writes its address, reads those of lower ranks, and connects to them. COST: about P small requests per rank, once per
// world.

// A store for addresses. get() waits for the key up to the timeout and returns nothing when it did not come; both throw
// CommError when the store cannot be reached. Values are bytes. remove may be empty: keys then stay.
struct KeyValueStore {
  std::function<void(const std::string& key, const std::string& value)> set;
  std::function<std::optional<std::string>(const std::string& key, Communicator::Duration timeout)> get;
  std::function<void(const std::string& key)> remove;
};

// Connections that a listener dropped: garbage, half a handshake, a wrong secret. Any thread may read and write it.
class RefusalLog {
 public:
  static constexpr std::size_t kMostReasons = 16;

  void add(std::string reason);
  std::uint64_t count() const;
  std::vector<std::string> last() const;  // the newest last, at most kMostReasons

 private:
  mutable std::mutex mutex_;
  std::uint64_t count_ = 0;
  std::vector<std::string> last_;
};

// Files in a directory that all ranks see, made if it is absent; one file per key.
KeyValueStore make_file_store(const std::string& directory);

// The store of a RendezvousServer at `address` (host:port). It is reached anew whenever the connection broke, within
// `patience` per request. REQUIRES: the server has the same secret and job.
struct ServerStoreOptions {
  std::string address;
  std::string secret;
  std::string job;
  bool encrypt = false;
  Communicator::Duration patience = Communicator::kDefaultTimeout;
};
KeyValueStore make_server_store(const ServerStoreOptions& options);

// A server cannot listen at its address: another process does (taken), or it is no address of this host.
struct AddressError : CommError {
  AddressError(const std::string& text, bool taken) : CommError(text), is_taken(taken) {}
  bool is_taken;
};

// Serves such a store from a thread of its own until it is destroyed. AddressError when it cannot listen there.
struct RendezvousServerOptions {
  std::string listen = "127.0.0.1:0";  // port 0: a free one
  std::string secret;
  std::string job;
  bool encrypt = false;
  // Elastic jobs (elastic_world.h). How long members are waited for once one of them asks for the next epoch; and, of
  // these, members whose connection broke, since it did.
  Communicator::Duration grace = std::chrono::seconds(30);
  Communicator::Duration reattach = std::chrono::seconds(2);
  // A new server begins no job before so long: members of an older job find it in that time. Tests shorten it.
  Communicator::Duration settle = std::chrono::seconds(1);
  // A file for what the arbiter must know to go on exactly after a restart; read at the start, if it is there. Empty:
  // a new arbiter learns from the members what it can.
  std::string state;
  // Told what happens to members, and to the file; called from the server's thread. May be empty.
  std::function<void(const std::string&)> log;
};
class RendezvousServer {
 public:
  explicit RendezvousServer(const RendezvousServerOptions& options);
  ~RendezvousServer();
  RendezvousServer(const RendezvousServer&) = delete;
  RendezvousServer& operator=(const RendezvousServer&) = delete;

  std::string address() const;  // host:port
  const RefusalLog& refusals() const;

 private:
  class Service;
  std::unique_ptr<Service> service_;
};

// Random text of 64 hexadecimal digits, for a secret or the name of a job.
std::string make_random_secret();
inline constexpr std::size_t kLeastSecretBytes = 16;
// The first line of a file: a secret of printable ASCII. UsageError if there is none, or if its group or others may
// read or write the file; a file of another user (root, for example) may be readable by its group.
std::string read_secret_file(const std::string& path);

// Transport "tcp". Every pair of ranks has one connection. A secret that all ranks share proves membership; encrypt
// hides and protects the messages, too (docs/tcp.md, SECURITY.md).
//
// Failures: a connection that closes without a goodbye, a peer that is silent for longer than `silence`, and a rank
// that gives up are a CommError on every rank at once, with one text that names the culprit. Ranks in texts are those
// of the world, also in its parts. A thread of its own sends signs of life and makes progress while nobody waits.

bool tcp_available();

struct TcpOptions {
  int rank = 0;
  int size = 1;
  // host:port, where rank 0 listens unless somebody already does there (a RendezvousServer), or file:DIRECTORY.
  std::string rendezvous;
  // Instead of `rendezvous`: any other store.
  std::optional<KeyValueStore> store;
  std::string secret;       // equal on all ranks, at least kLeastSecretBytes
  bool encrypt = false;     // AES-256-GCM; equal on all ranks
  std::string job;          // a name that keeps the jobs that share a store and a secret apart
  std::uint64_t epoch = 1;  // worlds of one job, one after the other, have different epochs
  // Where this rank listens: an address or the name of a network interface. Empty: the address that faces the
  // rendezvous, or all addresses where that is no host.
  std::string interface;
  Communicator::Duration timeout = Communicator::kDefaultTimeout;       // of each wait
  Communicator::Duration join_timeout = Communicator::kDefaultTimeout;  // until all ranks are connected
  Communicator::Duration silence = std::chrono::seconds(10);            // a peer that says nothing for so long is lost
  // Messages that come before their receive are kept up to so many bytes per peer; then that peer has to wait.
  std::size_t early_bytes = std::size_t{64} << 20;
  std::shared_ptr<RefusalLog> refusals;  // may be null: connections that were dropped while the ranks gathered
  // Called about ten times a second by a thread that waits in an exchange, or for the ranks to come: whatever it throws
  // ends the wait, and the world. A program asks there whether its user wants it to stop. May be empty.
  std::function<void()> look;
};

// This rank of the world. Collective. UsageError names an option that breaks its rule; CommError names the ranks that
// did not come within join_timeout.
std::unique_ptr<Communicator> make_tcp_world(const TcpOptions& options);

}  // namespace oktopk
