// SPDX-License-Identifier: Apache-2.0
#include "tools/train/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "tools/text.h"

namespace oktopk {
namespace {

constexpr int kWidest = 28;                             // of the bar
constexpr int kNumbers = 98;                            // columns that all but the bar takes
constexpr auto kPause = std::chrono::milliseconds(80);  // between two redraws

// What the terminal has room for: a line that wraps could not be redrawn.
int bar_width() {
  winsize size{};
  if (ioctl(fileno(stdout), TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return kWidest;
  return std::clamp(size.ws_col - kNumbers, 0, kWidest);
}

std::string bar(double share, int width) {
  static constexpr const char* kEighths[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  const int eighths = static_cast<int>(share * width * 8);
  std::string text;
  for (int i = 0; i < eighths / 8; ++i) text += "█";
  const int rest = eighths % 8;
  text += kEighths[rest];
  for (int i = eighths / 8 + (rest > 0 ? 1 : 0); i < width; ++i) text += "·";
  return text;
}

std::string numbers(const Progress& p) {
  const std::string accuracy = p.accuracy > 0 ? fmt::format("{:5.1f}%", 100 * p.accuracy) : std::string("     -");
  return fmt::format("step {:>6}/{}  loss {:.4f}  accuracy {}  moved {:>9}/rank", p.step, p.steps, p.loss, accuracy,
                     format_bytes(p.bytes));
}

}  // namespace

ProgressBar::ProgressBar(std::string label)
    : label_(std::move(label)),
      terminal_(isatty(fileno(stdout)) == 1),
      start_(std::chrono::steady_clock::now()),
      last_(start_ - kPause) {}

ProgressBar::~ProgressBar() {
  if (terminal_ && drawn_) fmt::print("\n");
}

void ProgressBar::show(const Progress& p) {
  if (first_step_ == 0) first_step_ = p.step;
  const auto now = std::chrono::steady_clock::now();
  const bool done = p.step == p.steps;
  if (!terminal_) {
    const int tenths = static_cast<int>(10 * p.step / p.steps);
    if (tenths == tenths_ && !done) return;
    tenths_ = tenths;
    fmt::print("  {:<10} {}\n", label_, numbers(p));
    std::fflush(stdout);
    return;
  }
  if (!done && now - last_ < kPause) return;
  last_ = now;
  drawn_ = true;
  const double seconds = std::chrono::duration<double>(now - start_).count();
  const double rate = static_cast<double>(p.step - first_step_) / std::max(seconds, 1e-9);
  const double left = rate > 0 ? static_cast<double>(p.steps - p.step) / rate : 0;
  fmt::print("\r\x1b[2K  {:<10} {} {}  {}", label_,
             bar(static_cast<double>(p.step) / static_cast<double>(p.steps), bar_width()), numbers(p),
             done ? fmt::format("{:.1f} s", seconds) : fmt::format("{:.0f} s left", left));
  std::fflush(stdout);
}

}  // namespace oktopk
