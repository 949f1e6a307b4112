// SPDX-License-Identifier: Apache-2.0
// An NCCL for threads of one process and host memory: a shared object with the functions that calls.h names.
// Like NCCL, it answers "in progress" for a while and refuses to be used meanwhile, operations are queued and end when
// all ranks have queued them, and an abort on one rank is an error on the others.
#include "tests/comm/nccl/fake_nccl.h"

#include <chrono>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "oktopk/comm/nccl/calls.h"

#define FAKE_NCCL extern "C" __attribute__((visibility("default")))

namespace oktopk::fake {

constexpr int kSystemError = 2;
constexpr int kInvalidArgument = 4;
constexpr int kRemoteError = 6;
constexpr int kAnswersInProgress = 3;

enum class Kind { none, all_to_all, all_gather, all_reduce };

// One rank's part in an operation.
struct Call {
  Kind kind = Kind::none;
  NcclGroup* group = nullptr;
  const void* stream = nullptr;
  std::size_t bytes = 0;  // of a block
  std::vector<const void*> from;
  std::vector<void*> to;
};

// The ranks of one id.
struct Room {
  int P = 0;
  int joined = 0;
  bool is_broken = false;
  std::vector<std::map<int, Call>> operations;
};

struct Stream {
  std::uint64_t queued = 0;
  std::uint64_t done = 0;
};

std::mutex mutex;  // of all that follows, and of the groups
std::map<std::string, std::shared_ptr<Room>> rooms;
std::map<const void*, Stream> streams;
FakeNccl control;
thread_local int depth = 0;
thread_local Call building;

std::uint64_t queued(const void* stream) {
  const std::lock_guard lock(mutex);
  return streams[stream].queued;
}

std::uint64_t done(const void* stream) {
  const std::lock_guard lock(mutex);
  return streams[stream].done;
}

void add(const Call& from, std::vector<float>& sum) {
  const auto* values = static_cast<const float*>(from.from[0]);
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += values[i];
}

void perform_reduction(std::map<int, Call>& calls) {
  std::vector<float> sum(calls[0].bytes / sizeof(float));
  for (const auto& [rank, call] : calls) add(call, sum);
  for (const auto& [rank, call] : calls) std::memcpy(call.to[0], sum.data(), call.bytes);
}

void perform(std::map<int, Call>& calls) {
  const Kind kind = calls[0].kind;
  if (kind == Kind::all_reduce) return perform_reduction(calls);
  for (const auto& [rank, call] : calls)
    for (const auto& [peer, source] : calls) {
      const void* from = kind == Kind::all_to_all ? source.from[static_cast<std::size_t>(rank)] : source.from[0];
      void* to = kind == Kind::all_to_all
                     ? call.to[static_cast<std::size_t>(peer)]
                     : static_cast<char*>(call.to[0]) + call.bytes * static_cast<std::size_t>(peer);
      std::memmove(to, from, call.bytes);
    }
}

}  // namespace oktopk::fake

namespace oktopk {

using namespace fake;

struct NcclGroup {
  std::shared_ptr<Room> room;
  int rank = 0;
  std::size_t next = 0;  // operation
  int busy = kAnswersInProgress;

  int state() {
    if (control.has_error || room->is_broken) return kRemoteError;
    if (room->joined < room->P || busy > 0) {
      --busy;
      return kNcclInProgress;
    }
    return kNcclSuccess;
  }

  // The last rank that comes does the work of all.
  void enter(Call call) {
    ++streams[call.stream].queued;
    if (room->operations.size() == next) room->operations.emplace_back();
    std::map<int, Call>& calls = room->operations[next++];
    calls[rank] = std::move(call);
    busy = kAnswersInProgress;
    if (static_cast<int>(calls.size()) < room->P || control.ops_hang) return;
    perform(calls);
    for (const auto& [peer, part] : calls) ++streams[part.stream].done;
  }
};

}  // namespace oktopk

namespace oktopk::fake {

// Takes one call between the start and the end of a group call.
int take(Kind kind, NcclGroup* group, const void* stream, std::size_t bytes) {
  const std::lock_guard lock(mutex);
  if (control.refuses) return kSystemError;
  if (depth == 0 || group->busy > 0 || group->room->joined < group->room->P ||
      (building.kind != Kind::none && building.kind != kind)) {
    ++control.misused;
    return kInvalidArgument;
  }
  building.kind = kind;
  building.group = group;
  building.stream = stream;
  building.bytes = bytes;
  return kNcclSuccess;
}

std::size_t size_of(int type) { return type == kNcclFloats ? sizeof(float) : 1; }

}  // namespace oktopk::fake

using namespace oktopk;
using namespace oktopk::fake;

FAKE_NCCL FakeNccl* fake_nccl() {
  control.queued = queued;
  control.done = done;
  return &control;
}

FAKE_NCCL int ncclGetVersion(int* version) {
  *version = control.version;
  return kNcclSuccess;
}

FAKE_NCCL const char* ncclGetErrorString(int result) {
  return result == kSystemError ? "unhandled system error" : "remote process exited or there was a network error";
}

FAKE_NCCL const char* ncclGetLastError(NcclGroup*) { return "the last error"; }

FAKE_NCCL int ncclGetUniqueId(NcclId* id) {
  static std::atomic<int> count{0};
  *id = {};
  std::memcpy(id->bytes, "room ", 5);
  const std::string number = std::to_string(++count);
  std::memcpy(id->bytes + 100, number.data(), number.size());  // all of the bytes must arrive
  return kNcclSuccess;
}

FAKE_NCCL int ncclCommInitRankConfig(NcclGroup** out, int P, NcclId id, int rank, NcclConfig* config) {
  if (config->size != 24 || config->magic != 0xcafebeef || config->version != 21400 || config->blocking != 0)
    return kInvalidArgument;
  if (rank == control.failing_rank) return kSystemError;
  const std::lock_guard lock(mutex);
  std::shared_ptr<Room>& room = rooms[std::string(id.bytes, sizeof(id.bytes))];
  if (!room) room = std::make_shared<Room>();
  room->P = P;
  room->joined += rank == control.absent_rank ? 0 : 1;
  *out = new NcclGroup{room, rank};
  return kNcclInProgress;
}

FAKE_NCCL int ncclCommGetAsyncError(NcclGroup* group, int* result) {
  const std::lock_guard lock(mutex);
  *result = group->state();
  return kNcclSuccess;
}

FAKE_NCCL int ncclCommFinalize(NcclGroup* group) {
  const std::lock_guard lock(mutex);
  group->busy = kAnswersInProgress;
  ++control.finalised;
  return kNcclInProgress;
}

FAKE_NCCL int ncclCommDestroy(NcclGroup* group) {
  const std::lock_guard lock(mutex);
  delete group;
  ++control.destroyed;
  return kNcclSuccess;
}

FAKE_NCCL int ncclCommAbort(NcclGroup* group) {
  while (control.abort_hangs) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  const std::lock_guard lock(mutex);
  group->room->is_broken = true;
  delete group;
  ++control.aborted;
  return kNcclSuccess;
}

FAKE_NCCL int ncclGroupStart() {
  ++depth;
  ++control.open_groups;
  building = {};
  return kNcclSuccess;
}

FAKE_NCCL int ncclGroupEnd() {
  --depth;
  --control.open_groups;
  if (building.kind == Kind::none) return kNcclSuccess;
  const std::lock_guard lock(mutex);
  building.group->enter(std::exchange(building, {}));
  return kNcclInProgress;
}

FAKE_NCCL int ncclSend(const void* from, std::size_t n, int type, int peer, NcclGroup* group, void* stream) {
  const int result = take(Kind::all_to_all, group, stream, n * size_of(type));
  if (result != kNcclSuccess) return result;
  if (static_cast<std::size_t>(peer) != building.from.size()) return kInvalidArgument;
  building.from.push_back(from);
  return kNcclSuccess;
}

FAKE_NCCL int ncclRecv(void* to, std::size_t n, int type, int peer, NcclGroup* group, void* stream) {
  const int result = take(Kind::all_to_all, group, stream, n * size_of(type));
  if (result != kNcclSuccess) return result;
  if (static_cast<std::size_t>(peer) != building.to.size()) return kInvalidArgument;
  building.to.push_back(to);
  return kNcclSuccess;
}

FAKE_NCCL int ncclAllGather(const void* from, void* to, std::size_t n, int type, NcclGroup* group, void* stream) {
  building.from = {from};
  building.to = {to};
  return take(Kind::all_gather, group, stream, n * size_of(type));
}

FAKE_NCCL int ncclAllReduce(const void* from, void* to, std::size_t n, int type, int sum, NcclGroup* group,
                            void* stream) {
  if (type != kNcclFloats || sum != kNcclSum) return kInvalidArgument;
  building.from = {from};
  building.to = {to};
  return take(Kind::all_reduce, group, stream, n * size_of(type));
}
