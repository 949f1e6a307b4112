// SPDX-License-Identifier: Apache-2.0
#include "oktopk/allreduce/allreduce.h"

#include <array>
#include <functional>

#include "oktopk/base/error.h"
#include "oktopk/select/selector.h"
#include "oktopk/sparse/set_ops.h"

namespace oktopk {
namespace {

using Statement = std::array<std::uint64_t, 3>;  // n, k, fingerprint

std::uint64_t mix(std::uint64_t hash, std::uint64_t value) {
  hash = (hash ^ value) * 0x9e3779b97f4a7c15U;
  return hash ^ (hash >> 29);
}

std::uint64_t text_hash(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325U;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3U;
  return hash;
}

std::uint64_t fingerprint(std::string_view name, const AllreduceOptions& o) {
  std::uint64_t hash = text_hash(name);
  hash = mix(hash, text_hash(to_string(o.codec)));
  hash = mix(hash, text_hash(o.skips));
  for (const int value : {static_cast<int>(o.residual), o.tau, o.tau_prime, o.bucket,
                          static_cast<int>(o.balance_trigger * 1000), static_cast<int>(o.dense)})
    hash = mix(hash, static_cast<std::uint64_t>(value));
  return hash;
}

void check(const Contribution& mine, Index n, std::size_t k, bool dense) {
  require(n == 0 ? k == 0 : (k >= 1 && k <= n), "allreduce: k = ", k,
          ", but k must be in 1..n with n = ", n);
  if (dense) {
    require(mine.dense.size() == n, "allreduce: a dense algorithm needs all n = ", n,
            " values, got ", mine.dense.size());
    return;
  }
  const CooView v = mine.selection;
  require(v.size() <= max_selection(k), "allreduce: the selection has ", v.size(),
          " entries, but at most 2k = ", max_selection(k), " may be sent");
  require(is_canonical(v), "allreduce: the selection's indices must be strictly increasing");
  require(v.empty() || v.idx.back() < n, "allreduce: the selection has index ",
          v.empty() ? 0 : v.idx.back(), ", but n = ", n);
}

}  // namespace

void Allreduce::run(Communicator& comm, const Device& device, const Contribution& mine, Index n,
                    std::size_t k, Outcome& out) {
  check(mine, n, k, is_dense());
  const std::size_t bad = device.first_nonfinite(is_dense() ? mine.dense : mine.selection.val);
  require(bad == (is_dense() ? mine.dense : mine.selection.val).size(), "allreduce: value ", bad,
          " is not finite");
  if (!agreed_) agree(comm, n, k);
  agreed_ = true;
  out.update.clear();
  out.dense_update.clear();
  out.returned.clear();
  out.dropped.clear();
  out.refreshed = steps_ == 0;
  const auto tag =
      static_cast<std::uint32_t>(mix(mix(mix(fingerprint(name(), options_), n), k), steps_) >> 32);
  do_run({comm, device, mine, n, k, tag, steps_}, out);
  intersect(mine.selection, out.update.idx, out.shared);
  make_canonical(out.returned);
  make_canonical(out.dropped);
  ++steps_;
  OKTOPK_DCHECK(is_canonical(out.update));
}

Cost Allreduce::agreement_cost(int P) {
  return {static_cast<double>(ceil_log2(P)), (P - 1.0) * sizeof(Statement), 0};
}

void Allreduce::agree(Communicator& comm, Index n, std::size_t k) {
  const Statement mine = {n, k, fingerprint(name(), options_)};
  std::vector<Statement> all(static_cast<std::size_t>(comm.size()));
  allgather(comm, std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all)), work_);
  for (std::size_t r = 1; r < all.size(); ++r) {
    require(all[r][0] == all[0][0], "allreduce: rank ", r, " has n = ", all[r][0],
            ", rank 0 has n = ", all[0][0]);
    require(all[r][1] == all[0][1], "allreduce: rank ", r, " has k = ", all[r][1],
            ", rank 0 has k = ", all[0][1]);
    require(all[r][2] == all[0][2], "allreduce: rank ", r,
            " has another preset or other options than rank 0");
  }
}

}  // namespace oktopk
