// SPDX-License-Identifier: Apache-2.0
#include "oktopk/reduce/notes.h"

#include <gtest/gtest.h>

#include <limits>

#include "oktopk/comm/decorators.h"
#include "tests/support/world.h"

namespace oktopk::notes_test {
namespace {

constexpr int kSizes[] = {1, 2, 3, 5};

// compare() gives what every rank learns when rank r has notes[r].
std::vector<Note> compare(const std::vector<Note>& notes) {
  return gather_world("threads", static_cast<int>(notes.size()), [&](Communicator& comm) {
    Workspace work;
    return compare_notes(comm, notes[static_cast<std::size_t>(comm.rank())], work);
  });
}

struct Comparison {
  std::vector<Note> notes;  // by rank
  Severity severity;
  std::string text;
};

std::vector<Comparison> comparisons() {
  using enum Severity;
  std::vector<Comparison> rows = {
      {{{skippable, "a"}, {}, {error, "b"}, {}, {error, "c"}}, error, "rank 2: b"},  // the gravest
      {{{}, {skippable, "a"}, {skippable, "b"}}, skippable, "rank 1: a"},            // the first among equals
      {{{}, {error, ""}, {}}, error, "rank 1: "},
      {{{fine, "all well"}, {error, "b"}, {}}, error, "rank 1: b"},
      {{{}, {}, {error, std::string(476, 'x')}}, error, "rank 2: " + std::string(476, 'x')},
      {{{}, {}, {error, std::string(477, 'x')}}, error, "rank 2: " + std::string(473, 'x') + "..."},
      {{{}, {}, {error, std::string(10000, 'x')}}, error, "rank 2: " + std::string(473, 'x') + "..."},
  };
  for (const int P : kSizes) {
    rows.push_back({std::vector<Note>(static_cast<std::size_t>(P)), fine, ""});
    for (int who = 0; who < P; ++who)
      for (const Severity severity : {skippable, error}) {
        Comparison row{std::vector<Note>(static_cast<std::size_t>(P)), severity,
                       "rank " + std::to_string(who) + ": no bread"};
        row.notes[static_cast<std::size_t>(who)] = {severity, "no bread"};
        rows.push_back(row);
      }
  }
  return rows;
}

TEST(Notes, compare_tells_everyone_the_gravest_of_the_first_rank) {
  for (const Comparison& row : comparisons())
    for (const Note& note : compare(row.notes)) {
      EXPECT_EQ(note.severity, row.severity);
      EXPECT_EQ(note.text, row.text);
    }
}

TEST(Notes, compare_costs_what_is_predicted) {
  for (const int P : kSizes)
    run_world("threads", P, [&](Communicator& comm) {
      CountingCommunicator counting(comm);
      Workspace work;
      compare_notes(counting, {}, work);
      EXPECT_EQ(static_cast<double>(counting.traffic().messages_sent), notes_cost(P).messages);
      EXPECT_EQ(static_cast<double>(counting.traffic().bytes_sent), notes_cost(P).bytes);
    });
}

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

TEST(Inspect, gradient_of_finite_values_or_none_is_fine) {
  const auto device = make_cpu_device();
  const std::vector<float> gradient = {1, -2, 0};
  EXPECT_EQ(inspect_values(*device, gradient, 0.5F, 3).severity, Severity::fine);
  EXPECT_EQ(inspect_values(*device, {}, 0.5F, 3).severity, Severity::fine);
}

TEST(Inspect, size_and_scale_are_errors_that_name_the_value) {
  const std::vector<float> gradient = {1, kNaN};
  const Note size = inspect_size(gradient, 1, 3);
  EXPECT_EQ(size.severity, Severity::error);
  EXPECT_EQ(size.text, "the gradient has 2 entries, but n = 3");
  const Note scale = inspect_size(gradient, kInf, 2);
  EXPECT_EQ(scale.severity, Severity::error);
  EXPECT_EQ(scale.text, "scale = inf, but it must be finite");
  EXPECT_EQ(inspect_size(gradient, 1, 2).severity, Severity::fine);  // does not look
}

TEST(Inspect, values_that_are_not_finite_are_skippable_and_named_in_any_type) {
  const auto device = make_cpu_device();
  for (const float bad : {kNaN, kInf, -kInf}) {
    const std::vector<float> gradient = {1, bad, bad};
    const Note note = inspect_values(*device, gradient, 1, 3);
    EXPECT_EQ(note.severity, Severity::skippable);
    EXPECT_EQ(note.text.find("gradient[1] = "), 0u) << note.text;
  }
  const std::vector<Bf16> halves = {Bf16{0x3f80}, Bf16{0x7f80}};  // 1, infinity
  EXPECT_EQ(inspect_values(*device, halves, 1, 2).text, "gradient[1] = inf, but all entries must be finite");
}

}  // namespace
}  // namespace oktopk::notes_test
