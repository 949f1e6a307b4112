// SPDX-License-Identifier: Apache-2.0
#include "tools/simulate/spec.h"

#include "oktopk/allreduce/presets.h"
#include "oktopk/codec/codec.h"

namespace oktopk {
namespace {

nlohmann::json method_json(const Method& m) {
  return {{"preset", m.preset}, {"codec", to_string(m.codec)}, {"skips", m.skips}, {"group", m.group}};
}

Method method_from(const nlohmann::json& j) {
  return {.preset = j.at("preset"),
          .codec = parse_codec(j.at("codec").get<std::string>()),
          .skips = j.at("skips"),
          .group = j.at("group")};
}

nlohmann::json problem_json(const SimulatedProblem& p) {
  nlohmann::json methods = nlohmann::json::array();
  for (const Method& m : p.methods) methods.push_back(method_json(m));
  nlohmann::json leaders = nlohmann::json::array();
  for (const SimulatedProblem& l : p.leaders) leaders.push_back(problem_json(l));
  return {{"n", p.n},
          {"k", p.k},
          {"kth_magnitude", p.kth_magnitude},
          {"union", p.union_size},
          {"cuts", p.cuts},
          {"cut_unions", p.cut_unions},
          {"equal_unions", p.equal_unions},
          {"methods", methods},
          {"leaders", leaders}};
}

SimulatedProblem problem_from(const nlohmann::json& j) {
  std::vector<Method> methods;
  for (const nlohmann::json& m : j.at("methods")) methods.push_back(method_from(m));
  std::vector<SimulatedProblem> leaders;
  for (const nlohmann::json& l : j.at("leaders")) leaders.push_back(problem_from(l));
  return {.n = j.at("n"),
          .k = j.at("k"),
          .kth_magnitude = j.at("kth_magnitude"),
          .union_size = j.at("union"),
          .cuts = j.at("cuts").get<Cuts>(),
          .cut_unions = j.at("cut_unions").get<std::vector<std::size_t>>(),
          .equal_unions = j.at("equal_unions").get<std::vector<std::size_t>>(),
          .methods = std::move(methods),
          .leaders = std::move(leaders)};
}

}  // namespace

AllreduceOptions SimulationSpec::allreduce(const Method& method) const {
  AllreduceOptions options;
  options.tau = tau;
  options.thresholds = thresholds;
  options.tau_prime = tau_prime;
  return method.options(options);
}

nlohmann::json to_json(const SimulationSpec& s) {
  nlohmann::json problems = nlohmann::json::array();
  for (const SimulatedProblem& p : s.problems) problems.push_back(problem_json(p));
  return {{"P", s.P},
          {"problems", problems},
          {"presets", s.presets},
          {"support", s.support},
          {"seed", s.seed},
          {"steps", s.steps},
          {"warm_up", s.warm_up},
          {"tau", s.tau},
          {"thresholds", to_string(s.thresholds)},
          {"tau_prime", s.tau_prime},
          {"gamma", s.kernels.gamma},
          {"delta", s.kernels.delta},
          {"receive_overhead", s.receive_overhead},
          {"slow_rank", s.slow_host.rank},
          {"slow_factor", s.slow_host.factor},
          {"data_bytes", s.data_bytes},
          {"provoke", s.provoke}};
}

SimulationSpec spec_from_json(const nlohmann::json& j) {
  SimulationSpec s;
  s.P = j.at("P");
  for (const nlohmann::json& p : j.at("problems")) s.problems.push_back(problem_from(p));
  s.presets = j.at("presets").get<std::vector<std::string>>();
  s.support = j.at("support");
  s.seed = j.at("seed");
  s.steps = j.at("steps");
  s.warm_up = j.at("warm_up");
  s.tau = j.at("tau");
  s.thresholds = find_threshold_rule(j.at("thresholds").get<std::string>());
  s.tau_prime = j.at("tau_prime");
  s.kernels = {.gamma = j.at("gamma"), .delta = j.at("delta")};
  s.receive_overhead = j.at("receive_overhead");
  s.slow_host = {.rank = j.at("slow_rank"), .factor = j.at("slow_factor")};
  s.data_bytes = j.at("data_bytes");
  s.provoke = j.at("provoke");
  return s;
}

nlohmann::json to_json(const SimulatedRow& r) {
  return {{"preset", r.preset},
          {"n", r.n},
          {"k", r.k},
          {"ranks", r.P},
          {"carries", r.carries_data ? "data" : "sizes"},
          {"refresh_carries", r.refresh_carries_data ? "data" : "sizes"},
          {"steady", r.steady},
          {"refresh", r.refresh},
          {"mean", r.mean},
          {"messages", r.messages},
          {"wire_bytes", r.bytes},
          {"selected", r.selected}};
}

SimulatedRow row_from_json(const nlohmann::json& j) {
  return {.preset = j.at("preset"),
          .n = j.at("n"),
          .k = j.at("k"),
          .P = j.at("ranks"),
          .carries_data = j.at("carries") == "data",
          .refresh_carries_data = j.at("refresh_carries") == "data",
          .steady = j.at("steady"),
          .refresh = j.at("refresh"),
          .mean = j.at("mean"),
          .messages = j.at("messages"),
          .bytes = j.at("wire_bytes"),
          .selected = j.at("selected")};
}

}  // namespace oktopk
