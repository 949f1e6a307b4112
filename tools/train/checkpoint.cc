// SPDX-License-Identifier: Apache-2.0
// Checkpoints of a training run, as tools/train/trainer.h says.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <map>

#include "oktopk/base/error.h"
#include "oktopk/base/state.h"
#include "oktopk/comm/collectives.h"
#include "oktopk/reduce/notes.h"
#include "tools/train/trainer.h"

namespace oktopk {
namespace {

namespace fs = std::filesystem;

std::string file_name(const std::string& preset, std::uint64_t step, int rank, int P) {
  return fmt::format("{}-{:08}-{}-of-{}.state", preset, step, rank, P);
}

// The files of one preset in a folder: {step, ranks} -> number of files.
std::map<std::pair<std::uint64_t, int>, int> find_sets(const std::string& dir, const std::string& preset) {
  std::map<std::pair<std::uint64_t, int>, int> sets;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(dir, ignored)) {
    const std::string name = entry.path().filename().string();
    unsigned long long step = 0;
    int rank = 0;
    int P = 0;
    if (!name.starts_with(preset + "-")) continue;
    if (std::sscanf(name.c_str() + preset.size(), "-%llu-%d-of-%d.state", &step, &rank, &P) == 3 &&
        name == file_name(preset, step, rank, P))
      ++sets[{step, P}];
  }
  return sets;
}

// The newest step with the files of all ranks, as {step, ranks}.
std::array<std::uint64_t, 2> newest(const std::string& dir, const std::string& preset) {
  std::array<std::uint64_t, 2> found = {0, 0};
  for (const auto& [set, files] : find_sets(dir, preset))
    if (files == set.second) found = {set.first, static_cast<std::uint64_t>(set.second)};
  return found;
}

Bytes read_file(const fs::path& path) {
  std::ifstream in(path, std::ios::binary | std::ios::ate);
  require(in.good(), "cannot read ", path.string());
  Bytes bytes(static_cast<std::size_t>(in.tellg()));
  in.seekg(0);
  in.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  require(in.good(), "cannot read ", path.string());
  return bytes;
}

void write_file(const fs::path& path, std::span<const std::byte> bytes) {
  const fs::path beside = path.string() + ".new";
  std::ofstream out(beside, std::ios::binary);
  out.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  out.close();
  require(out.good(), "cannot write ", beside.string());
  std::error_code failed;
  fs::rename(beside, path, failed);
  require(!failed, "cannot write ", path.string(), ": ", failed.message());
}

// The settings that two runs must share for one to continue the other. The samples per rank may differ: on another
// number of ranks another value keeps the global batch.
std::string description(const TrainOptions& o) {
  std::string text = fmt::format("model {}, {} steps, seed {}, {}", o.model, o.steps, o.seed, to_json(o.recipe).dump());
  if (o.group != 1) text += o.group == 0 ? ", nodes of a host" : fmt::format(", nodes of {}", o.group);
  return text;
}

std::vector<std::vector<double>*> columns(Curves& c) {
  return {&c.step,      &c.loss,      &c.bytes,         &c.selected,  &c.unsent,
          &c.test_step, &c.test_loss, &c.test_accuracy, &c.test_bytes};
}

std::vector<double*> numbers(TrainState& s) { return {&s.bytes, &s.messages, &s.stretch_loss, &s.stretch}; }

struct Loaded {
  Bytes file;
  TrainState state;
  std::vector<float> weights;
  std::span<const std::byte> optimiser;  // in the file
};

Loaded read_state(const fs::path& path, const TrainOptions& options, std::size_t n) {
  Loaded loaded{.file = read_file(path), .state = {}, .weights = {}, .optimiser = {}};
  StateReader in(loaded.file);
  const std::string saved = in.take_text();
  require(saved == description(options), path.string(), ": of another run (", saved, ")");
  loaded.state.step = in.take<std::uint64_t>();
  for (double* number : numbers(loaded.state)) *number = in.take<double>();
  for (std::vector<double>* column : columns(loaded.state.curves)) *column = in.take_all<double>();
  loaded.weights = in.take_all<float>();
  require(loaded.weights.size() == n, path.string(), ": ", loaded.weights.size(), " weights, but the model has ", n);
  loaded.optimiser = in.take_view();
  in.finish();
  return loaded;
}

}  // namespace

void save_checkpoint(Communicator& comm, const TrainOptions& options, const TrainState& state,
                     std::span<const float> weights, const Optimiser& optimiser) {
  TrainState copy = state;
  const Bytes bytes = write_state([&](StateWriter& out) {
    out.put_text(description(options));
    out.put(state.step);
    for (const double* number : numbers(copy)) out.put(*number);
    for (const std::vector<double>* column : columns(copy.curves)) out.put_all(std::span<const double>(*column));
    out.put_all(weights);
    out.put_state([&](StateWriter& inner) { optimiser.write(inner); });
  });
  const fs::path dir(options.checkpoint_dir);
  const std::string& preset = options.reducer.preset;
  // All ranks have the new step before any rank drops an older one.
  Workspace work;
  agree_on_success(comm, work, [&] {
    std::error_code failed;
    fs::create_directories(dir, failed);
    write_file(dir / file_name(preset, state.step, comm.rank(), comm.size()), bytes);
  });
  std::error_code ignored;
  for (const auto& [set, files] : find_sets(dir.string(), preset))
    if (set.first < state.step) fs::remove(dir / file_name(preset, set.first, comm.rank(), set.second), ignored);
}

bool finds_checkpoint(Communicator& comm, const std::string& dir, const std::string& preset) {
  std::array<std::uint64_t, 2> set = newest(dir, preset);
  broadcast(comm, 0, std::as_writable_bytes(std::span(set)));
  return set[1] > 0;
}

void load_checkpoint(Communicator& comm, const TrainOptions& options, TrainState& state, std::span<float> weights,
                     Optimiser& optimiser) {
  const fs::path dir(options.resume_dir);
  const std::string& preset = options.reducer.preset;
  std::array<std::uint64_t, 2> set = newest(dir.string(), preset);
  broadcast(comm, 0, std::as_writable_bytes(std::span(set)));
  const std::uint64_t step = set[0];
  const auto ranks = static_cast<int>(set[1]);
  require(ranks > 0, "nothing to resume in ", dir.string(), ": no complete set of files ", preset,
          "-STEP-RANK-of-RANKS.state");
  const bool same_P = ranks == comm.size();
  const auto read = [&](int r) { return read_state(dir / file_name(preset, step, r, ranks), options, weights.size()); };
  Loaded own;
  Workspace work;
  agree_on_success(comm, work, [&] { own = read(same_P ? comm.rank() : 0); });
  if (same_P) {
    optimiser.load(own.optimiser);
  } else {
    Loaded one;  // at a time
    own.file = {};
    optimiser.load_all(set[1], [&](std::size_t r) {
      one = {};
      one = read(static_cast<int>(r));
      return one.optimiser;
    });
  }
  state = std::move(own.state);
  std::copy(own.weights.begin(), own.weights.end(), weights.begin());
}

}  // namespace oktopk
