// SPDX-License-Identifier: Apache-2.0
// Checkpoints of a training run, as tools/train/trainer.h says.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "oktopk/base/error.h"
#include "oktopk/base/state.h"
#include "oktopk/comm/collectives.h"
#include "oktopk/reduce/notes.h"
#include "tools/train/trainer.h"

namespace oktopk {
namespace {

namespace fs = std::filesystem;

fs::path file_of(const std::string& dir, const std::string& preset) { return fs::path(dir) / (preset + ".state"); }

Bytes read_file(const fs::path& path) {
  std::ifstream in(path, std::ios::binary | std::ios::ate);
  require(in.good(), "nothing to resume: cannot read ", path.string());
  Bytes bytes(static_cast<std::size_t>(in.tellg()));
  in.seekg(0);
  in.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  require(in.good(), "cannot read ", path.string());
  return bytes;
}

void write_file(const fs::path& path, std::span<const std::byte> bytes) {
  std::error_code failed;
  fs::create_directories(path.parent_path(), failed);
  const fs::path beside = path.string() + ".new";
  std::ofstream out(beside, std::ios::binary);
  out.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  out.close();
  require(out.good(), "cannot write ", beside.string());
  fs::rename(beside, path, failed);
  require(!failed, "cannot write ", path.string(), ": ", failed.message());
}

// The settings that two runs must share for one to continue the other. The samples per rank may differ: on another
// number of ranks another value keeps the global batch.
std::string description(const TrainOptions& o) {
  return fmt::format("model {}, {} steps, seed {}, nodes of {}, {}", o.model, o.steps, o.seed,
                     o.group == 0 ? "a host" : std::to_string(o.group), to_json(o.recipe).dump());
}

Gathered gather_bytes(Communicator& comm, const Bytes& mine, Workspace& work) {
  const std::size_t size = mine.size();
  std::vector<std::size_t> sizes(static_cast<std::size_t>(comm.size()));
  allgather(comm, std::as_bytes(std::span(&size, 1)), std::as_writable_bytes(std::span(sizes)), work);
  Gathered all;
  allgatherv(comm, mine, sizes, all);
  return all;
}

}  // namespace

void save_checkpoint(Communicator& comm, const TrainOptions& options, const TrainState& state,
                     std::span<const float> weights, const Optimiser& optimiser) {
  Workspace work;
  const std::string progress = nlohmann::json(state).dump();
  const Gathered ranks = gather_bytes(comm, write_state([&](StateWriter& out) {
                                        out.put_text(progress);
                                        out.put_state([&](StateWriter& inner) { optimiser.write(inner); });
                                      }),
                                      work);
  agree_on_success(comm, work, [&] {
    if (comm.rank() != 0) return;
    write_file(file_of(options.checkpoint_dir, options.reducer.preset), write_state([&](StateWriter& out) {
                 out.put_text(description(options));
                 out.put_all(weights);
                 out.put(comm.size());
                 for (int r = 0; r < comm.size(); ++r) out.put_bytes(ranks.of(r));
               }));
  });
}

bool finds_checkpoint(Communicator& comm, const std::string& dir, const std::string& preset) {
  bool found = fs::exists(file_of(dir, preset));
  broadcast(comm, 0, std::as_writable_bytes(std::span(&found, 1)));
  return found;
}

void load_checkpoint(Communicator& comm, const TrainOptions& options, TrainState& state, std::span<float> weights,
                     Optimiser& optimiser) {
  const fs::path path = file_of(options.resume_dir, options.reducer.preset);
  Bytes file;
  std::vector<float> saved;
  std::vector<std::string> progress;
  std::vector<std::span<const std::byte>> optimisers;  // by rank of the earlier run
  Workspace work;
  agree_on_success(comm, work, [&] {
    file = read_file(path);
    StateReader in(file);
    const std::string run = in.take_text();
    require(run == description(options), path.string(), ": of another run (", run, ")");
    saved = in.take_all<float>();
    require(saved.size() == weights.size(), path.string(), ": ", saved.size(), " weights, but the model has ",
            weights.size());
    for (int rest = in.take<int>(); rest > 0; --rest) {
      StateReader rank(in.take_view());
      progress.push_back(rank.take_text());
      optimisers.push_back(rank.take_view());
      rank.finish();
    }
    in.finish();
  });
  const bool is_same_P = static_cast<int>(optimisers.size()) == comm.size();
  const auto mine = static_cast<std::size_t>(is_same_P ? comm.rank() : 0);
  if (is_same_P)
    optimiser.load(optimisers[mine]);
  else
    optimiser.load_all(optimisers.size(), [&](std::size_t r) { return optimisers[r]; });
  state = nlohmann::json::parse(progress[mine]).get<TrainState>();
  std::copy(saved.begin(), saved.end(), weights.begin());
}

}  // namespace oktopk
