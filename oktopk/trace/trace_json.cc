// SPDX-License-Identifier: Apache-2.0
// A Trace as a file (trace.h), by the "Trace Event Format": complete events ("ph": "X") with the
// rank as process and metadata events ("ph": "M") that name it. By hand: the library depends on
// nothing.
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <fstream>
#include <numeric>
#include <set>

#include "oktopk/base/error.h"
#include "oktopk/trace/trace.h"

namespace oktopk {
namespace {

// Bytes of the UTF-8 character at the start of `text`; 0 when there is none.
std::size_t utf8_length(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  const std::size_t length = lead < 0x80 ? 1 : lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (length == 1) return 1;
  if (lead < 0xC2 || lead > 0xF4 || text.size() < length) return 0;
  for (std::size_t i = 1; i < length; ++i)
    if ((static_cast<unsigned char>(text[i]) & 0xC0U) != 0x80) return 0;
  const auto next = static_cast<unsigned char>(text[1]);  // over-long forms, surrogates, too large
  const bool bad = (lead == 0xE0 && next < 0xA0) || (lead == 0xED && next >= 0xA0) || (lead == 0xF0 && next < 0x90) ||
                   (lead == 0xF4 && next >= 0x90);
  return bad ? 0 : length;
}

void append_escaped(std::string& json, char c) {
  constexpr std::string_view kHex = "0123456789abcdef";
  if (c == '"' || c == '\\') {
    json += '\\';
    json += c;
  } else if (static_cast<unsigned char>(c) < 0x20) {
    json += "\\u00";
    json += kHex[static_cast<unsigned char>(c) >> 4U];
    json += kHex[static_cast<unsigned char>(c) & 15U];
  } else {
    json += c;
  }
}

// Bytes that are no UTF-8 become the replacement character.
void append_text(std::string& json, std::string_view text) {
  json += '"';
  while (!text.empty()) {
    const std::size_t length = utf8_length(text);
    if (length == 0) json += "\\ufffd";
    if (length == 1) append_escaped(json, text[0]);
    if (length > 1) json += text.substr(0, length);
    text.remove_prefix(std::max<std::size_t>(1, length));
  }
  json += '"';
}

// The fewest digits that give the same number again. JSON has no NaN and no infinity.
void append_number(std::string& json, double x) {
  constexpr double kExact = 0x1p53;
  if (!std::isfinite(x)) {
    json += "null";
  } else if (std::fabs(x) < kExact && x == std::trunc(x)) {
    json += std::to_string(static_cast<std::int64_t>(x));
  } else {
    std::array<char, 32> text{};
    json.append(text.data(), std::to_chars(text.data(), text.data() + text.size(), x).ptr);
  }
}

// Nanoseconds as microseconds.
void append_time(std::string& json, std::int64_t nanoseconds) {
  json += std::to_string(nanoseconds / 1000) + '.';
  const std::string rest = std::to_string(nanoseconds % 1000);
  json += std::string(3 - rest.size(), '0') + rest;
}

void append_name(std::string& json, std::string_view kind, int rank, int thread, std::string_view name) {
  json += R"({"name":")";
  json += kind;
  json += R"(","ph":"M","pid":)" + std::to_string(rank) + R"(,"tid":)" + std::to_string(thread) + R"(,"args":{"name":)";
  append_text(json, name);
  json += "}},\n";
}

}  // namespace

// Row by row, by time, and what contains others before them.
std::vector<std::size_t> Trace::order() const {
  std::vector<std::size_t> sorted(events_.size());
  std::iota(sorted.begin(), sorted.end(), std::size_t{0});
  std::ranges::stable_sort(sorted, {}, [&](std::size_t i) {
    const Event& e = events_[i];
    return std::array<std::int64_t, 4>{e.rank, e.thread, e.begin, -e.end};
  });
  return sorted;
}

void Trace::append_names(std::string& json) const {
  std::set<std::pair<int, int>> rows;
  for (const Event& event : events_) rows.insert({event.rank, event.thread});
  int named = -1;
  for (const auto& [rank, thread] : rows) {
    if (rank != named) append_name(json, "process_name", rank, 0, "rank " + std::to_string(rank));
    named = rank;
    const auto name = thread_names_.find(thread);
    append_name(json, "thread_name", rank, thread,
                name != thread_names_.end() ? name->second
                : thread == 0               ? "main"
                                            : "thread " + std::to_string(thread));
  }
}

void Trace::append_event(std::string& json, const Event& event, std::int64_t origin) const {
  json += R"({"name":)";
  append_text(json, texts_[event.name]);
  json += R"(,"cat":)";
  append_text(json, texts_[event.category]);
  json += R"(,"ph":"X","ts":)";
  append_time(json, event.begin - origin);
  json += R"(,"dur":)";
  append_time(json, std::max<std::int64_t>(0, event.end - event.begin));
  json += R"(,"pid":)" + std::to_string(event.rank) + R"(,"tid":)" + std::to_string(event.thread);
  json += R"(,"args":{)";
  for (std::size_t a = 0; a < event.args; ++a) {
    const Arg& arg = args_[event.first_arg + a];
    if (a > 0) json += ',';
    append_text(json, texts_[arg.name]);
    json += ':';
    arg.text == kNumber ? append_number(json, arg.value) : append_text(json, texts_[arg.text]);
  }
  json += "}},\n";
}

std::string Trace::to_json() const {
  const std::lock_guard lock(mutex_);
  std::int64_t origin = events_.empty() ? 0 : events_.front().begin;
  for (const Event& event : events_) origin = std::min(origin, event.begin);
  std::string json =
      R"({"displayTimeUnit":"ms","otherData":{"dropped":)" + std::to_string(dropped_) + "},\"traceEvents\":[\n";
  append_names(json);
  for (const std::size_t i : order()) append_event(json, events_[i], origin);
  if (json.ends_with(",\n")) json.erase(json.size() - 2, 1);  // the last comma
  return json + "]}\n";
}

void Trace::write(const std::string& file) const {
  std::ofstream out(file, std::ios::binary);
  out << to_json();
  out.close();
  require(out.good(), "trace: cannot write ", file);
}

}  // namespace oktopk
