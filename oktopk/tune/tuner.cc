// SPDX-License-Identifier: Apache-2.0
#include "oktopk/tune/tuner.h"

#include <algorithm>
#include <array>
#include <ranges>

#include "oktopk/base/error.h"
#include "oktopk/tune/prices.h"

namespace oktopk {
namespace {

constexpr std::array<std::uint64_t, 3> kFirstReviews = {16, 64, 256};  // steps after a change
constexpr std::uint64_t kPause = 1024;                                 // steps between later reviews
constexpr std::size_t kUnsettled = 4;                                  // steps after a change that do not count
constexpr double kGain = 0.9;  // another choice must take at most this share of the time
constexpr double kMostCorrection = 50;

}  // namespace

Tuner::Tuner(const Problem& problem, const Profile& profile, const ChoiceOptions& options)
    : problem_(problem), profile_(profile), options_(options) {
  choice_ = rank_candidates(problem_, profile_, options_).front();
}

void Tuner::use(const Profile& profile) {
  *this = Tuner(problem_, profile, options_);
  is_calibrated_ = true;
}

void Tuner::observe(double seconds, double arrived, double merged, bool refreshed) {
  ++steps_;
  recent_.push_back(seconds);
  arrived_ += arrived;
  merged_ += merged;
  refreshes_ += refreshed ? 1 : 0;
}

bool Tuner::is_review_due() const {
  const bool is_time = steps_ % kPause == 0 || std::ranges::find(kFirstReviews, steps_) != kFirstReviews.end();
  return is_time && recent_.size() > kUnsettled;
}

Tuner::Summary Tuner::summary() const {
  if (recent_.size() <= kUnsettled) return {};
  return {median({recent_.begin() + kUnsettled, recent_.end()}), arrived_ > 0 ? merged_ / arrived_ : 0.0,
          refreshes_ / static_cast<double>(recent_.size())};
}

// Methods of one name share one correction: a preset, but the caller's dense and ours are two.
std::string Tuner::corrected_name(const Method& method) const {
  const bool is_apart = options_.external_dense && method.preset == "dense";
  return is_apart ? to_string(method) : method.preset;
}

// Beside an external dense, our methods that never ran take the least correction of those that ran, at least 1, because
// all use the same messages and processor: so the caller's dense, measured as a whole, can win before each was tried.
double Tuner::correction(const Candidate& candidate) const {
  const auto found = corrections_.find(corrected_name(candidate.method));
  if (found != corrections_.end()) return found->second;
  if (candidate.external || !options_.external_dense) return 1;
  std::map<std::string, double> ours = corrections_;
  ours.erase(to_string(Method{.preset = "dense"}));
  const auto is_less = [](const auto& a, const auto& b) { return a.second < b.second; };
  const auto least = std::min_element(ours.begin(), ours.end(), is_less);
  return least == ours.end() ? 1 : std::max(1.0, least->second);
}

bool Tuner::review(const Summary& reduced) {
  const auto [observed, merged, refreshed] = reduced;
  if (merged > 0) problem_.union_exponent = problem_.exponent_of(merged * problem_.P * problem_.k);
  // The median of the times is that of a step that refreshes, or of one that does not.
  options_.refreshes[choice_.method.preset] = refreshed > 0.5 ? 1 : 0;
  const double typical = price(choice_.method, problem_, profile_, options_).seconds;
  options_.refreshes[choice_.method.preset] = refreshed;
  if (observed > 0 && typical > 0)
    corrections_[corrected_name(choice_.method)] = std::clamp(observed / typical, 1 / kMostCorrection, kMostCorrection);
  recent_.clear();
  arrived_ = merged_ = refreshes_ = 0;
  if (options_.overrides.match(problem_) != nullptr) return false;  // a rule fixes the choice
  auto all = rank_candidates(problem_, profile_, options_);
  for (Candidate& c : all) c.seconds *= correction(c);
  const Candidate& best = *std::ranges::min_element(all, {}, &Candidate::seconds);
  const double present = price(choice_.method, problem_, profile_, options_).seconds * correction(choice_);
  if (best.method == choice_.method || best.seconds > kGain * present) return false;
  choice_ = best;
  steps_ = 0;  // the next review comes soon
  return true;
}

void Tuner::save(StateWriter& state) const {
  oktopk::save(profile_, state);
  state.put(is_calibrated_);
  state.put(problem_.union_exponent);
  state.put(steps_);
  state.put_all(std::span<const double>(recent_));
  state.put(arrived_);
  state.put(merged_);
  state.put(static_cast<std::uint32_t>(corrections_.size()));
  for (const auto& [preset, factor] : corrections_) {
    state.put_text(preset);
    state.put(factor);
  }
  state.put_text(choice_.method.preset);
  state.put_text(to_string(choice_.method.codec));
  state.put_text(choice_.method.skips);
  state.put(static_cast<std::uint32_t>(choice_.method.group));
}

void Tuner::load(StateReader& state) {
  profile_ = take_profile(state);
  is_calibrated_ = state.take<bool>();
  problem_.union_exponent = state.take_finite<double>("the exponent of the union");
  steps_ = state.take<std::uint64_t>();
  recent_ = state.take_all_finite<double>("time of a step");
  arrived_ = state.take_finite<double>("the count of entries that arrived", 0);
  merged_ = state.take_finite<double>("the count of entries that were merged", 0);
  corrections_.clear();
  for (auto i = state.take<std::uint32_t>(); i > 0; --i) {
    const std::string preset = state.take_text();
    corrections_[preset] = state.take_finite<double>("a correction", 0);
  }
  Method method{.preset = state.take_text()};
  method.codec = parse_codec(state.take_text());
  method.skips = state.take_text();
  method.group = static_cast<int>(state.take<std::uint32_t>());
  choice_ = price(method, problem_, profile_, options_);
}

}  // namespace oktopk
