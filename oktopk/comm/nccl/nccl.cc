// SPDX-License-Identifier: Apache-2.0
// GpuExchange over NCCL. The ranks first compare whether each of them could start, because NCCL waits for all of them;
// then rank 0's id goes to everybody, and NCCL connects the ranks.
// COST of an operation for the host: NCCL's launch, two look-ups of where memory lies, and one or two calls of CUDA.
#include "oktopk/comm/gpu_exchange.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "oktopk/base/error.h"
#include "oktopk/comm/collectives.h"
#include "oktopk/comm/communicator.h"
#include "oktopk/comm/first_error.h"
#include "oktopk/comm/flight.h"
#include "oktopk/comm/nccl/calls.h"
#include "oktopk/comm/transport_support.h"

namespace oktopk {
namespace {

// The operations of an NCCL exchange in the flight recorder of the communicator that started it, as a communicator of
// their own. An operation counts as a message to and from every other rank. It begins when it is queued, and is over
// when the rank next looks and the GPU has passed it.
// COST: that of the recorder, and O(P) per operation for the host.
class NcclFlight {
 public:
  // Collective, in the sense that all ranks make as many of them: their names are then equal.
  explicit NcclFlight(Communicator& comm) : recorder_(comm.flight()) {
    FlightLine& whole = comm.flight_line();
    line_ = recorder_->open({.name = text_of(whole.name, '/', whole.parts++, ":nccl"),
                             .rank = comm.rank(),
                             .size = comm.size(),
                             .transport = "nccl",
                             .ranks = whole.ranks});
    if (!line_->ranks.empty()) return;
    for (int r = 0; r < comm.size(); ++r) line_->ranks.push_back(r);
  }

  // REQUIRES: the verb lives for ever. `memory` is not read.
  void begin(std::string_view verb, const void* memory, std::size_t bytes) {
    sends_.clear();
    recvs_.clear();
    auto* const at = const_cast<std::byte*>(static_cast<const std::byte*>(memory));
    for (int peer = 0; peer < line_->size; ++peer) {
      if (peer == line_->rank) continue;
      sends_.push_back({peer, {at, bytes}});
      recvs_.push_back({peer, {at, bytes}});
    }
    line_->outer = verb;
    open_.emplace_back(recorder_->begin(*line_, sends_, recvs_), bytes);
    if (open_.size() > FlightRecorder::kOperations) open_.erase(open_.begin());
  }

  // All operations that have begun.
  void end_all(FlightState state) {
    for (const auto& [number, bytes] : std::exchange(open_, {})) {
      for (Recv& recv : recvs_) recv.size = state == FlightState::done ? bytes : 0;
      recorder_->end(number, recvs_, state);
    }
  }
  void fail(std::string_view error) {
    end_all(FlightState::failed);
    recorder_->note_error(error);
  }

 private:
  std::shared_ptr<FlightRecorder> recorder_;
  std::shared_ptr<FlightLine> line_;
  std::vector<std::pair<std::uint64_t, std::size_t>> open_;  // number and bytes
  std::vector<Send> sends_;
  std::vector<Recv> recvs_;
};

// One rank's place in an NCCL communicator that does not block. NCCL answers "in progress", and the member asks again
// until the answer is another one or the limit has passed. Results are those of ncclResult_t; kNcclInProgress: the
// limit has passed.
class NcclMember {
 public:
  using Duration = Communicator::Duration;

  NcclMember(const NcclApi& api, Duration timeout) : api_(api), timeout_(timeout) {}
  ~NcclMember() { leave(); }
  NcclMember(const NcclMember&) = delete;
  NcclMember& operator=(const NcclMember&) = delete;

  // Collective.
  int join(GpuCalls& gpu, int P, int rank, const NcclId& id, Duration limit) {
    NcclConfig config;
    int result = kNcclSuccess;
    gpu.on_gpu([&] { result = api_.comm_init_rank_config(&group_, P, id, rank, &config); });
    return settle(result, limit);
  }

  // Calls act(api, group), which queues operations and returns a result, between the start and the end of a group call.
  // Returns when NCCL has queued them.
  template <class Act>
  int queue(GpuCalls& gpu, const Act& act) {
    int result = kNcclSuccess;
    gpu.on_gpu([&] {
      result = api_.group_start();
      if (result != kNcclSuccess) return;
      result = act(api_, group_);
      const int end = api_.group_end();  // also after an error: it ends what group_start() began
      if (is_fine(result)) result = end;
    });
    return settle(result, timeout_);
  }

  // Never kNcclInProgress, because queue() waits for that.
  int state() const {
    int result = kNcclSuccess;
    const int status = api_.comm_get_async_error(group_, &result);
    return status == kNcclSuccess ? result : status;
  }

  std::string text_of_result(int result) const {
    const std::string last = api_.get_last_error(nullptr);
    return text_of(api_.get_error_string(result), last.empty() ? "" : ": ", last,
                   " (NCCL_DEBUG=WARN in the environment makes NCCL say more)");
  }

  // Ends operations that are in flight, here and on the other ranks.
  void abort() noexcept {
    if (NcclGroup* group = std::exchange(group_, nullptr)) call_within_limit(api_.comm_abort, group);
  }

  static bool is_fine(int result) { return result == kNcclSuccess || result == kNcclInProgress; }

 private:
  // Both calls take far less where all is well.
  Duration limit_of_end() const { return std::min<Duration>(timeout_, std::chrono::seconds(5)); }

  int settle(int result, Duration limit) const {
    if (!is_fine(result)) return result;
    poll(limit, [&] { return (result = state()) != kNcclInProgress; });
    return result;
  }

  void leave() noexcept {
    if (group_ == nullptr) return;
    if (settle(api_.comm_finalize(group_), timeout_) == kNcclSuccess)  // waits for what is queued
      call_within_limit(api_.comm_destroy, std::exchange(group_, nullptr));
    else
      abort();
  }

  // These two calls of NCCL may block for ever where another rank has died: a thread makes them, and is left behind.
  void call_within_limit(int (*act)(NcclGroup*), NcclGroup* group) const noexcept {
    try {
      std::promise<void> promise;
      const std::future<void> end = promise.get_future();
      std::thread caller([act, group, promise = std::move(promise)]() mutable {
        act(group);
        promise.set_value();
      });
      end.wait_for(limit_of_end()) == std::future_status::ready ? caller.join() : caller.detach();
    } catch (...) {
      // No thread can be had: the group stays, and with it some memory.
    }
  }

  NcclApi api_;
  Duration timeout_;
  NcclGroup* group_ = nullptr;
};

// Tells that an operation takes too long, without a wait. The mark stands behind one operation; later ones wait for
// their turn, so that a busy stream does not look like a late one.
class Watch {
 public:
  void add(GpuCalls& gpu, void* stream) {
    next_ = stream;
    move_mark(gpu);
  }

  bool is_late(GpuCalls& gpu, Communicator::Duration timeout) {
    move_mark(gpu);
    return since_ && Clock::now() - *since_ > timeout;
  }

  // Nothing that was added is in flight.
  bool is_idle(GpuCalls& gpu) {
    move_mark(gpu);
    move_mark(gpu);  // behind operations that waited for the mark
    return !since_;
  }

 private:
  using Clock = std::chrono::steady_clock;

  void move_mark(GpuCalls& gpu) {
    if (since_ && !gpu.passed_mark()) return;
    since_.reset();
    if (!next_) return;
    gpu.set_mark(*next_);
    since_ = Clock::now();
    next_.reset();
  }

  std::optional<Clock::time_point> since_;  // when the mark was set; none: no operation is in flight
  std::optional<void*> next_;               // the stream of operations behind the mark
};

class NcclExchange final : public GpuExchange {
 public:
  NcclExchange(const Communicator& comm, const NcclOptions& options, const NcclApi& api, std::unique_ptr<GpuCalls> gpu)
      : rank_(comm.rank()),
        size_(comm.size()),
        ordinal_(options.ordinal),
        timeout_(options.timeout),
        gpu_(std::move(gpu)),
        member_(api, options.timeout) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  // From now on operations are recorded with those of `comm`.
  void record_in(Communicator& comm) { flight_.emplace(comm); }

  // Collective. After an error only kill() may follow.
  void connect(const NcclId& id, Communicator::Duration limit) {
    const int result = member_.join(*gpu_, size_, rank_, id, limit);
    if (result == kNcclSuccess) return;
    if (result == kNcclInProgress)
      fail<LateError>("NCCL did not connect the ranks within ", in_seconds(limit),
                      " s: a rank died or cannot be reached");
    const bool may_share = result == kNcclInvalidUsage;
    fail<CommError>(
        "NCCL cannot start: ", member_.text_of_result(result),
        may_share ? "; several ranks on one GPU need the settings that oktopk/comm/gpu_exchange.h lists" : "");
  }

  void all_to_all(const void* send, void* receive, std::size_t bytes_each, void* stream) override {
    require_usable("all_to_all", stream);
    if (bytes_each == 0) return;
    const std::size_t all = bytes_each * static_cast<std::size_t>(size_);
    require_on_gpu("all_to_all: send", send);
    require_on_gpu("all_to_all: receive", receive);
    require(are_apart(send, all, receive, all), "all_to_all: send and receive overlap, but they must not");
    queue({"all_to_all", send, bytes_each}, stream, [&](const NcclApi& api, NcclGroup* group) {
      const auto* from = static_cast<const char*>(send);
      auto* to = static_cast<char*>(receive);
      int result = kNcclSuccess;
      for (int q = 0; q < size_ && NcclMember::is_fine(result); ++q, from += bytes_each, to += bytes_each) {
        result = api.send(from, bytes_each, kNcclBytes, q, group, stream);
        if (NcclMember::is_fine(result)) result = api.recv(to, bytes_each, kNcclBytes, q, group, stream);
      }
      return result;
    });
  }

  void all_gather(const void* mine, void* all, std::size_t bytes, void* stream) override {
    require_usable("all_gather", stream);
    if (bytes == 0) return;
    require_on_gpu("all_gather: mine", mine);
    require_on_gpu("all_gather: all", all);
    const bool in_place = mine == static_cast<const char*>(all) + bytes * static_cast<std::size_t>(rank_);
    require(in_place || are_apart(mine, bytes, all, bytes * static_cast<std::size_t>(size_)),
            "all_gather: mine and all overlap, but mine must be rank ", rank_, "'s block of all, or apart from it");
    queue({"all_gather", mine, bytes}, stream, [&](const NcclApi& api, NcclGroup* group) {
      return api.all_gather(mine, all, bytes, kNcclBytes, group, stream);
    });
  }

  void all_reduce(float* sum, std::size_t n, void* stream) override {
    require_usable("all_reduce", stream);
    if (n == 0) return;
    require_on_gpu("all_reduce: sum", sum);
    queue({"all_reduce", sum, n * sizeof(float)}, stream, [&](const NcclApi& api, NcclGroup* group) {
      return api.all_reduce(sum, sum, n, kNcclFloats, kNcclSum, group, stream);
    });
  }

  void check() override {
    require_alive("check");
    guard_gpu([&] {
      bury_if_failed("an earlier operation");
      if (watch_.is_late(*gpu_, timeout_)) bury_late("an earlier operation");
      if (watch_.is_idle(*gpu_)) flight_->end_all(FlightState::done);
    });
  }

  void wait(void* stream) override {
    require_usable("wait", stream);
    guard_gpu([&] {
      const bool is_done = poll(timeout_, [&] {
        bury_if_failed("wait");
        return gpu_->is_done(stream);
      });
      if (!is_done) bury_late("wait");
      bury_if_failed("wait");
      if (watch_.is_idle(*gpu_)) flight_->end_all(FlightState::done);
    });
  }

  void kill() noexcept override {
    is_dead_ = true;
    member_.abort();
  }

 private:
  struct Operation {
    const char* verb;
    const void* memory;
    std::size_t bytes;  // to each rank
  };

  template <class Act>
  void queue(const Operation& operation, void* stream, const Act& act) {
    const char* const verb = operation.verb;
    flight_->begin(verb, operation.memory, operation.bytes);
    guard_gpu([&] {
      const int result = member_.queue(*gpu_, act);
      if (result == kNcclInProgress) bury_late(verb);
      if (result != kNcclSuccess) bury(verb, " failed: ", member_.text_of_result(result));
      watch_.add(*gpu_, stream);
    });
  }

  // A GPU that failed leaves the group dead.
  template <class Act>
  void guard_gpu(const Act& act) {
    try {
      act();
    } catch (const DeviceError& error) {
      why_ = error.what();
      kill();
      flight_->fail(why_);
      fail<DeviceError>("rank ", rank_, ": nccl exchange: ", why_);
    }
  }

  void bury_if_failed(const char* verb) {
    if (const int result = member_.state(); !NcclMember::is_fine(result))
      bury(verb, " failed: ", member_.text_of_result(result));
  }

  [[noreturn]] void bury_late(const char* verb) {
    bury(verb, " did not end within ", in_seconds(timeout_),
         " s: a rank died, is late, or did not call the same operations in the same order");
  }

  template <class... Parts>
  [[noreturn]] void bury(const Parts&... parts) {
    why_ = text_of(parts...);
    kill();
    flight_->fail(why_);
    fail<CommError>("rank ", rank_, ": nccl exchange: ", why_);
  }

  void require_alive(const char* verb) const {
    if (is_dead_) fail<CommError>("rank ", rank_, ": nccl exchange: ", verb, ": the group is dead: ", why_);
  }

  void require_usable(const char* verb, const void* stream) const {
    const auto per_thread = std::uintptr_t{2};  // cudaStreamPerThread
    require_alive(verb);
    require(reinterpret_cast<std::uintptr_t>(stream) != per_thread, verb,
            ": the stream is cudaStreamPerThread, but NCCL queues from another thread: create a stream");
  }

  void require_on_gpu(const char* what, const void* memory) {
    require(memory != nullptr, what, " is null");
    int place = -1;
    guard_gpu([&] { place = gpu_->locate(memory); });
    require(place == ordinal_, what, place == -1 ? " lies in host memory" : text_of(" lies on GPU ", place),
            ", but it must lie on GPU ", ordinal_);
  }

  static bool are_apart(const void* a, std::size_t a_bytes, const void* b, std::size_t b_bytes) {
    const auto x = reinterpret_cast<std::uintptr_t>(a);
    const auto y = reinterpret_cast<std::uintptr_t>(b);
    return x + a_bytes <= y || y + b_bytes <= x;
  }

  int rank_, size_, ordinal_;
  Communicator::Duration timeout_;
  std::unique_ptr<GpuCalls> gpu_;
  NcclMember member_;
  Watch watch_;
  std::optional<NcclFlight> flight_;  // set before the first operation
  bool is_dead_ = false;
  std::string why_ = "it was killed";
};

// This rank alone.
std::unique_ptr<NcclExchange> prepare(const Communicator& comm, const NcclOptions& options,
                                      const MakeGpuCalls& make_calls, int& version, NcclId& id) {
  require(options.timeout > Communicator::Duration::zero() && options.timeout <= kLongestTimeout,
          "timeout = ", in_seconds(options.timeout), " s, but it must be positive and at most a year");
  const NcclApi api = load_nccl(options.library);
  api.get_version(&version);
  auto exchange = std::make_unique<NcclExchange>(comm, options, api, make_calls());
  if (comm.rank() != 0) return exchange;
  if (const int result = api.get_unique_id(&id); result != kNcclSuccess)
    fail<DeviceError>("NCCL gives no id: ", api.get_error_string(result));
  return exchange;
}

}  // namespace

std::unique_ptr<GpuExchange> make_nccl_exchange(Communicator& comm, const NcclOptions& options,
                                                const MakeGpuCalls& make_calls) {
  std::unique_ptr<NcclExchange> exchange;
  int version = 0;
  NcclId id{};
  throw_first_error(comm, "nccl exchange",
                    error_of([&] { exchange = prepare(comm, options, make_calls, version, id); }));
  Workspace work;
  require_equal(comm, "nccl exchange", text_of("NCCL ", nccl_version_text(version)), work);
  broadcast(comm, 0, std::as_writable_bytes(std::span(id.bytes)));
  // A rank that failed waits for the others; their time must be over before its communicator's is.
  const auto limit = std::min(options.timeout, comm.timeout() * 3 / 4);
  const std::string error = error_of([&] { exchange->connect(id, limit); });
  try {
    throw_first_error(comm, "nccl exchange", error);
  } catch (...) {
    exchange->kill();
    throw;
  }
  exchange->record_in(comm);
  return exchange;
}

std::unique_ptr<GpuExchange> make_nccl_exchange(Communicator& comm, const NcclOptions& options) {
  return make_nccl_exchange(comm, options, [&] { return make_gpu_calls(options.ordinal, options.cuda_library); });
}

}  // namespace oktopk
