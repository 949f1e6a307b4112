// SPDX-License-Identifier: Apache-2.0
#include "oktopk/reduce/density.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <locale>
#include <sstream>
#include <utility>

#include "oktopk/base/error.h"
#include "oktopk/comm/collectives.h"
#include "oktopk/reduce/notes.h"
#include "oktopk/reduce/reducer_options.h"

namespace oktopk {
namespace {

constexpr std::string_view kWarmupMark = ", warm-up";  // begins the part of a description
constexpr double kMostChange = 1.25;                   // of k per interval, up or down
constexpr double kSpan = 10;                           // from the first density to the most, and to the least

constexpr std::uint64_t kMostSteps = std::uint64_t{1} << 31U;  // times n fits 64 bits

// Begin and end of the warm-up in a description.
std::pair<std::size_t, std::size_t> place_of_warmup(std::string_view description) {
  const std::size_t begin = std::min(description.find(kWarmupMark), description.size());
  return {begin, std::min(description.find(',', begin + 1), description.size())};
}

// Whether steps before `end` have the same densities.
bool are_equal_until(const DensitySchedule& a, const DensitySchedule& b, std::uint64_t end) {
  for (const DensitySchedule* schedule : {&a, &b}) {
    std::uint64_t begin = 0;  // of a stage, or of the steps after all of them
    for (std::size_t stage = 0; begin < end; begin += (*schedule)[stage++].steps) {
      if (density_at(a, begin) != density_at(b, begin)) return false;
      if (stage == schedule->size()) break;
    }
  }
  return true;
}

// `zero` says which density the value 0 stands for.
void check_density(std::string_view name, double value, std::string_view zero) {
  require(value >= 0 && value <= 1, "adaptive density: ", name, " = ", value, ", but it must be in (0, 1] (0: ", zero,
          ")");
}

void check(const AdaptiveDensityOptions& o) {
  if (o.target_share == 0) {
    require(o.least == 0 && o.most == 0 && o.budget == 0,
            "adaptive density: least, most or budget was given without a target share");
    return;
  }
  require(o.target_share > 0 && o.target_share < 1, "adaptive density: target share = ", o.target_share,
          ", but it must be in (0, 1)");
  require(o.interval >= 1, "adaptive density: interval = ", o.interval, ", but it must be at least 1 step");
  check_density("least", o.least, "a tenth of the first density");
  check_density("most", o.most, "ten times the first density");
  check_density("budget", o.budget, "none");
  require(o.most == 0 || o.least <= o.most, "adaptive density: least = ", o.least, " is above most = ", o.most);
  require(o.budget == 0 || o.least <= o.budget, "adaptive density: least = ", o.least, " is above budget = ", o.budget);
}

}  // namespace

DensitySchedule dense_warmup(std::uint64_t steps) {
  return steps == 0 ? DensitySchedule{} : DensitySchedule{{steps, 1.0}};
}

DensitySchedule dgc_warmup(std::uint64_t steps, double density) {
  require(density > 0 && density <= 1, "dgc_warmup: density = ", density, ", but it must be in (0, 1]");
  std::vector<double> densities;
  for (double d = 0.25; d > density; d /= 4) densities.push_back(d);
  DensitySchedule schedule;
  const std::uint64_t stages = densities.size();
  for (std::uint64_t s = 0; s < stages; ++s) {
    const std::uint64_t length = steps * (s + 1) / stages - steps * s / stages;
    if (length > 0) schedule.push_back({length, densities[s]});
  }
  return schedule;
}

std::size_t entries_at(double density, Index n) {
  if (n == 0) return 0;
  return std::max<std::size_t>(1, static_cast<std::size_t>(std::lround(density * n)));
}

double density_at(const DensitySchedule& schedule, std::uint64_t step) {
  for (const DensityStage& stage : schedule) {
    if (step < stage.steps) return stage.density;
    step -= stage.steps;
  }
  return 0;
}

void check_schedule(const DensitySchedule& schedule) {
  for (const DensityStage& stage : schedule)
    require(stage.density > 0 && stage.density <= 1, "warm-up: density = ", stage.density,
            ", but it must be in (0, 1]");
}

std::string describe(const DensitySchedule& schedule) {
  std::string text(kWarmupMark);
  for (const DensityStage& stage : schedule) text += " " + digits(stage.steps) + " x " + digits(stage.density);
  return text;
}

std::string with_warmup(std::string_view description, const DensitySchedule& schedule) {
  const auto [begin, end] = place_of_warmup(description);
  return std::string(description.substr(0, begin)) + describe(schedule) + std::string(description.substr(end));
}

DensitySchedule warmup_in(std::string_view description) {
  const auto [begin, end] = place_of_warmup(description);
  std::istringstream text(std::string(description.substr(begin, end - begin)).erase(0, kWarmupMark.size()));
  text.imbue(std::locale::classic());
  DensitySchedule schedule;
  char times = 0;
  for (DensityStage stage; text >> stage.steps;) {
    require((text >> times >> stage.density) && times == 'x', "state: its warm-up cannot be read");
    schedule.push_back(stage);
  }
  require(text.eof(), "state: its warm-up cannot be read");
  check_schedule(schedule);
  return schedule;
}

std::string describe(const AdaptiveDensityOptions& o) {
  check(o);
  if (o.target_share == 0) return {};
  std::ostringstream text;
  text << kAdaptiveMark << digits(o.target_share) << ", least " << digits(o.least) << ", most " << digits(o.most)
       << ", budget " << digits(o.budget) << ", interval " << digits(o.interval);
  return text.str();
}

SentShare SentShare::of(double sent, double all) {
  if (!(all > 0)) return {};
  const double share = std::clamp(sent / all, 0.0, 1.0);
  return {static_cast<std::uint64_t>(share * kUnit), 1};
}

double SentShare::mean() const {
  if (ranks == 0) return 0;
  return static_cast<double>(units) / static_cast<double>(ranks) / kUnit;
}

Cost share_cost(int P, int interval) {
  const double rounds = static_cast<double>(ceil_log2(P)) / interval;
  return sequential(rounds, rounds * (2 * sizeof(std::uint64_t) + kCheckBytes));
}

AdaptiveDensity::AdaptiveDensity(const AdaptiveDensityOptions& o, Index n, std::size_t first) {
  if (o.target_share == 0 || n == 0) return;
  const double all = n;
  const auto start = static_cast<double>(first);
  target_ = o.target_share;
  budget_ = o.budget > 0 ? std::max(1.0, o.budget * all) : 0;
  most_ = std::clamp(std::round(o.most > 0 ? o.most * all : start * kSpan), 1.0, all);
  least_ = std::clamp(std::round(o.least > 0 ? o.least * all : start / kSpan), 1.0, most_);
  interval_ = static_cast<std::uint64_t>(o.interval);
  turn_ = n / first;
  wanted_ = std::clamp(start, least_, most_);
}

// Entries that so many steps may send in all.
std::uint64_t AdaptiveDensity::allowed(std::uint64_t steps) const {
  return static_cast<std::uint64_t>(budget_ * static_cast<double>(steps));
}

// At least one entry is left: spent_ <= allowed(steps_), and a step adds one or more.
std::size_t AdaptiveDensity::k() const {
  const auto wanted = static_cast<std::uint64_t>(std::llround(wanted_));
  return budget_ > 0 ? std::min(wanted, allowed(steps_ + 1) - spent_) : wanted;
}

// wanted_ drops to the budget's bound: otherwise it would stay at a height that it cannot reach.
void AdaptiveDensity::count() {
  const std::size_t made = k();
  wanted_ = std::min(wanted_, static_cast<double>(made) + 0.5);
  spent_ += made;
  ++steps_;
}

// While the residual fills, above all after a dense warm-up, the share is larger than later: k does not shrink.
void AdaptiveDensity::observe(const SentShare& sum) {
  if (sum.ranks == 0) return;
  const double share = std::max(sum.mean(), 1 / SentShare::kUnit);
  const double least = steps_ < turn_ ? 1 : 1 / kMostChange;
  const double factor = std::clamp(std::sqrt(target_ / share), least, kMostChange);
  wanted_ = std::clamp(wanted_ * factor, least_, most_);
}

AdaptiveDensity::Words AdaptiveDensity::words() const {
  return {std::bit_cast<std::uint64_t>(wanted_), steps_, spent_};
}

void AdaptiveDensity::resume(const Words& words) {
  const auto wanted = std::bit_cast<double>(words[0]);
  require(wanted >= 0 && wanted < SentShare::kUnit && words[1] < kMostSteps, "state: an adaptive density of ", wanted,
          " entries after ", words[1], " steps");
  if (!is_on() || words[1] == 0) return;
  wanted_ = std::clamp(wanted, 1.0, most_);
  steps_ = words[1];
  spent_ = budget_ > 0 ? std::min(words[2], allowed(steps_)) : words[2];
}

DensityPlan::DensityPlan(const ReducerOptions& options, Index n)
    : n_(n), k_(entries_per_step(n, options)), warmup_(options.warmup), adaptive_(options.adaptive, n, k_) {}

std::size_t DensityPlan::entries() const { return adapts() ? adaptive_.k() : most_entries(); }

std::size_t DensityPlan::most_entries() const {
  if (density() > 0) return entries_at(density(), n_);
  return adaptive_.is_on() ? adaptive_.most() : k_;
}

DensityPlan::Pace DensityPlan::pace() const {
  const AdaptiveDensity::Words words = adaptive_.words();
  const double all = std::max<double>(n_, 1);
  return {.steps = steps_,
          .adaptive_steps = words[1],
          .density = std::bit_cast<double>(words[0]) / all,
          .spent = static_cast<double>(words[2]) / all};
}

// A budget bounds what was spent by what was allowed, so rounding cannot exceed it (resume()).
void DensityPlan::begin_at(const Pace& pace) {
  require(steps_ == 0, "begin_at: ", steps_, " steps were made, but it is for a new reducer");
  require(pace.density >= 0 && pace.density <= 1, "begin_at: density = ", pace.density, ", but it must be in [0, 1]");
  require(pace.spent >= 0 && pace.spent <= static_cast<double>(pace.adaptive_steps), "begin_at: ", pace.spent,
          " entries per value were spent in ", pace.adaptive_steps, " steps, but it must be at most 1 per step");
  const double all = n_;
  adaptive_.resume({std::bit_cast<std::uint64_t>(pace.density * all), pace.adaptive_steps,
                    static_cast<std::uint64_t>(std::llround(pace.spent * all))});
  steps_ = pace.steps;
}

void DensityPlan::continue_after(const DensitySchedule& other) {
  if (are_equal_until(other, warmup_, steps_)) return;
  const auto words = [](const DensitySchedule& schedule) {
    return schedule.empty() ? "none" : describe(schedule).substr(kWarmupMark.size() + 1);
  };
  require(density_at(other, steps_) == 0, "state: saved after ", steps_, " steps, inside of a warm-up of ",
          words(other), ", but the warm-up here is ", words(warmup_),
          ": it follows from total_steps unless warmup is given: until it is over, keep the total_steps or the warmup "
          "of the run that saved");
  has_ended_ = true;
}

}  // namespace oktopk
